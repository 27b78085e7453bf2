// Split kernel of decode attention over packed digits, on int8 tensor cores. Compiled at run time; see cuda.py.
//
// One warp takes whole pages of one sequence and KV head, one after the other. Codes are the left operand of
// mma.m16n8k32: a tile of scores is 16 tokens by 8 columns, the high and the low int8 part of four query heads, so no
// row or column is wasted on four heads. Bytes go to shared memory by bulk copies, some pages ahead, and from there to
// registers in the order that the operands want: dimensions and tokens may be permuted freely as long as both operands
// are. One AND (and for values one shift) turns a 32-bit word into four operands.
//
// Lane 4 g + t holds, for head t, tokens 2 g and 2 g + 1 of every slice of 16 tokens. At every code width slice i of a
// page sits in bits b * (i / tiles) of row tile i % tiles, where tiles = PAGE * b / 128: planes of different widths add
// into the same accumulators.
//
// Logits are in units of log 2. Probabilities are two int8 parts, of 127 and 127 * 254 steps of the page's largest.

typedef unsigned char Byte;

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__

DEVICE float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float infinity() { return __int_as_float(0x7f800000); }

DEVICE float half_to_float(unsigned short x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

// c += a * b: a 16 x 32 unsigned bytes, b 32 x 8 signed bytes
DEVICE void mma(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}

DEVICE unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

#if BULK  // sm_90: one lane asks the copy engine, a barrier in shared memory counts the bytes that have come
DEVICE void barriers_init(unsigned barriers, int count, int lane) {
    if (lane == 0) {
        for (int i = 0; i < count; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * i) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
}
DEVICE bool fetches(int lane) { return lane == 0; }
DEVICE void fetch_begin(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void fetch(Byte* to, const Byte* from, int bytes, unsigned barrier, int) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
DEVICE void fetch_end() {}
DEVICE void fetch_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!done);
}
#else  // sm_80: every lane copies, 16 bytes at a time; fetches end in the order in which they began
DEVICE void barriers_init(unsigned, int, int) {}
DEVICE bool fetches(int) { return true; }
DEVICE void fetch_begin(unsigned, int) {}
DEVICE void fetch(Byte* to, const Byte* from, int bytes, unsigned, int lane) {
    for (int i = 16 * lane; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)), "l"(from + i) : "memory");
}
DEVICE void fetch_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void fetch_wait(unsigned, unsigned) {  // the oldest of 2 * STAGES
    asm volatile("cp.async.wait_group %0;" ::"n"(2 * STAGES - 1) : "memory");
    __syncwarp();
}
#endif
#endif

// Where the page `page` of sequence b and head h starts: data + b * batch + h * head + page * page_bytes. Bytes.
struct Paged {
    const Byte* data;
    long long batch, head, page;
};

struct Arguments {
    const Byte* query;  // int8 [B, H, G, 2 * rows, J]
    const float* query_weight;  // [B, H, G, rows]
    const float* query_zero;
    Paged keys[2], values[2];
    Paged key_norm, value_norm, value_scale, value_zero;
    const float* bias;  // [B, slots]
    const float* group_scale;  // [B, H, value_groups, VALUE_DIGITS], VALUE_GROUPS only
    const int* num_pages;
    const int* key_group;  // [pages], or null: the page's index
    const int* value_group;
    float *out_m, *out_l, *out_acc, *out_zero;
    long long bias_batch;
    int pages, heads, rows, splits, key_groups, value_groups;
};

// --- what is known when the kernel is compiled: PAGE, ROW_TILES (tiles of four heads), KEY_DIGITS_0/1, KEY_BITS_0/1,
// VALUE_DIGITS_0/1, VALUE_BITS_0/1 (second plane: 0 if there is none), KEY_GROUPS, VALUE_GROUPS (0 or 1),
// KEY_NORM, VALUE_NORM, VALUE_TOKEN (0: none, 1: float16, 2: float32), BIAS (0, 1, 2: aligned to 16 bytes),
// WARPS, STAGES, WARP_BYTES, BULK

