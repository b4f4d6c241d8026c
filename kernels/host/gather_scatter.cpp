// gather_scatter.cu for the CPU: run_gather_16(blocks, threads, table) and its kin.

#include "cuda_host.h"

#include "../gather_scatter.cu"

HOST_KERNEL(gather_16, CopyTable)
HOST_KERNEL(gather_8, CopyTable)
HOST_KERNEL(gather_4, CopyTable)
HOST_KERNEL(gather_2, CopyTable)
HOST_KERNEL(gather_1, CopyTable)
HOST_KERNEL(scatter_16, CopyTable)
HOST_KERNEL(scatter_8, CopyTable)
HOST_KERNEL(scatter_4, CopyTable)
HOST_KERNEL(scatter_2, CopyTable)
HOST_KERNEL(scatter_1, CopyTable)
