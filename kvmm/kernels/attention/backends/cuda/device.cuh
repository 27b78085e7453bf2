// What kernels for NVIDIA GPUs share: instructions that C++ does not have, and addresses. Where RESIDUAL is 3, the model's
// dtype is bfloat16, else float16.

#pragma once

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__

DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float infinity() { return __int_as_float(0x7f800000); }

DEVICE float2 halves_to_floats(unsigned halves) {
    float2 y;
    asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(y.x), "=f"(y.y)
        : "r"(halves));
    return y;
}

DEVICE unsigned largest_halves(unsigned x, unsigned y) {  // of magnitudes, two at once
    unsigned z;
    asm("{ .reg .b32 a, b; abs.f16x2 a, %1; abs.f16x2 b, %2; max.f16x2 %0, a, b; }" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

DEVICE float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// c += a * b: a 16 x 32 unsigned bytes, b 32 x 8 signed bytes
DEVICE void mma(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}

// c += a * b in the model's dtype, accumulated in float32: a 16 x 16, b 16 x 8
DEVICE void mma_dense(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
#if RESIDUAL == 3
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE unsigned to_dense(float x, float y) {  // x in the lower half
    unsigned z;
#if RESIDUAL == 3
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));
#endif
    return z;
}

DEVICE void prefetch(const Byte* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

DEVICE unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// Four matrices of 8 rows of 16 bytes in shared memory: `row` is that of row lane % 8 of matrix lane / 8. Lane 4 g + t
// has word t of row g of each, in registers that follow each other as an mma wants them.
DEVICE void load_matrices(unsigned* x, const Byte* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

DEVICE void load_two_matrices(unsigned* x, const Byte* row) {  // rows of lanes 0 to 15
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(shared_address(row))
                 : "memory");
}

// As load_matrices, with words t of columns g: lane 4 g + t has rows 2 t and 2 t + 1 of column g of each.
DEVICE void load_transposed(unsigned* x, const Byte* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Until the kernel that writes the query has ended; what it does not write may be read before. The kernel that follows
// may then be put on multiprocessors that have room: all in front of this one has ended then.
DEVICE void wait_for_query() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The kernel that follows may be put on multiprocessors that have room, for a query that was there before this one.
DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Bytes to shared memory, 16 a lane at a time; fetches end in the order in which they began.
DEVICE void fetch_16(Byte* to, const Byte* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void fetch_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void fetch_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
    __syncwarp();
}
#endif

extern __shared__ __align__(128) Byte shared[];

// The compiler is to keep this sum in a register and to put constants into the instruction.
DEVICE unsigned kept(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}

DEVICE constexpr int ceil_to(int x, int n) { return (x + n - 1) / n * n; }
DEVICE constexpr int smaller(int x, int y) { return x < y ? x : y; }

constexpr float NO_TOKEN = -65536.0f;  // no logit is as low but those of slots without a token
constexpr float NO_SLOT = -1e20f;  // a bias below it: there is no token
constexpr float LOG2_E = 1.4426950408889634f;

template <int TYPE>
DEVICE float load_number(const Byte* row, int index) {
    if constexpr (TYPE == 2) return ((const float*)row)[index];
    const unsigned bits = ((const unsigned short*)row)[index];
    return TYPE == 3 ? __uint_as_float(bits << 16) : halves_to_floats(bits).x;
}

DEVICE int group_of(const int* map, int groups, int page) {
    if (!map) return page;
    const int group = map[page];
    return max(0, min(group < 0 ? group + groups : group, groups - 1));  // behind the pages in use anything may stand
}

DEVICE const Byte* pages_of(const Paged& store, int batch, int head, int lane) {
    return store.data + 16 * lane + batch * store.batch + head * store.head;
}

// Index of the first of some ascending numbers that is not below `least`, by all lanes together.
DEVICE int first_not_below(const int* numbers, int count, int least, int lane) {
    int low = 0, high = count;
    while (high - low > 32) {
        const int stride = (high - low + 31) / 32, at = low + lane * stride;
        const int below = __popc(__ballot_sync(0xffffffffu, at < high && numbers[at] < least));
        high = min(high, low + below * stride);
        if (below) low += (below - 1) * stride + 1;
    }
    const int at = low + lane;
    return low + __popc(__ballot_sync(0xffffffffu, at < high && numbers[at] < least));
}
