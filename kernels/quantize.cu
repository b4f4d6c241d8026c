// Stores KV as one byte an element with a scale for every token and head, and brings it back.
//
// quantize_* is a store, dequantize_* a load; both copy between an engine's paged cache and slots, as gather_scatter.cu
// does. tierstore/device/quantization.py builds the table and holds the same arithmetic in numpy, bit for bit: nothing
// here depends on the GPU's own conversions, so a block is the same on every GPU and in the tests on a CPU.
//
// In a slot lie the codes of all elements, in the layout's order, and from scales_offset on the scales, float32, one a
// group. A group is what one head holds of one token: the elements that share a scale. One warp takes one group.
// Bytes are written one a lane: slots should be GPU memory, from where copy units move them on.

typedef unsigned long long Count;
typedef unsigned char Byte;
typedef unsigned short Half;

constexpr int SEGMENTS_MAX = 40;
constexpr int BLOCKS_MAX = 128;
constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float SMALLEST = 7.8886090522101181e-31f;  // 2^-100: a group that stays below it is stored as zeros

struct Segment {
    long long base;
    long long block_stride;
    long long num_rows;
    long long row_stride;
    long long row_nbytes;
    long long slot_offset;
};

struct Block {
    long long slot;
    long long id;
};

// As the table of gather_scatter.cu; rows and offsets are those of the cache, whole groups each.
struct QuantizeTable {
    long long group;          // elements
    long long scales_offset;  // bytes into a slot
    int num_segments;
    int num_blocks;
    Count groups;  // the most that any segment has
    Segment segments[SEGMENTS_MAX];
    Block blocks[BLOCKS_MAX];
};

