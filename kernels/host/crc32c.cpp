// crc32c.cu for the CPU: run_crc32c(blocks, threads, table).

#include "cuda_host.h"

#include "../crc32c.cu"

HOST_KERNEL(crc32c, ChecksumTable)
