// CRC32C of blocks in GPU memory: what came there past the CPU is verified where it lies.
//
// tierstore/device/checksums.py builds the table, launches and joins what the warps found; the same file runs on a CPU
// in tests. A checksum is the remainder of a polynomial over GF(2), and remainders add: a warp takes one piece of a
// block, each lane every 32nd vector of it, and every sum is moved to its place by a multiplication with a power of x.
// The sums of a block's pieces, XORed, are its CRC32C. There are no tables: a product is 32 steps of plain arithmetic,
// and where one factor is a constant the compiler knows all of its shifts.

typedef unsigned long long Count;

constexpr int BLOCKS_MAX = 128;
constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr long long VECTOR_NBYTES = 16;
constexpr long long STRIDE_NBYTES = WARP * VECTOR_NBYTES;
constexpr unsigned POLYNOMIAL = 0x82f63b78u;  // bit 31 is the coefficient of 1, bit 0 that of x^31
constexpr unsigned ONE = 0x80000000u;
constexpr unsigned ORDER = 0x7fffffffu;  // x to this power is 1

struct ChecksumTable {
    long long nbytes;        // of every block
    long long piece_nbytes;  // a multiple of STRIDE_NBYTES
    long long num_pieces;    // of every block
    long long sums;          // address of unsigned[num_blocks][num_pieces]
    int num_blocks;
    int reserved;
    long long blocks[BLOCKS_MAX];  // addresses, multiples of 16
};

__device__ __forceinline__ constexpr unsigned times_x(unsigned value) {
    return value & 1 ? value >> 1 ^ POLYNOMIAL : value >> 1;
}

__device__ __forceinline__ constexpr unsigned multiply(unsigned one, unsigned other) {
    unsigned product = 0;
#pragma unroll
    for (int power = 0; power < 32; power++) {
        product ^= other & (0u - (one >> (31 - power) & 1));
        other = times_x(other);
    }
    return product;
}

__device__ constexpr unsigned power_of_x(unsigned exponent) {
    unsigned result = ONE, square = ONE >> 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

constexpr unsigned WORD = power_of_x(32);
constexpr unsigned STRIDE = power_of_x(8 * STRIDE_NBYTES);
constexpr unsigned VECTORS_1 = power_of_x(8 * VECTOR_NBYTES);
constexpr unsigned VECTORS_2 = power_of_x(2 * 8 * VECTOR_NBYTES);
constexpr unsigned VECTORS_4 = power_of_x(4 * 8 * VECTOR_NBYTES);
constexpr unsigned VECTORS_8 = power_of_x(8 * 8 * VECTOR_NBYTES);
constexpr unsigned VECTORS_16 = power_of_x(16 * 8 * VECTOR_NBYTES);

// The first bytes of a word, zeros for the others.
__device__ __forceinline__ unsigned keep(unsigned word, long long nbytes) {
    return nbytes >= 4 ? word : nbytes <= 0 ? 0 : word & ((1u << 8 * nbytes) - 1);
}

// The sums of two neighbours, each over `mask` lanes, joined: the lower lanes' bytes come first.
__device__ __forceinline__ unsigned join(unsigned sum, int mask, unsigned power) {
    const unsigned other = __shfl_xor_sync(ALL_LANES, sum, mask);
    const bool first = !(threadIdx.x % WARP & mask);
    return multiply(first ? sum : other, power) ^ (first ? other : sum);
}

// What a piece adds to the checksum of its block.
__device__ __forceinline__ unsigned sum_piece(const char* block, long long nbytes, long long begin, long long end) {
    unsigned sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
    long long at = begin + (threadIdx.x % WARP) * VECTOR_NBYTES;
    for (long long stride = begin; stride < end; stride += STRIDE_NBYTES, at += STRIDE_NBYTES) {
        uint4 vector = {0, 0, 0, 0};
        if (at < nbytes) vector = __ldcs(reinterpret_cast<const uint4*>(block + at));
        const long long left = nbytes - at;
        sum0 = multiply(sum0, STRIDE) ^ keep(vector.x, left);
        sum1 = multiply(sum1, STRIDE) ^ keep(vector.y, left - 4);
        sum2 = multiply(sum2, STRIDE) ^ keep(vector.z, left - 8);
        sum3 = multiply(sum3, STRIDE) ^ keep(vector.w, left - 12);
    }
    unsigned sum = multiply(multiply(multiply(sum0, WORD) ^ sum1, WORD) ^ sum2, WORD) ^ sum3;
    sum = join(sum, 1, VECTORS_1);
    sum = join(sum, 2, VECTORS_2);
    sum = join(sum, 4, VECTORS_4);
    sum = join(sum, 8, VECTORS_8);
    sum = join(sum, 16, VECTORS_16);
    // Behind the last bytes of a block lie zeros that are not its own: they are taken back by a negative power.
    const long long bits_behind = 32 + 8 * (nbytes - end);
    return multiply(sum, power_of_x(unsigned(bits_behind < 0 ? bits_behind + ORDER : bits_behind % ORDER)));
}

extern "C" __global__ void __launch_bounds__(256) crc32c(const __grid_constant__ ChecksumTable table) {
    const Count warps_per_block = blockDim.x / WARP;
    const Count num_items = Count(table.num_blocks) * table.num_pieces;
    for (Count item = blockIdx.x * warps_per_block + threadIdx.x / WARP; item < num_items;
         item += gridDim.x * warps_per_block) {
        const long long piece = item % table.num_pieces;
        const long long begin = piece * table.piece_nbytes;
        const long long padded = (table.nbytes + STRIDE_NBYTES - 1) / STRIDE_NBYTES * STRIDE_NBYTES;
        const long long end = begin + table.piece_nbytes < padded ? begin + table.piece_nbytes : padded;
        const char* block = reinterpret_cast<const char*>(table.blocks[item / table.num_pieces]);
        unsigned sum = sum_piece(block, table.nbytes, begin, end);
        // A checksum begins with ones in front of the block, and is told inverted.
        if (piece == 0) sum ^= ~multiply(~0u, power_of_x(unsigned(8 * table.nbytes % ORDER)));
        if (threadIdx.x % WARP == 0) reinterpret_cast<unsigned*>(table.sums)[item] = sum;
    }
}