DEVICE constexpr int ceil_to(int x, int n) { return (x + n - 1) / n * n; }
DEVICE constexpr int smaller(int x, int y) { return x < y ? x : y; }

constexpr int SLICES = PAGE / 16;
constexpr int COLUMNS = 8 * ROW_TILES;
constexpr int KEY_WIDTH_0 = ceil_to(KEY_DIGITS_0, 32), KEY_WIDTH = KEY_WIDTH_0 + ceil_to(KEY_DIGITS_1, 32);
constexpr int VALUE_WIDTH_0 = ceil_to(VALUE_DIGITS_0, 32), VALUE_WIDTH = VALUE_WIDTH_0 + ceil_to(VALUE_DIGITS_1, 32);
constexpr int STEPS = KEY_WIDTH / 32;
constexpr int TILES_0 = VALUE_DIGITS_0 / 16, TILES = TILES_0 + VALUE_DIGITS_1 / 16;

// a stage of keys in shared memory: codes, norms, the query of the page's group, bias
constexpr int KEY_BYTES_0 = PAGE * KEY_BITS_0 / 8 * KEY_DIGITS_0, KEY_BYTES_1 = PAGE * KEY_BITS_1 / 8 * KEY_DIGITS_1;
constexpr int KEY_NORM_AT = KEY_BYTES_0 + KEY_BYTES_1, KEY_NORM_BYTES = PAGE * 2 * KEY_NORM;
constexpr int QUERY_AT = KEY_NORM_AT + KEY_NORM_BYTES, QUERY_BYTES = KEY_GROUPS * COLUMNS * KEY_WIDTH;
constexpr int BIAS_AT = QUERY_AT + QUERY_BYTES, BIAS_BYTES = BIAS == 2 ? PAGE * 4 : 0;
constexpr int KEY_STAGE = ceil_to(BIAS_AT + BIAS_BYTES + 16, 128);  // rows of 16 digits are read 16 bytes too far
// a stage of values: codes, norms, a scale and a zero point a token
constexpr int VALUE_BYTES_0 = PAGE * VALUE_BITS_0 / 8 * VALUE_DIGITS_0;
constexpr int VALUE_BYTES_1 = PAGE * VALUE_BITS_1 / 8 * VALUE_DIGITS_1;
constexpr int VALUE_NORM_AT = VALUE_BYTES_0 + VALUE_BYTES_1, VALUE_NORM_BYTES = PAGE * 2 * VALUE_NORM;
constexpr int SCALE_AT = VALUE_NORM_AT + VALUE_NORM_BYTES, TOKEN_BYTES = PAGE * 2 * VALUE_TOKEN;
constexpr int GROUP_AT = SCALE_AT + 2 * TOKEN_BYTES, GROUP_BYTES = VALUE_GROUPS * VALUE_WIDTH * 4;
constexpr int VALUE_STAGE = ceil_to(GROUP_AT + GROUP_BYTES, 128);
// probabilities: a row of bytes a column; the padding spreads columns over the banks
constexpr int P_STRIDE = PAGE + 16;
constexpr int P_AT = STAGES * (KEY_STAGE + VALUE_STAGE), P_BYTES = COLUMNS * P_STRIDE;
// at the end a warp's part holds its sums
constexpr int SUM_STRIDE = VALUE_WIDTH + 8;
static_assert(P_AT + P_BYTES <= WARP_BYTES, "a warp's part of the shared memory is too small");
static_assert(ROW_TILES * 4 * SUM_STRIDE * 4 <= WARP_BYTES, "a warp's part of the shared memory is too small");
static_assert(KEY_WIDTH <= 256, "254 * high + low has to fit 31 bits");

constexpr float NO_TOKEN = -65536.0f;  // no logit is as low but those of slots without a token
constexpr float LOG2_E = 1.4426950408889634f, LOG2_127 = 6.9886846867721655f;
constexpr float MAGIC = 12582912.0f;  // 1.5 * 2 ** 23: adding it leaves the nearest integer in the low bits

DEVICE constexpr int plane_mask(int bits) { return bits == 8 ? -1 : ((1 << bits) - 1) * 0x01010101; }

