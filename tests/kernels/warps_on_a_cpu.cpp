// Runs attention.cu, or angle_attention.cu, on a CPU: lanes are coroutines that stop wherever lanes of a warp or a block meet, and the few
// instructions that C++ does not have are written out. Copies to shared memory happen as late as the kernel allows, and
// what they will overwrite is spoilt when they are asked for, so that a missing wait shows. In what order warps run is
// not tried: races_on_a_cpu.h finds where it matters.

#include "variant.cuh"

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using std::max;
using std::min;

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static struct { unsigned x, y, z; } threadIdx, blockIdx;

#define DEVICE inline
#define __global__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

constexpr int SHARED_SIZE = 1 << 20, LANES = 32 * WARPS;
extern Byte shared[];

#define UNCHECKED __attribute__((noipa, no_sanitize("thread")))

[[noreturn]] static UNCHECKED void fail(const char* what) {
    fprintf(stderr, "%s: %s\n", SOURCE, what);
    abort();
}

struct Lane {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
    unsigned meetings;
};
static std::vector<Lane> lanes(LANES);
static ucontext_t scheduler;
static unsigned given[2][LANES][8];  // what lanes bring to the meetings of their warp

#include "races_on_a_cpu.h"

static void pause() {
    compare_written();
    swapcontext(&lanes[threadIdx.x].context, &scheduler);
}

// All lanes of a warp bring `value`; what they brought is returned.
template <class T>
static unsigned (*meet(const T& value))[8] {
    unsigned(*brought)[8] = given[++lanes[threadIdx.x].meetings & 1];
    memcpy(brought[threadIdx.x], &value, sizeof value);
    pause();
    return brought;
}

static void __syncwarp() {
    meet(0);
    warp_rounds[threadIdx.x]++;
}

static void __syncthreads() {
    static int arrived, round;
    const int mine = round;
    compare_written();
    if (++arrived == LANES) arrived = 0, round++, block_rounds++;
    while (round == mine) pause();
}

static float __shfl_xor_sync(unsigned, float x, int mask) {
    float y;
    memcpy(&y, meet(x)[threadIdx.x ^ mask], 4);
    return y;
}

static float __shfl_sync(unsigned, float x, int lane) {
    float y;
    memcpy(&y, meet(x)[threadIdx.x / 32 * 32 + lane], 4);
    return y;
}

static int __shfl_sync(unsigned, int x, int lane) { return (int)meet(x)[threadIdx.x / 32 * 32 + lane][0]; }

static unsigned __ballot_sync(unsigned, bool x) {
    auto brought = meet((unsigned)x) + threadIdx.x / 32 * 32;
    unsigned found = 0;
    for (int i = 0; i < 32; i++) found |= brought[i][0] << i;
    return found;
}

static int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }

static unsigned __shfl_xor_sync(unsigned, unsigned x, int mask) { return meet(x)[threadIdx.x ^ mask][0]; }

static bool __all_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) == 0xffffffffu; }
static bool __any_sync(unsigned, int x) {
    auto brought = meet(x) + threadIdx.x / 32 * 32;
    return std::any_of(brought, brought + 32, [](const unsigned* y) { return y[0] != 0; });
}

static void mma(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    const unsigned operands[6] = {a0, a1, a2, a3, b.x, b.y};
    auto brought = meet(operands) + threadIdx.x / 32 * 32;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 32; k++) {
            const int word = k % 16 / 4, byte = k % 4 * 8;
            const unsigned left = brought[row % 8 * 4 + word][k / 16 * 2 + row / 8] >> byte & 255;
            c[i] += (int)left * (signed char)(brought[column * 4 + word][4 + k / 16] >> byte & 255);
        }
    }
}

template <int COUNT = 4>
static void load_matrices(unsigned* x, const Byte* row) {
    if (threadIdx.x % 32 < 8 * COUNT && (row - shared) % 16) fail("a row of a matrix is not aligned");
    auto brought = meet(row) + threadIdx.x / 32 * 32;
    for (int i = 0; i < COUNT; i++) {
        memcpy(&row, brought[8 * i + threadIdx.x % 32 / 4], sizeof row);
        memcpy(x + i, row + threadIdx.x % 4 * 4, 4);
    }
}
static void load_two_matrices(unsigned* x, const Byte* row) { load_matrices<2>(x, row); }

static void load_transposed(unsigned* x, const Byte* row) {
    if ((row - shared) % 16) fail("a row of a matrix is not aligned");
    auto brought = meet(row) + threadIdx.x / 32 * 32;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; i++) {
        x[i] = 0;
        for (int k = 0; k < 2; k++) {
            memcpy(&row, brought[8 * i + 2 * t + k], sizeof row);
            x[i] |= (unsigned)*(const uint16_t*)(row + 2 * g) << 16 * k;
        }
    }
}

template <class To, class From>
static To bits_of(From x) {
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static float infinity() { return INFINITY; }
static float exp2_approx(float x) { return exp2f(x); }
static float log2_approx(float x) { return log2f(x); }
static float reciprocal_approx(float x) { return 1 / x; }
static unsigned __float_as_uint(float x) { return bits_of<unsigned>(x); }
static float __uint_as_float(unsigned x) { return bits_of<float>(x); }
static float2 halves_to_floats(unsigned x) {
    return {(float)bits_of<_Float16>((uint16_t)x), (float)bits_of<_Float16>((uint16_t)(x >> 16))};
}
static unsigned largest_halves(unsigned x, unsigned y) {
    const float2 a = halves_to_floats(x), b = halves_to_floats(y);
    const auto half = [](float p, float q) { return bits_of<uint16_t>((_Float16)fmaxf(fabsf(p), fabsf(q))); };
    return half(a.x, b.x) | (unsigned)half(a.y, b.y) << 16;
}
static unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) result |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return result;
}

