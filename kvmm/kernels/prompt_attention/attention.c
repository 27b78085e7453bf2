/* Attention of a whole prompt over exact keys and values in bfloat16, by dot products of pairs (AVX512_BF16).
 *
 * Keys and values are brought into the order in which the products read them once a head: of 64 keys the same two
 * channels, of two tokens all channels, in words of two numbers. Blocks of queries then go over blocks of keys as in
 * FlashAttention-2 (Dao, 2023, algorithm 1): scores, the running maximum and sum, and the weighted values in float32.
 */
enum { F32, F16, BF16 };
#include <math.h>

#include "vectors.h"

typedef struct {
    const uint16_t *query, *key, *value; /* [B, H, T, D], channels contiguous */
    uint16_t *out;                       /* [B, T, H, D], contiguous */
    uint32_t *keys, *values;             /* ordered: [B, H_kv, T / 64, D / 2, 64] and [B, H_kv, T / 2, D] words */
    int64_t batch, heads, kv_heads, queries, tokens, dim;
    int64_t query_steps[3], key_steps[3], value_steps[3]; /* of sequences, heads and tokens, in numbers */
    int64_t causal;
    double scale;
} Call;

#define PANEL 64  /* keys whose scores a product makes at once */
#define BLOCK 256 /* keys of a block */
#define TILE 6    /* queries of a product: 6 x 4 sums in registers */
#define ROWS 24   /* queries of a block */
#define MAX_DIM 128

int64_t kvmm_prompt_block(void) { return BLOCK; }

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>

int kvmm_prompt_available(void) { return 1; }

static int64_t padded(const Call *c) { return (c->tokens + BLOCK - 1) / BLOCK * BLOCK; }

/* Orders heads first, first + step, ... of keys and values; behind the last token there are zeros. */
void kvmm_prompt_order(const Call *c, int64_t first, int64_t step) {
    const int64_t pairs = c->dim / 2, tokens = padded(c);
    for (int64_t at = first; at < c->batch * c->kv_heads; at += step) {
        const int64_t b = at / c->kv_heads, h = at % c->kv_heads;
        const uint16_t *key = c->key + b * c->key_steps[0] + h * c->key_steps[1];
        const uint16_t *value = c->value + b * c->value_steps[0] + h * c->value_steps[1];
        uint32_t *keys = c->keys + at * tokens * pairs, *values = c->values + at * tokens * pairs;
        for (int64_t t = 0; t < tokens; t++) {
            uint32_t *to = keys + t / PANEL * PANEL * pairs + t % PANEL;
            for (int64_t p = 0; p < pairs; p++) {
                uint32_t word = 0;
                if (t < c->tokens) memcpy(&word, key + t * c->key_steps[2] + 2 * p, 4);
                to[p * PANEL] = word;
            }
        }
        for (int64_t t = 0; t < tokens / 2; t++)
            for (int64_t d = 0; d < c->dim; d++) {
                uint32_t low = 2 * t < c->tokens ? value[2 * t * c->value_steps[2] + d] : 0;
                uint32_t high = 2 * t + 1 < c->tokens ? value[(2 * t + 1) * c->value_steps[2] + d] : 0;
                values[t * c->dim + d] = low | high << 16;
            }
    }
}

/* Adds to (or, with `fresh`, puts into) TILE rows of `out` the products of words `a` and `b`; 16 * GROUPS columns. */
#define PRODUCT(GROUPS)                                                                                            \
    static inline __attribute__((always_inline)) void product_##GROUPS(                                            \
        const uint32_t *a, int64_t a_step, const uint32_t *b, int64_t b_step, int64_t pairs, float *out,           \
        int64_t out_step, int fresh) {                                                                             \
        __m512 sums[TILE][GROUPS];                                                                                 \
        for (int r = 0; r < TILE; r++)                                                                             \
            for (int g = 0; g < GROUPS; g++)                                                                       \
                sums[r][g] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(out + r * out_step + 16 * g);           \
        for (int64_t p = 0; p < pairs; p++) {                                                                      \
            __m512i words[GROUPS];                                                                                 \
            for (int g = 0; g < GROUPS; g++) words[g] = _mm512_loadu_si512(b + p * b_step + 16 * g);               \
            for (int r = 0; r < TILE; r++) {                                                                       \
                const __m512i x = _mm512_set1_epi32((int)a[r * a_step + p]);                                       \
                for (int g = 0; g < GROUPS; g++)                                                                   \
                    sums[r][g] = _mm512_dpbf16_ps(sums[r][g], (__m512bh)x, (__m512bh)words[g]);                    \
            }                                                                                                      \
        }                                                                                                          \
        for (int r = 0; r < TILE; r++)                                                                             \
            for (int g = 0; g < GROUPS; g++) _mm512_storeu_ps(out + r * out_step + 16 * g, sums[r][g]);            \
    }
PRODUCT(4)
PRODUCT(2)
PRODUCT(1)

static void rounded(vf x, uint16_t *to) {
    const __m256bh half = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &half, sizeof half);
}