// Bits a plane's codes are left of the byte's lowest in slice i, and where the slice's accumulator has them: a plane
// may be shifted right only.
DEVICE constexpr int key_shift(int bits, int slice) { return bits * (slice / (PAGE * bits / 128)); }
DEVICE constexpr int slice_shift(int slice) {
    return KEY_DIGITS_1 ? smaller(key_shift(KEY_BITS_0, slice), key_shift(KEY_BITS_1 ? KEY_BITS_1 : 1, slice))
                        : key_shift(KEY_BITS_0, slice);
}
DEVICE constexpr float power(int exponent) {
    return exponent < 0 ? 1.0f / (float)(1 << -exponent) : (float)(1 << exponent);
}

// 8 bytes of row `row` a step of 32 digits, in the order shared by codes and query: lane t has 16 bytes of every 64 and
// 8 of the last 32.
template <int WIDTH>
DEVICE void load_row(const Byte* row, int t, uint2* words) {
#pragma unroll
    for (int i = 0; i < WIDTH / 64; i++) {
        const uint4 chunk = *(const uint4*)(row + 64 * i + 16 * t);
        words[2 * i] = make_uint2(chunk.x, chunk.y);
        words[2 * i + 1] = make_uint2(chunk.z, chunk.w);
    }
    if constexpr (WIDTH % 64) words[WIDTH / 32 - 1] = *(const uint2*)(row + WIDTH / 64 * 64 + 8 * t);
}

template <int BITS, int DIGITS>
DEVICE void add_scores(
    const Byte* codes, int g, int t, const uint2* query, int (&scores)[ROW_TILES][SLICES][4]) {
    constexpr int WIDTH = ceil_to(DIGITS, 32), ROW_TILE = PAGE * BITS / 128, MASK = plane_mask(BITS);
#pragma unroll
    for (int tile = 0; tile < ROW_TILE; tile++) {
        uint2 first[WIDTH / 32], second[WIDTH / 32];
        const Byte* row = codes + (16 * tile + 2 * g) * DIGITS;
        load_row<WIDTH>(row, t, first);
        load_row<WIDTH>(row + DIGITS, t, second);
#pragma unroll
        for (int plane = 0; plane < 8 / BITS; plane++) {
            const int slice = plane * ROW_TILE + tile, left = slice_shift(slice), right = BITS * plane - left;
            const unsigned mask = (unsigned)MASK << left;
#pragma unroll
            for (int step = 0; step < WIDTH / 32; step++) {
                const unsigned a0 = (first[step].x >> right) & mask, a1 = (second[step].x >> right) & mask;
                const unsigned a2 = (first[step].y >> right) & mask, a3 = (second[step].y >> right) & mask;
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++) mma(scores[n][slice], a0, a1, a2, a3, query[n * STEPS + step]);
            }
        }
    }
}

// Two neighbouring numbers of a float16 (1) or float32 (2) row.
template <int TYPE>
DEVICE float2 load_pair(const Byte* row, int index) {
    if constexpr (TYPE == 1) {
        const unsigned word = *(const unsigned*)(row + 2 * index);
        return make_float2(half_to_float((unsigned short)word), half_to_float((unsigned short)(word >> 16)));
    } else {
        return *(const float2*)(row + 4 * index);
    }
}

template <int BITS>
DEVICE unsigned top_bits(unsigned word, int plane) {  // the plane's codes in the highest bits of each byte
    return (word << (8 - BITS - BITS * plane)) & ((unsigned)plane_mask(BITS) << (8 - BITS));
}