struct Bfloat16 {
    typedef Half Stored;
    static __device__ __forceinline__ float load(Half bits) { return __uint_as_float(unsigned(bits) << 16); }
    static __device__ __forceinline__ Half store(float value) {
        const unsigned bits = __float_as_uint(value);
        if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
        return Half((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    }
};

struct Float16 {
    typedef Half Stored;
    static __device__ __forceinline__ float load(Half bits) {
        const unsigned sign = unsigned(bits & 0x8000) << 16;
        const unsigned magnitude = bits & 0x7fff;
        if (magnitude >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
        // The exponent is moved by a multiplication, which is exact for denormal halves too.
        return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 5.192296858534828e33f));
    }
    static __device__ __forceinline__ Half store(float value) {
        const unsigned bits = __float_as_uint(value);
        const Half sign = Half(bits >> 16 & 0x8000);
        const unsigned magnitude = bits & 0x7fffffff;
        if (magnitude > 0x7f800000) return 0x7e00;
        if (magnitude >= 0x477ff000) return sign | 0x7c00;  // from 65520 on the nearest is infinity
        if (magnitude < 0x38800000) return sign | Half(rintf(__uint_as_float(magnitude) * 16777216.0f));
        return sign | Half((magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000) >> 13);
    }
};

struct Float32 {
    typedef float Stored;
    static __device__ __forceinline__ float load(float value) { return value; }
    static __device__ __forceinline__ float store(float value) { return value; }
};

// Codes round to the nearest, ties to even.
struct E4m3 {
    static constexpr float LIMIT = 448.0f;
    static __device__ __forceinline__ Byte encode(float value) {
        const unsigned bits = __float_as_uint(value);
        const Byte sign = Byte(bits >> 24 & 0x80);
        const unsigned magnitude = bits & 0x7fffffff;
        if (magnitude >= 0x43e00000) return sign | 0x7e;
        if (magnitude < 0x3c800000) return sign | Byte(rintf(__uint_as_float(magnitude) * 512.0f));
        return sign | Byte(((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3));
    }
    static __device__ __forceinline__ float decode(Byte code) {
        const unsigned sign = unsigned(code & 0x80) << 24;
        const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
        const float small = float(mantissa) * 0.001953125f;
        const unsigned magnitude = exponent ? (exponent + 120) << 23 | mantissa << 20 : __float_as_uint(small);
        return __uint_as_float(sign | magnitude);
    }
};

struct Int8 {
    static constexpr float LIMIT = 127.0f;
    static __device__ __forceinline__ Byte encode(float value) {
        return Byte(int(fminf(fmaxf(rintf(value), -LIMIT), LIMIT)));
    }
    static __device__ __forceinline__ float decode(Byte code) { return float(static_cast<signed char>(code)); }
};

// What one warp works on; element 0 of the group, its code and its scale.
struct Group {
    char* elements;
    Byte* codes;
    float* scale;
};

template <typename Stored>
__device__ __forceinline__ bool find_group(const QuantizeTable& table, Count item, Group& found) {
    const Count pair = item / table.groups;
    const Segment& segment = table.segments[pair % table.num_segments];
    const Block& block = table.blocks[pair / table.num_segments];
    const long long group_nbytes = table.group * sizeof(Stored);
    const long long groups_per_row = segment.row_nbytes / group_nbytes;
    const long long group = item % table.groups;
    const long long row = group / groups_per_row;
    if (row >= segment.num_rows) return false;
    const long long in_slot = (segment.slot_offset + group * group_nbytes) / sizeof(Stored);
    found.elements = reinterpret_cast<char*>(segment.base + block.id * segment.block_stride + row * segment.row_stride +
                                             group % groups_per_row * group_nbytes);
    found.codes = reinterpret_cast<Byte*>(block.slot + in_slot);
    found.scale = reinterpret_cast<float*>(block.slot + table.scales_offset) + in_slot / table.group;
    return true;
}

// The larger of two sizes; NaN where either is.
__device__ __forceinline__ float larger(float one, float other) {
    return one <= other || other != other ? other : one;
}

template <typename Element, typename Code>
__device__ __forceinline__ void quantize_groups(const QuantizeTable& table) {
    typedef typename Element::Stored Stored;
    const unsigned lane = threadIdx.x % WARP;
    const Count warps_per_block = blockDim.x / WARP;
    const Count num_items = Count(table.num_blocks) * table.num_segments * table.groups;
    for (Count item = blockIdx.x * warps_per_block + threadIdx.x / WARP; item < num_items;
         item += gridDim.x * warps_per_block) {
        Group group;
        if (!find_group<Stored>(table, item, group)) continue;  // the whole warp alike
        const Stored* elements = reinterpret_cast<const Stored*>(group.elements);
        float largest = 0.0f;
        for (long long at = lane; at < table.group; at += WARP) {
            const float size = fabsf(Element::load(elements[at]));
            largest = larger(largest, size);
        }
        for (int step = WARP / 2; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, largest, step);
            largest = larger(largest, other);
        }
        const bool finite = largest <= 3.4028234663852886e38f;
        const bool nothing = !(largest >= SMALLEST);
        const float inverse = finite && !nothing ? Code::LIMIT / largest : 0.0f;
        for (long long at = lane; at < table.group; at += WARP)
            group.codes[at] = inverse == 0.0f ? Byte(0) : Code::encode(Element::load(elements[at]) * inverse);
        // What is not finite makes its group NaN: it must not come back as numbers.
        const float scale = nothing ? 0.0f : largest / Code::LIMIT;
        if (lane == 0) *group.scale = finite ? scale : __uint_as_float(0x7fc00000);
    }
}

template <typename Element, typename Code>
__device__ __forceinline__ void dequantize_groups(const QuantizeTable& table) {
    typedef typename Element::Stored Stored;
    const unsigned lane = threadIdx.x % WARP;
    const Count warps_per_block = blockDim.x / WARP;
    const Count num_items = Count(table.num_blocks) * table.num_segments * table.groups;
    for (Count item = blockIdx.x * warps_per_block + threadIdx.x / WARP; item < num_items;
         item += gridDim.x * warps_per_block) {
        Group group;
        if (!find_group<Stored>(table, item, group)) continue;
        Stored* elements = reinterpret_cast<Stored*>(group.elements);
        const float scale = *group.scale;
        for (long long at = lane; at < table.group; at += WARP)
            elements[at] = Element::store(Code::decode(group.codes[at]) * scale);
    }
}

#define QUANTIZE_KERNELS(element, Element, code, Code)                                 \
    extern "C" __global__ void __launch_bounds__(256, 2)                                  \
        quantize_##element##_##code(const __grid_constant__ QuantizeTable table) {     \
        quantize_groups<Element, Code>(table);                                         \
    }                                                                                  \
    extern "C" __global__ void __launch_bounds__(256, 2)                                  \
        dequantize_##element##_##code(const __grid_constant__ QuantizeTable table) {   \
        dequantize_groups<Element, Code>(table);                                       \
    }

QUANTIZE_KERNELS(bfloat16, Bfloat16, fp8_e4m3, E4m3)
QUANTIZE_KERNELS(float16, Float16, fp8_e4m3, E4m3)
QUANTIZE_KERNELS(float32, Float32, fp8_e4m3, E4m3)
QUANTIZE_KERNELS(bfloat16, Bfloat16, int8, Int8)
QUANTIZE_KERNELS(float16, Float16, int8, Int8)
QUANTIZE_KERNELS(float32, Float32, int8, Int8)