static float from_half(unsigned x) {  // of the model's dtype
    return RESIDUAL == 3 ? bits_of<float>(x << 16) : (float)bits_of<_Float16>((uint16_t)x);
}
static unsigned to_half(float x) {
    if (RESIDUAL != 3) return bits_of<uint16_t>((_Float16)x);
    const unsigned bits = bits_of<unsigned>(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static unsigned to_dense(float x, float y) { return to_half(x) | to_half(y) << 16; }

static void mma_dense(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    const unsigned operands[6] = {a0, a1, a2, a3, b0, b1};
    auto brought = meet(operands) + threadIdx.x / 32 * 32;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 16; k++) {
            const int lane = k % 8 / 2, shift = k % 2 * 16;
            const unsigned left = brought[row % 8 * 4 + lane][k / 8 * 2 + row / 8] >> shift & 0xffff;
            c[i] += from_half(left) * from_half(brought[column * 4 + lane][4 + k / 8] >> shift & 0xffff);
        }
    }
}

#if HALF_PRODUCTS  // which only attention.cu has
static float half_of(unsigned x, int i) { return (float)bits_of<_Float16>((uint16_t)(x >> 16 * i)); }
template <class Of>
static unsigned halves_of(Of of) {
    return bits_of<uint16_t>((_Float16)of(0)) | (unsigned)bits_of<uint16_t>((_Float16)of(1)) << 16;
}
static unsigned to_halves(float x, float y) {
    return halves_of([&](int i) { return i ? y : x; });
}
static unsigned multiply_halves(unsigned x, unsigned y) {
    return halves_of([&](int i) { return half_of(x, i) * half_of(y, i); });
}
static unsigned multiply_add_halves(unsigned x, unsigned y, unsigned z) {
    return halves_of([&](int i) { return (double)half_of(x, i) * half_of(y, i) + half_of(z, i); });
}

static void mma_half(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    const unsigned operands[6] = {a0, a1, a2, a3, b0, b1};
    auto brought = meet(operands) + threadIdx.x / 32 * 32;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 16; k++) {
            const unsigned left = brought[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8];
            c[i] += half_of(left, k % 2) * half_of(brought[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
        }
    }
}
#endif

static void prefetch(const Byte*) {}

static void wait_for_query() {}
static void launch_dependents() {}

struct Copy { Byte* to; const Byte* from; };
static std::vector<Copy> asked[LANES];
static std::vector<std::vector<Copy>> under_way[LANES];

static void fetch_16(Byte* to, const Byte* from) {
    if ((uintptr_t)from % 16 || (to - shared) % 16) fail("a copy is not aligned");
    *(uint4*)to = {0xABABABAB, 0xABABABAB, 0xABABABAB, 0xABABABAB};
    asked[threadIdx.x].push_back({to, from});
}
static void fetch_end() {
    under_way[threadIdx.x].push_back(asked[threadIdx.x]);
    asked[threadIdx.x].clear();
}
template <int PENDING>
static void fetch_wait() {
    auto& fetches = under_way[threadIdx.x];
    while ((int)fetches.size() > PENDING) {
        for (const Copy& copy : fetches[0]) *(uint4*)copy.to = *(const uint4*)copy.from;
        fetches.erase(fetches.begin());
    }
    __syncwarp();
}

#include SOURCE

Byte shared[SHARED_SIZE] __attribute__((aligned(128)));
static const Arguments* arguments;

static void run_lane() {
    split_kernel(*arguments);
    lanes[threadIdx.x].done = true;
    pause();
}

extern "C" void launch(const Arguments* args, int grid_x, int grid_y, int grid_z, int shared_bytes) {
    arguments = args;
    // libraries stay loaded, so what is large goes with the call
    users = (Users*)calloc(SHARED_SIZE, sizeof(Users));
    for (Lane& lane : lanes) lane.stack.resize(1 << 16);
    for (int block = 0; block < grid_x * grid_y * grid_z; block++) {
        blockIdx.x = block % grid_x, blockIdx.y = block / grid_x % grid_y, blockIdx.z = block / grid_x / grid_y;
        memset(shared, 0xFF, SHARED_SIZE);
        block_rounds++;
        for (Lane& lane : lanes) {
            lane.done = false, lane.meetings = 0;
            getcontext(&lane.context);
            lane.context.uc_stack.ss_sp = lane.stack.data(), lane.context.uc_stack.ss_size = lane.stack.size();
            lane.context.uc_link = nullptr;
            makecontext(&lane.context, run_lane, 0);
        }
        for (bool busy = true; busy;) {
            busy = false;
            for (int i = 0; i < LANES; i++) {
                if (lanes[i].done) continue;
                busy = true;
                threadIdx.x = i;
                swapcontext(&scheduler, &lanes[i].context);
            }
        }
        for (int i = shared_bytes; i < SHARED_SIZE; i++)
            if (shared[i] != 0xFF) fail("more shared memory is written than a block has");
    }
    for (Lane& lane : lanes) std::vector<char>().swap(lane.stack);
    free(users);
}