// Sums of one plane of values: sums[n][tile] of head t, rows 16 tile + g and 16 tile + g + 8.
template <int BITS, int DIGITS>
DEVICE void add_values(const Byte* codes, const Byte* p, int g, int t, const float (&factor)[ROW_TILES],
                       const float* group_scale, float (*sums)[TILES][2], int first_tile) {
    constexpr int ROW = PAGE * BITS / 8;  // bytes
    constexpr int WORDS = ROW >= 64 ? ROW / 16 : 2;  // of B a plane (a pair of planes where a row is 16 bytes) and lane
    constexpr int PLANES = ROW == 16 ? 4 / BITS : 8 / BITS;
    unsigned b[ROW_TILES][PLANES][WORDS];
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        const Byte* column = p + (8 * n + g) * P_STRIDE;
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++) {
            if constexpr (ROW == 16) {
                b[n][plane][0] = *(const unsigned*)(column + 32 * plane + 4 * t);
                b[n][plane][1] = *(const unsigned*)(column + 32 * plane + 16 + 4 * t);
            } else if constexpr (ROW == 32) {
                const uint2 words = *(const uint2*)(column + 32 * plane + 8 * t);
                b[n][plane][0] = words.x, b[n][plane][1] = words.y;
            } else {
#pragma unroll
                for (int i = 0; i < ROW / 64; i++) {
                    const uint4 words = *(const uint4*)(column + ROW * plane + 64 * i + 16 * t);
                    b[n][plane][4 * i] = words.x, b[n][plane][4 * i + 1] = words.y;
                    b[n][plane][4 * i + 2] = words.z, b[n][plane][4 * i + 3] = words.w;
                }
            }
        }
    }
#pragma unroll
    for (int tile = 0; tile < DIGITS / 16; tile++) {
        int products[ROW_TILES][4] = {};
        const Byte* row = codes + (16 * tile + g) * ROW;
        if constexpr (ROW == 16) {
            const unsigned first = *(const unsigned*)(row + 4 * t), second = *(const unsigned*)(row + 8 * ROW + 4 * t);
#pragma unroll
            for (int pair = 0; pair < PLANES; pair++) {
                const unsigned a0 = top_bits<BITS>(first, 2 * pair), a1 = top_bits<BITS>(second, 2 * pair);
                const unsigned a2 = top_bits<BITS>(first, 2 * pair + 1), a3 = top_bits<BITS>(second, 2 * pair + 1);
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++)
                    mma(products[n], a0, a1, a2, a3, make_uint2(b[n][pair][0], b[n][pair][1]));
            }
        } else {
            unsigned first[WORDS], second[WORDS];
            if constexpr (ROW == 32) {
                const uint2 x = *(const uint2*)(row + 8 * t), y = *(const uint2*)(row + 8 * ROW + 8 * t);
                first[0] = x.x, first[1] = x.y, second[0] = y.x, second[1] = y.y;
            } else {
#pragma unroll
                for (int i = 0; i < ROW / 64; i++) {
                    const uint4 x = *(const uint4*)(row + 64 * i + 16 * t);
                    const uint4 y = *(const uint4*)(row + 8 * ROW + 64 * i + 16 * t);
                    first[4 * i] = x.x, first[4 * i + 1] = x.y, first[4 * i + 2] = x.z, first[4 * i + 3] = x.w;
                    second[4 * i] = y.x, second[4 * i + 1] = y.y, second[4 * i + 2] = y.z, second[4 * i + 3] = y.w;
                }
            }
#pragma unroll
            for (int plane = 0; plane < PLANES; plane++) {
#pragma unroll
                for (int i = 0; i < WORDS; i += 2) {
                    const unsigned a0 = top_bits<BITS>(first[i], plane), a1 = top_bits<BITS>(second[i], plane);
                    const unsigned a2 = top_bits<BITS>(first[i + 1], plane), a3 = top_bits<BITS>(second[i + 1], plane);
#pragma unroll
                    for (int n = 0; n < ROW_TILES; n++)
                        mma(products[n], a0, a1, a2, a3, make_uint2(b[n][plane][i], b[n][plane][i + 1]));
                }
            }
        }
        float scale[2] = {1.0f, 1.0f};
        if constexpr (VALUE_GROUPS) scale[0] = group_scale[16 * tile + g], scale[1] = group_scale[16 * tile + g + 8];
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float product = (float)(254 * products[n][2 * i] + products[n][2 * i + 1]);
                const float weight = VALUE_GROUPS ? factor[n] * power(BITS - 8) * scale[i] : factor[n] * power(BITS - 8);
                sums[n][first_tile + tile][i] = fmaf(product, weight, sums[n][first_tile + tile][i]);
            }
        }
    }
}

