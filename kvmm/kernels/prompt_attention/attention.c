/* Attention of a whole prompt over exact keys and values: of bfloat16 by dot products of pairs (AVX512_BF16), of
 * float32 where vectors are of 256 bits (AVX2 with FMA). flash.h has the algorithm; here is what differs.
 */
enum { F32, F16, BF16 };
#include <math.h>

#include "vectors.h"

typedef struct {
    const void *query, *key, *value; /* [B, H, T, D], channels contiguous */
    void *out;                       /* [B, T, H, D], contiguous */
    void *keys, *values;             /* room for the ordered ones, whole blocks of tokens */
    int64_t dtype, batch, heads, kv_heads, queries, tokens, dim;
    int64_t query_steps[3], key_steps[3], value_steps[3]; /* of sequences, heads and tokens, in numbers */
    int64_t causal;
    double scale;
} Call;

#define BLOCK 256 /* keys of a block */
#define TILE 6    /* queries of a product: TILE x BROAD sums in registers */
#define ROWS 24   /* queries of a block */
#define MAX_DIM 128

int64_t kvmm_prompt_block(void) { return BLOCK; }

/* How many parts `kvmm_prompt_attend` has. */
int64_t kvmm_prompt_parts(const Call *c) { return c->batch * c->heads * ((c->queries + ROWS - 1) / ROWS); }

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define TAKES_BF16 1
#elif defined(__AVX2__) && defined(__FMA__) && !defined(__AVX512F__)
#define TAKES_F32 1
#endif
#if TAKES_BF16 || TAKES_F32

static int64_t padded(const Call *c) { return (c->tokens + BLOCK - 1) / BLOCK * BLOCK; }

static float largest(const float *x, int64_t count) {
    vf most = broadcast(-INFINITY);
    int64_t i = 0;
    for (; i + VL <= count; i += VL) {
        const vf here = load(x + i);
        const vi larger = here > most;
        most = (vf)(((vi)here & larger) | ((vi)most & ~larger));
    }
    float all[VL], found = -INFINITY;
    store(all, most);
    for (int k = 0; k < VL; k++) found = all[k] > found ? all[k] : found;
    for (; i < count; i++) found = x[i] > found ? x[i] : found;
    return found;
}

#endif

#if TAKES_BF16
#include <immintrin.h>

#define NAME(x) x##_bf16
#define BROAD 4 /* vectors beside each other in a product */
#define PAIR 2  /* numbers of a word, which a product multiplies at once */
typedef uint16_t number_bf16;
typedef uint32_t word_bf16;

static inline word_bf16 paired_bf16(const number_bf16 *low, const number_bf16 *high) {
    return (low ? *low : 0u) | (high ? (uint32_t)*high : 0u) << 16;
}

static inline vf added_bf16(vf sum, word_bf16 x, const word_bf16 *words) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)_mm512_loadu_si512(words));
}

static inline void rounded_bf16(vf x, number_bf16 *to) {
    const __m256bh half = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &half, sizeof half);
}

#include "flash.h"
#endif

#if TAKES_F32
#define NAME(x) x##_f32
#define BROAD 2
#define PAIR 1
typedef float number_f32;
typedef float word_f32;

static inline word_f32 paired_f32(const number_f32 *low, const number_f32 *high) {
    (void)high;
    return low ? *low : 0.0f;
}

static inline vf added_f32(vf sum, word_f32 x, const word_f32 *words) { return sum + broadcast(x) * load(words); }

static inline void rounded_f32(vf x, number_f32 *to) { store(to, x); }

#include "flash.h"
#endif

int kvmm_prompt_takes(int64_t dtype) {
    int taken = -1;
#if TAKES_BF16
    taken = BF16;
#elif TAKES_F32
    taken = F32;
#endif
    return dtype == taken;
}

/* Orders keys and values of heads first to last - 1 of all sequences. */
int kvmm_prompt_order(const Call *c, int64_t first, int64_t last) {
    for (int64_t at = first; at < last; at++) {
#if TAKES_BF16
        if (c->dtype == BF16) order_bf16(c, at);
#elif TAKES_F32
        if (c->dtype == F32) order_f32(c, at);
#endif
    }
    return 0;
}

/* Blocks of queries first to last - 1 of all heads. */
int kvmm_prompt_attend(const Call *c, int64_t first, int64_t last) {
    for (int64_t at = first; at < last; at++) {
        const int64_t blocks = (c->queries + ROWS - 1) / ROWS, head = at / blocks, begin = at % blocks * ROWS;
        const int64_t b = head / c->heads, h = head % c->heads;
#if TAKES_BF16
        if (c->dtype == BF16) block_of_queries_bf16(c, b, h, begin);
#elif TAKES_F32
        if (c->dtype == F32) block_of_queries_f32(c, b, h, begin);
#else
        (void)b, (void)h, (void)begin;
#endif
    }
    return 0;
}
