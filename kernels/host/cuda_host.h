// The part of CUDA C++ that the kernels use, for g++: the very same .cu files run on a CPU in tests.
//
// A grid is run block by block and warp by warp. The 32 lanes of a warp are fibers of one thread: each runs until it
// ends or meets a warp shuffle, where it waits for the others, so lanes exchange values as they do on a GPU. Never
// part of the product: it exists to execute the kernels under a debugger, a sanitizer or guard pages.
#pragma once

#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <memory>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct uint2 {
    unsigned int x, y;
} __attribute__((aligned(8)));

struct uint4 {
    unsigned int x, y, z, w;
} __attribute__((aligned(16)));

struct dim3 {
    unsigned x, y, z;
};

static thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// Streaming loads and stores. A misaligned address faults on a GPU, so it ends the program here too.
template <typename T>
inline T __ldcs(const T* source) {
    if (reinterpret_cast<size_t>(source) % sizeof(T)) __builtin_trap();
    return *source;
}

template <typename T>
inline void __stcs(T* destination, T value) {
    if (reinterpret_cast<size_t>(destination) % sizeof(T)) __builtin_trap();
    *destination = value;
}

inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

namespace host {

constexpr unsigned LANES = 32;
constexpr size_t STACK_NBYTES = 64 << 10;

struct Fiber {
    ucontext_t context;
    bool ended;
    unsigned offered;
    std::unique_ptr<char[]> stack{new char[STACK_NBYTES]};
};

struct Warp {
    ucontext_t scheduler;
    Fiber lanes[LANES];
    void (*kernel)(const void*);
    const void* parameters;
};

static thread_local Warp* warp;

inline unsigned lane() { return threadIdx.x % LANES; }

inline void run_lane() {
    warp->kernel(warp->parameters);
    warp->lanes[lane()].ended = true;
}

// Let every lane run to its next shuffle or to its end; false once all have ended.
inline bool step(unsigned first_thread) {
    bool running = false;
    for (unsigned index = 0; index < LANES; index++) {
        Fiber& fiber = warp->lanes[index];
        if (fiber.ended) continue;
        threadIdx.x = first_thread + index;
        swapcontext(&warp->scheduler, &fiber.context);
        running |= !fiber.ended;
    }
    return running;
}

inline void run_warp(unsigned first_thread) {
    for (Fiber& fiber : warp->lanes) {
        fiber.ended = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK_NBYTES;
        fiber.context.uc_link = &warp->scheduler;
        makecontext(&fiber.context, run_lane, 0);
    }
    while (step(first_thread)) {
    }
}

inline void run_grid(unsigned blocks, unsigned threads, void (*kernel)(const void*), const void* parameters) {
    std::unique_ptr<Warp> owned(new Warp);
    warp = owned.get();
    warp->kernel = kernel;
    warp->parameters = parameters;
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    threadIdx = blockIdx = {0, 0, 0};
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (unsigned first_thread = 0; first_thread < threads; first_thread += LANES) run_warp(first_thread);
    warp = nullptr;
}

}  // namespace host

// Every lane of the warp must take part. A lane comes back once all have offered, and offers again only after all
// have come back: the value that it reads is the one of this exchange.
inline unsigned __shfl_xor_sync(unsigned, unsigned value, int mask) {
    host::Fiber& mine = host::warp->lanes[host::lane()];
    const unsigned thread = threadIdx.x;
    mine.offered = value;
    swapcontext(&mine.context, &host::warp->scheduler);
    const unsigned taken = host::warp->lanes[(thread % host::LANES) ^ mask].offered;
    swapcontext(&mine.context, &host::warp->scheduler);
    return taken;
}

inline float __shfl_xor_sync(unsigned lanes, float value, int mask) {
    return __uint_as_float(__shfl_xor_sync(lanes, __float_as_uint(value), mask));
}

// Exports `name` for ctypes: runs the kernel over a grid, its one parameter behind a pointer.
#define HOST_KERNEL(name, Parameters)                                                                       \
    extern "C" void run_##name(unsigned blocks, unsigned threads, const Parameters* parameters) {           \
        host::run_grid(                                                                                     \
            blocks, threads, [](const void* given) { name(*static_cast<const Parameters*>(given)); }, parameters); \
    }
