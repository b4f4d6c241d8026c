// Moves KV rows between an engine's paged cache and block-first host slots.
//
// gather_* is a store (pages to slots), scatter_* a load (slots to pages). tierstore/device/copy_table.py builds
// the table, chooses the vector width and launches; the same file is compiled by g++ through host/cuda_host.h and
// run on a CPU by tests/kernels. Slots may be device memory (staging) or pinned host memory read and written over
// the link (zero-copy). Nothing here waits, allocates or looks outside the rows that the table names.
//
// The table travels as the kernel's parameter, below the 4 KiB that every architecture takes: nothing has to be
// uploaded before a launch or freed after it. One warp moves one tile: 4 vectors a lane, all loaded before the first
// is stored, so that enough bytes are in flight to fill a link whose latency is microseconds.

typedef unsigned long long Count;

constexpr int SEGMENTS_MAX = 40;
constexpr int BLOCKS_MAX = 128;
constexpr unsigned WARP = 32;
constexpr unsigned VECTORS_PER_LANE = 4;

// One run of equal rows of every block. Row r of block b lies at base + b * block_stride + r * row_stride, and goes
// to slot + slot_offset + r * row_nbytes. All in bytes.
struct Segment {
    long long base;
    long long block_stride;
    long long num_rows;
    long long row_stride;
    long long row_nbytes;
    long long slot_offset;
};

struct Block {
    long long slot;  // address
    long long id;    // which block of the cache
};

struct CopyTable {
    int num_segments;
    int num_blocks;
    Count tiles;  // the most that any segment has, for the vector width of the launch
    Segment segments[SEGMENTS_MAX];
    Block blocks[BLOCKS_MAX];
};

template <typename Vector, bool GATHER>
__device__ __forceinline__ void copy_tiles(const CopyTable& table) {
    constexpr Count STEP = WARP * sizeof(Vector);
    constexpr Count TILE = VECTORS_PER_LANE * STEP;
    const Count lane_offset = (threadIdx.x % WARP) * sizeof(Vector);
    const Count warps_per_block = blockDim.x / WARP;
    const Count num_warps = gridDim.x * warps_per_block;
    const Count num_items = Count(table.num_blocks) * table.num_segments * table.tiles;
    for (Count item = blockIdx.x * warps_per_block + threadIdx.x / WARP; item < num_items; item += num_warps) {
        const Count pair = item / table.tiles;
        const Count tile = item % table.tiles;
        const Segment& segment = table.segments[pair % table.num_segments];
        const Block& block = table.blocks[pair / table.num_segments];
        const Count tiles_per_row = (segment.row_nbytes + TILE - 1) / TILE;
        const long long row = tile / tiles_per_row;
        if (row >= segment.num_rows) continue;
        const Count begin = (tile % tiles_per_row) * TILE + lane_offset;
        const Count end = segment.row_nbytes;
        char* page = reinterpret_cast<char*>(
            segment.base + block.id * segment.block_stride + row * segment.row_stride);
        char* slot = reinterpret_cast<char*>(block.slot + segment.slot_offset + row * segment.row_nbytes);
        const char* src = GATHER ? page : slot;
        char* dst = GATHER ? slot : page;
        const bool has0 = begin < end, has1 = begin + STEP < end;
        const bool has2 = begin + 2 * STEP < end, has3 = begin + 3 * STEP < end;
        Vector v0, v1, v2, v3;
        if (has0) v0 = __ldcs(reinterpret_cast<const Vector*>(src + begin));
        if (has1) v1 = __ldcs(reinterpret_cast<const Vector*>(src + begin + STEP));
        if (has2) v2 = __ldcs(reinterpret_cast<const Vector*>(src + begin + 2 * STEP));
        if (has3) v3 = __ldcs(reinterpret_cast<const Vector*>(src + begin + 3 * STEP));
        if (has0) __stcs(reinterpret_cast<Vector*>(dst + begin), v0);
        if (has1) __stcs(reinterpret_cast<Vector*>(dst + begin + STEP), v1);
        if (has2) __stcs(reinterpret_cast<Vector*>(dst + begin + 2 * STEP), v2);
        if (has3) __stcs(reinterpret_cast<Vector*>(dst + begin + 3 * STEP), v3);
    }
}

// One kernel for each direction and vector width: every address, stride and row of a launch is a multiple of it.
#define COPY_KERNEL(name, Vector, gather)                                                              \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ CopyTable table) { \
        copy_tiles<Vector, gather>(table);                                                             \
    }

COPY_KERNEL(gather_16, uint4, true)
COPY_KERNEL(gather_8, uint2, true)
COPY_KERNEL(gather_4, unsigned int, true)
COPY_KERNEL(gather_2, unsigned short, true)
COPY_KERNEL(gather_1, unsigned char, true)
COPY_KERNEL(scatter_16, uint4, false)
COPY_KERNEL(scatter_8, uint2, false)
COPY_KERNEL(scatter_4, unsigned int, false)
COPY_KERNEL(scatter_2, unsigned short, false)
COPY_KERNEL(scatter_1, unsigned char, false)
