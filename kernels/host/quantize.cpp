// quantize.cu for the CPU: run_quantize_bfloat16_int8(blocks, threads, table) and its kin.

#include "cuda_host.h"

#include "../quantize.cu"

#define BOTH_WAYS(element, code)                        \
    HOST_KERNEL(quantize_##element##_##code, QuantizeTable) \
    HOST_KERNEL(dequantize_##element##_##code, QuantizeTable)

BOTH_WAYS(bfloat16, fp8_e4m3)
BOTH_WAYS(float16, fp8_e4m3)
BOTH_WAYS(float32, fp8_e4m3)
BOTH_WAYS(bfloat16, int8)
BOTH_WAYS(float16, int8)
BOTH_WAYS(float32, int8)