static float largest(const float *x, int64_t count) {
    __m512 most = _mm512_set1_ps(-INFINITY);
    int64_t i = 0;
    for (; i + VL <= count; i += VL) most = _mm512_max_ps(most, _mm512_loadu_ps(x + i));
    float found = _mm512_reduce_max_ps(most);
    for (; i < count; i++) found = x[i] > found ? x[i] : found;
    return found;
}

/* One row's scores to weights in bfloat16 against the running maximum; returns what earlier sums count now. `count` keys
 * of the block are visible, one at least. */
static float weights(float *scores, int64_t count, float scale, float *most, float *total, uint16_t *out) {
    const float before = *most, here = scale * largest(scores, count);
    const float now = here > before ? here : before;
    for (int64_t i = count; i < (count + VL - 1) / VL * VL; i++) scores[i] = -INFINITY;
    vf all = {};
    int64_t i = 0;
    for (; i < count; i += VL) {
        const vf w = exponential(load(scores + i) * broadcast(scale) - broadcast(now));
        all += w;
        rounded(w, out + i);
    }
    memset(out + i, 0, 2 * (BLOCK - i));
    const float kept = before == -INFINITY ? 0.0f : expf(before - now);
    *total = *total * kept + sum(all);
    *most = now;
    return kept;
}

static void block_of_queries(const Call *c, int64_t b, int64_t h, int64_t begin) {
    const int64_t dim = c->dim, pairs = dim / 2, head = b * c->kv_heads + h / (c->heads / c->kv_heads);
    const uint32_t *keys = c->keys + head * padded(c) * pairs, *values = c->values + head * padded(c) * pairs;
    const int64_t rows = c->queries - begin < ROWS ? c->queries - begin : ROWS, later = c->tokens - c->queries;
    const int64_t end = c->causal ? begin + rows + later : c->tokens;
    uint16_t query[ROWS * MAX_DIM] = {0}, weight[ROWS * BLOCK];
    float scores[ROWS * BLOCK], mixed[ROWS * MAX_DIM] = {0}, most[ROWS], total[ROWS] = {0};
    for (int64_t r = 0; r < ROWS; r++) most[r] = -INFINITY;
    for (int64_t r = 0; r < rows; r++)
        memcpy(query + r * dim,
               c->query + b * c->query_steps[0] + h * c->query_steps[1] + (begin + r) * c->query_steps[2], 2 * dim);
    for (int64_t at = 0; at < end; at += BLOCK) {
        const int64_t panels = ((end - at < BLOCK ? end - at : BLOCK) + PANEL - 1) / PANEL;
        for (int64_t panel = 0; panel < panels; panel++)
            for (int64_t r = 0; r < rows; r += TILE)
                product_4((const uint32_t *)query + r * pairs, pairs, keys + (at + panel * PANEL) * pairs, PANEL, pairs,
                          scores + r * BLOCK + panel * PANEL, BLOCK, 1);
        for (int64_t r = 0; r < ROWS; r++) {
            int64_t seen = (c->causal ? begin + r + later + 1 : c->tokens) - at;
            if (seen > BLOCK) seen = BLOCK;
            if (r >= rows || seen <= 0) {
                memset(weight + r * BLOCK, 0, 2 * BLOCK);
                continue;
            }
            const float kept =
                weights(scores + r * BLOCK, seen, (float)c->scale, most + r, total + r, weight + r * BLOCK);
            for (int64_t d = 0; d < dim; d += VL)
                store(mixed + r * dim + d, load(mixed + r * dim + d) * broadcast(kept));
        }
        for (int64_t r = 0; r < rows; r += TILE)
            for (int64_t d = 0, wide; d < dim; d += wide) {
                const uint32_t *w = (const uint32_t *)weight + r * BLOCK / 2, *v = values + at / 2 * dim + d;
                const int64_t used = panels * PANEL / 2;
                wide = dim - d >= 64 ? 64 : dim - d >= 32 ? 32 : 16;
                if (wide == 64) product_4(w, BLOCK / 2, v, dim, used, mixed + r * dim + d, dim, 0);
                else if (wide == 32) product_2(w, BLOCK / 2, v, dim, used, mixed + r * dim + d, dim, 0);
                else product_1(w, BLOCK / 2, v, dim, used, mixed + r * dim + d, dim, 0);
            }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d += VL)
            rounded(load(mixed + r * dim + d) / broadcast(total[r]),
                    c->out + ((b * c->queries + begin + r) * c->heads + h) * dim + d);
}

/* Blocks of queries first, first + step, ...: later ones of a causal prompt take longer, so threads take turns. */
void kvmm_prompt_attend(const Call *c, int64_t first, int64_t step) {
    const int64_t blocks = (c->queries + ROWS - 1) / ROWS;
    for (int64_t at = first; at < c->batch * c->heads * blocks; at += step)
        block_of_queries(c, at / blocks / c->heads, at / blocks % c->heads, at % blocks * ROWS);
}

#else
int kvmm_prompt_available(void) { return 0; }
void kvmm_prompt_order(const Call *c, int64_t first, int64_t step) { (void)c, (void)first, (void)step; }
void kvmm_prompt_attend(const Call *c, int64_t first, int64_t step) { (void)c, (void)first, (void)step; }
#endif