DEVICE unsigned short low_bytes(float x, float y) {
    return (unsigned short)__byte_perm(__float_as_uint(x), __float_as_uint(y), 0x0040);
}

DEVICE float max_over_tokens(float x) {  // of the lanes with the same t
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 4));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
}

DEVICE float sum_over_tokens(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

DEVICE int group_of(const int* map, int groups, int page) {
    if (!map) return page;
    const int group = map[page];
    return group < 0 ? group + groups : group;
}

DEVICE const Byte* page_of(const Paged& store, int batch, int head, int page) {
    return store.data + batch * store.batch + head * store.head + page * store.page;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) split_digits(const Arguments args) {
    extern __shared__ __align__(128) Byte shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int split = blockIdx.x, batch = blockIdx.z;
    const int head = blockIdx.y % args.heads, first_row = blockIdx.y / args.heads * (4 * ROW_TILES);
    const int pages = args.num_pages ? min(*args.num_pages, args.pages) : args.pages;
    const int begin = (int)((long long)pages * split / args.splits) + warp;
    const int end = (int)((long long)pages * (split + 1) / args.splits);
    const int count = begin < end ? (end - begin + WARPS - 1) / WARPS : 0;
    const long long unit = (long long)batch * args.heads + head;

    Byte* const own = shared + warp * WARP_BYTES;
    Byte* const key_stages = own;
    Byte* const value_stages = own + STAGES * KEY_STAGE;
    Byte* const probabilities = own + P_AT;

    const int query_rows = min(2 * (args.rows - first_row), COLUMNS);
    auto query_of = [&](int group) {
        return args.query + ((unit * args.key_groups + group) * 2 * args.rows + 2 * first_row) * KEY_WIDTH;
    };

    const unsigned barriers = shared_address(shared + WARPS * WARP_BYTES) + warp * STAGES * 16;
    barriers_init(barriers, 2 * STAGES, lane);
    auto fetch_keys = [&](int index, int stage) {
        if (index < count && fetches(lane)) {
            const int page = begin + index * WARPS;
            const unsigned barrier = barriers + 16 * stage;
            Byte* const to = key_stages + stage * KEY_STAGE;
            fetch_begin(barrier, QUERY_AT + KEY_GROUPS * query_rows * KEY_WIDTH + BIAS_BYTES);
            fetch(to, page_of(args.keys[0], batch, head, page), KEY_BYTES_0, barrier, lane);
            if constexpr (KEY_DIGITS_1)
                fetch(to + KEY_BYTES_0, page_of(args.keys[1], batch, head, page), KEY_BYTES_1, barrier, lane);
            if constexpr (KEY_NORM)
                fetch(to + KEY_NORM_AT, page_of(args.key_norm, batch, head, page), KEY_NORM_BYTES, barrier, lane);
            if constexpr (KEY_GROUPS) {
                const int group = group_of(args.key_group, args.key_groups, page);
                fetch(to + QUERY_AT, query_of(group), query_rows * KEY_WIDTH, barrier, lane);
            }
            if constexpr (BIAS == 2) {
                const float* from = args.bias + batch * args.bias_batch + (long long)page * PAGE;
                fetch(to + BIAS_AT, (const Byte*)from, BIAS_BYTES, barrier, lane);
            }
        }
        fetch_end();
    };
    auto fetch_values = [&](int index, int stage) {
        if (index < count && fetches(lane)) {
            const int page = begin + index * WARPS;
            const unsigned barrier = barriers + 16 * stage + 8;
            Byte* const to = value_stages + stage * VALUE_STAGE;
            fetch_begin(barrier, GROUP_AT + GROUP_BYTES);
            fetch(to, page_of(args.values[0], batch, head, page), VALUE_BYTES_0, barrier, lane);
            if constexpr (VALUE_DIGITS_1)
                fetch(to + VALUE_BYTES_0, page_of(args.values[1], batch, head, page), VALUE_BYTES_1, barrier, lane);
            if constexpr (VALUE_NORM)
                fetch(to + VALUE_NORM_AT, page_of(args.value_norm, batch, head, page), VALUE_NORM_BYTES, barrier, lane);
            if constexpr (VALUE_TOKEN) {
                fetch(to + SCALE_AT, page_of(args.value_scale, batch, head, page), TOKEN_BYTES, barrier, lane);
                fetch(to + SCALE_AT + TOKEN_BYTES, page_of(args.value_zero, batch, head, page), TOKEN_BYTES, barrier, lane);
            }
            if constexpr (VALUE_GROUPS) {
                const int group = group_of(args.value_group, args.value_groups, page);
                const float* from = args.group_scale + (unit * args.value_groups + group) * VALUE_WIDTH;
                fetch(to + GROUP_AT, (const Byte*)from, GROUP_BYTES, barrier, lane);
            }
        }
        fetch_end();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        fetch_keys(stage, stage);
        fetch_values(stage, stage);
    }

    // The right operand of the scores: column g of a tile is row g of the query.
    uint2 query[ROW_TILES * STEPS];
    float weight[ROW_TILES], zero[ROW_TILES];
    auto load_query = [&](const Byte* rows) {
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            uint2* words = query + n * STEPS;
            if (8 * n + g < query_rows) {
                const Byte* row = rows + (8 * n + g) * KEY_WIDTH;
                load_row<KEY_WIDTH_0>(row, t, words);
                load_row<KEY_WIDTH - KEY_WIDTH_0>(row + KEY_WIDTH_0, t, words + KEY_WIDTH_0 / 32);
            } else {
#pragma unroll
                for (int i = 0; i < STEPS; i++) words[i] = make_uint2(0, 0);
            }
        }
    };
    auto load_weights = [&](int group) {
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            const int row = first_row + 4 * n + t;
            const long long at = (unit * args.key_groups + group) * args.rows + row;
            weight[n] = row < args.rows ? args.query_weight[at] : 0.0f;
            zero[n] = row < args.rows ? args.query_zero[at] : 0.0f;
        }
    };
    if constexpr (!KEY_GROUPS) {
        load_query(query_of(0));
        load_weights(0);
    } else if (count) {
        load_weights(group_of(args.key_group, args.key_groups, begin));
    }

    float top[ROW_TILES], total[ROW_TILES], total_zero[ROW_TILES], sums[ROW_TILES][TILES][2] = {};
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) top[n] = -infinity(), total[n] = total_zero[n] = 0.0f;

    int stage = 0;
    unsigned parity = 0;
    for (int index = 0; index < count; index++) {
        const int page = begin + index * WARPS;
        const Byte* const keys = key_stages + stage * KEY_STAGE;
        const Byte* const values = value_stages + stage * VALUE_STAGE;

        float2 bias[SLICES];
        if constexpr (BIAS == 1) {
            const float* from = args.bias + batch * args.bias_batch + (long long)page * PAGE + 2 * g;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) bias[slice] = make_float2(from[16 * slice], from[16 * slice + 1]);
        }

        fetch_wait(barriers + 16 * stage, parity);
        if constexpr (KEY_GROUPS) load_query(keys + QUERY_AT);
        int scores[ROW_TILES][SLICES][4] = {};
        add_scores<KEY_BITS_0, KEY_DIGITS_0>(keys, g, t, query, scores);
        if constexpr (KEY_DIGITS_1)
            add_scores<KEY_BITS_1 ? KEY_BITS_1 : 1, KEY_DIGITS_1 ? KEY_DIGITS_1 : 32>(
                keys + KEY_BYTES_0, g, t, query + KEY_WIDTH_0 / 32, scores);
        float2 norm[SLICES];
        if constexpr (KEY_NORM) {
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++)
                norm[slice] = load_pair<KEY_NORM>(keys + KEY_NORM_AT, 16 * slice + 2 * g);
        }
        if constexpr (BIAS == 2) {
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) bias[slice] = load_pair<2>(keys + BIAS_AT, 16 * slice + 2 * g);
        }
        __syncwarp();  // all lanes have read the keys
        fetch_keys(index + STAGES, stage);

        float2 value_norm[SLICES];
        if constexpr (VALUE_NORM || VALUE_TOKEN) {
            fetch_wait(barriers + 16 * stage + 8, parity);
            if constexpr (VALUE_NORM) {
#pragma unroll
                for (int slice = 0; slice < SLICES; slice++)
                    value_norm[slice] = load_pair<VALUE_NORM>(values + VALUE_NORM_AT, 16 * slice + 2 * g);
            } else {
#pragma unroll
                for (int slice = 0; slice < SLICES; slice++)
                    value_norm[slice] = load_pair<VALUE_TOKEN>(values + SCALE_AT, 16 * slice + 2 * g);
            }
        }

        float factor[ROW_TILES];
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            float2 x[SLICES];
            float largest = -infinity();
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const int* score = scores[n][slice];
                const float unit_weight = weight[n] * power(-slice_shift(slice));
                x[slice].x = fmaf((float)(254 * score[0] + score[1]), unit_weight, zero[n]);
                x[slice].y = fmaf((float)(254 * score[2] + score[3]), unit_weight, zero[n]);
                if constexpr (KEY_NORM) x[slice].x *= norm[slice].x, x[slice].y *= norm[slice].y;
                if constexpr (BIAS) {
                    x[slice].x = fmaf(bias[slice].x, LOG2_E, x[slice].x);
                    x[slice].y = fmaf(bias[slice].y, LOG2_E, x[slice].y);
                }
                largest = fmaxf(largest, fmaxf(x[slice].x, x[slice].y));
            }
            largest = fmaxf(max_over_tokens(largest), NO_TOKEN);  // a page without a token gets probabilities of 0
            const float new_top = fmaxf(top[n], largest);
            const float decay = exp2_approx(top[n] - new_top), rise = exp2_approx(largest - new_top);
            top[n] = new_top;
            float sum = 0.0f;
            if constexpr (VALUE_NORM || VALUE_TOKEN) {
                float sum_zero = 0.0f, most = 1e-30f;
#pragma unroll
                for (int slice = 0; slice < SLICES; slice++) {
                    const float2 p = make_float2(exp2_approx(x[slice].x - largest), exp2_approx(x[slice].y - largest));
                    sum += p.x + p.y;
                    if constexpr (VALUE_TOKEN) {
                        const float2 z = load_pair<VALUE_TOKEN>(values + SCALE_AT + TOKEN_BYTES, 16 * slice + 2 * g);
                        sum_zero = fmaf(p.x, z.x, fmaf(p.y, z.y, sum_zero));
                    }
                    x[slice] = make_float2(p.x * value_norm[slice].x, p.y * value_norm[slice].y);
                    most = fmaxf(most, fmaxf(fabsf(x[slice].x), fabsf(x[slice].y)));
                }
                most = max_over_tokens(most);
                const float steps = __fdividef(127.0f, most);
#pragma unroll
                for (int slice = 0; slice < SLICES; slice++) x[slice].x *= steps, x[slice].y *= steps;
                total[n] = fmaf(total[n], decay, sum * rise);
                total_zero[n] = fmaf(total_zero[n], decay, sum_zero * rise);
                factor[n] = rise * most * (1.0f / (127.0f * 254.0f));
            } else {
                const float offset = LOG2_127 - largest;
#pragma unroll
                for (int slice = 0; slice < SLICES; slice++) {
                    x[slice] = make_float2(exp2_approx(x[slice].x + offset), exp2_approx(x[slice].y + offset));
                    sum += x[slice].x + x[slice].y;
                }
                total[n] = fmaf(total[n], decay, sum * (rise * (1.0f / 127.0f)));
                factor[n] = rise * (1.0f / (127.0f * 254.0f));
            }
            // column 2 t of the tile holds the high parts, column 2 t + 1 the low ones
            Byte* const column = probabilities + (8 * n + 2 * t) * P_STRIDE + 2 * g;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const float high_x = x[slice].x + MAGIC, high_y = x[slice].y + MAGIC;
                const float low_x = fmaf(x[slice].x - (high_x - MAGIC), 254.0f, MAGIC);
                const float low_y = fmaf(x[slice].y - (high_y - MAGIC), 254.0f, MAGIC);
                *(unsigned short*)(column + 16 * slice) = low_bytes(high_x, high_y);
                *(unsigned short*)(column + P_STRIDE + 16 * slice) = low_bytes(low_x, low_y);
            }
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) sums[n][tile][0] *= decay, sums[n][tile][1] *= decay;
        }
        __syncwarp();

        if constexpr (!VALUE_NORM && !VALUE_TOKEN) fetch_wait(barriers + 16 * stage + 8, parity);
        const float* group_scale = (const float*)(values + GROUP_AT);
        add_values<VALUE_BITS_0, VALUE_DIGITS_0>(values, probabilities, g, t, factor, group_scale, sums, 0);
        if constexpr (VALUE_DIGITS_1)
            add_values<VALUE_BITS_1 ? VALUE_BITS_1 : 1, VALUE_DIGITS_1>(
                values + VALUE_BYTES_0, probabilities, g, t, factor, group_scale + VALUE_WIDTH_0, sums, TILES_0);
        if constexpr (KEY_GROUPS) {
            if (index + 1 < count) load_weights(group_of(args.key_group, args.key_groups, page + WARPS));
        }
        __syncwarp();  // all lanes have read the values and the probabilities
        fetch_values(index + STAGES, stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }

    // The block's warps become one split.
    float* const shared_top = (float*)(shared + WARPS * (WARP_BYTES + 16 * STAGES));
    float* const shared_total = shared_top + WARPS * ROW_TILES * 4;
    float* const shared_zero = shared_total + WARPS * ROW_TILES * 4;
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        total[n] = sum_over_tokens(total[n]);
        if constexpr (VALUE_TOKEN) total_zero[n] = sum_over_tokens(total_zero[n]);
        if (g == 0) {
            const int at = warp * ROW_TILES * 4 + 4 * n + t;
            shared_top[at] = top[n], shared_total[at] = total[n], shared_zero[at] = total_zero[n];
        }
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        float block_top = -infinity();
        for (int i = 0; i < WARPS; i++) block_top = fmaxf(block_top, shared_top[i * ROW_TILES * 4 + 4 * n + t]);
        const float share = top[n] == -infinity() ? 0.0f : exp2_approx(top[n] - block_top);
        float* const row = (float*)own + (4 * n + t) * SUM_STRIDE;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const int at = tile < TILES_0 ? 16 * tile : VALUE_WIDTH_0 + 16 * (tile - TILES_0);
            row[at + g] = sums[n][tile][0] * share;
            row[at + g + 8] = sums[n][tile][1] * share;
        }
    }
    __syncthreads();
    const int rows = min(args.rows - first_row, 4 * ROW_TILES);
    const long long out_row = (unit * args.splits + split) * args.rows + first_row;
    for (int i = threadIdx.x; i < rows * VALUE_WIDTH; i += WARPS * 32) {
        const int row = i / VALUE_WIDTH, digit = i % VALUE_WIDTH;
        const bool padding = digit < VALUE_WIDTH_0 ? digit >= VALUE_DIGITS_0 : digit >= VALUE_WIDTH_0 + VALUE_DIGITS_1;
        float sum = 0.0f;
        if (!padding) {
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += ((const float*)(shared + w * WARP_BYTES))[row * SUM_STRIDE + digit];
        }
        args.out_acc[out_row * VALUE_WIDTH + i] = sum;
    }
    if (threadIdx.x < rows) {
        const int row = threadIdx.x;
        float block_top = -infinity(), block_total = 0.0f, block_zero = 0.0f;
        for (int i = 0; i < WARPS; i++) block_top = fmaxf(block_top, shared_top[i * ROW_TILES * 4 + row]);
        for (int i = 0; i < WARPS; i++) {
            const int at = i * ROW_TILES * 4 + row;
            const float share = shared_top[at] == -infinity() ? 0.0f : exp2_approx(shared_top[at] - block_top);
            block_total += shared_total[at] * share;
            block_zero += shared_zero[at] * share;
        }
        args.out_m[out_row + row] = block_total > 0.0f ? block_top : -infinity();
        args.out_l[out_row + row] = block_total;
        if constexpr (VALUE_TOKEN) args.out_zero[out_row + row] = block_zero;
    }
}
