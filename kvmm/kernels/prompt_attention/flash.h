/* Attention of a block of queries, for one dtype: included once for each, with
 *
 *     NAME(x)             the dtype's name behind x
 *     NAME(number)        what queries, keys, values and outputs are stored as
 *     PAIR, NAME(word)    how many numbers a product multiplies at once, and the word that holds them
 *     NAME(paired)        the word of two numbers, either of which may be NULL and counts as 0; of the first if PAIR is 1
 *     NAME(added)         sums of VL columns and the products of a word with VL words
 *     NAME(rounded)       VL floats stored as numbers
 *     BROAD               vectors of columns of a product
 *
 * Keys and values are brought into the order in which the products read them once a head: of PANEL keys the same PAIR
 * channels, of PAIR tokens all channels. Blocks of queries then go over blocks of keys as in FlashAttention-2 (Dao,
 * 2023, algorithm 1): scores, the running maximum and sum, and the weighted values in float32.
 */
#define PANEL (BROAD * VL) /* keys whose scores a product makes at once */

/* Orders the keys and values of head `at` of all sequences; behind the last token there are zeros. */
static void NAME(order)(const Call *c, int64_t at) {
    const int64_t words = c->dim / PAIR, tokens = padded(c), b = at / c->kv_heads, h = at % c->kv_heads;
    const NAME(number) *key = (const NAME(number) *)c->key + b * c->key_steps[0] + h * c->key_steps[1];
    const NAME(number) *value = (const NAME(number) *)c->value + b * c->value_steps[0] + h * c->value_steps[1];
    NAME(word) *keys = (NAME(word) *)c->keys + at * tokens * words;
    NAME(word) *values = (NAME(word) *)c->values + at * tokens * words;
    for (int64_t t = 0; t < tokens; t++) {
        NAME(word) *to = keys + t / PANEL * PANEL * words + t % PANEL;
        const NAME(number) *from = t < c->tokens ? key + t * c->key_steps[2] : NULL;
        for (int64_t p = 0; p < words; p++)
            to[p * PANEL] = NAME(paired)(from ? from + PAIR * p : NULL, from ? from + PAIR * p + PAIR - 1 : NULL);
    }
    for (int64_t t = 0; t < tokens; t += PAIR) {
        const NAME(number) *low = t < c->tokens ? value + t * c->value_steps[2] : NULL;
        const NAME(number) *high = t + PAIR - 1 < c->tokens ? value + (t + PAIR - 1) * c->value_steps[2] : NULL;
        for (int64_t d = 0; d < c->dim; d++)
            values[t / PAIR * c->dim + d] = NAME(paired)(low ? low + d : NULL, high ? high + d : NULL);
    }
}

/* Puts the products of `count` words `a` and `b` into TILE rows of `out`; with `kept` adds them to that times the row. */
#define PRODUCT(GROUPS)                                                                                            \
    static inline __attribute__((always_inline)) void NAME(product_##GROUPS)(                                      \
        const NAME(word) *a, int64_t a_step, const NAME(word) *b, int64_t b_step, int64_t count, float *out,       \
        int64_t out_step, const float *kept) {                                                                     \
        vf sums[TILE][GROUPS];                                                                                     \
        for (int r = 0; r < TILE; r++)                                                                             \
            for (int g = 0; g < GROUPS; g++)                                                                       \
                sums[r][g] = broadcast(0.0f);                                                                      \
        for (int64_t p = 0; p < count; p++)                                                                        \
            for (int r = 0; r < TILE; r++)                                                                         \
                for (int g = 0; g < GROUPS; g++)                                                                   \
                    sums[r][g] = NAME(added)(sums[r][g], a[r * a_step + p], b + p * b_step + VL * g);              \
        for (int r = 0; r < TILE; r++)                                                                             \
            for (int g = 0; g < GROUPS; g++) {                                                                     \
                float *to = out + r * out_step + VL * g;                                                           \
                store(to, kept ? load(to) * broadcast(kept[r]) + sums[r][g] : sums[r][g]);                         \
            }                                                                                                      \
    }
#if BROAD == 4
PRODUCT(4)
#endif
PRODUCT(2)
PRODUCT(1)

/* `product` for the widest part of `left` columns; returns its width. */
static inline __attribute__((always_inline)) int64_t NAME(product)(
    const NAME(word) *a, int64_t a_step, const NAME(word) *b, int64_t b_step, int64_t count, float *out,
    int64_t out_step, const float *kept, int64_t left) {
#if BROAD == 4
    if (left >= 4 * VL) {
        NAME(product_4)(a, a_step, b, b_step, count, out, out_step, kept);
        return 4 * VL;
    }
#endif
    if (left >= 2 * VL) {
        NAME(product_2)(a, a_step, b, b_step, count, out, out_step, kept);
        return 2 * VL;
    }
    NAME(product_1)(a, a_step, b, b_step, count, out, out_step, kept);
    return VL;
}

/* One row's scores to weights against the running maximum; returns what earlier sums count now. `count` keys of the
 * block are visible, one at least. */
static float NAME(weights)(float *scores, int64_t count, float scale, float *most, float *total, NAME(number) *out) {
    const float before = *most, here = scale * largest(scores, count);
    const float now = here > before ? here : before;
    for (int64_t i = count; i < (count + VL - 1) / VL * VL; i++) scores[i] = -INFINITY;
    vf all = {};
    int64_t i = 0;
    for (; i < count; i += VL) {
        const vf w = exponential(load(scores + i) * broadcast(scale) - broadcast(now));
        all += w;
        NAME(rounded)(w, out + i);
    }
    memset(out + i, 0, sizeof(NAME(number)) * (BLOCK - i));
    const float kept = before == -INFINITY ? 0.0f : expf(before - now);
    *total = *total * kept + sum(all);
    *most = now;
    return kept;
}

static void NAME(block_of_queries)(const Call *c, int64_t b, int64_t h, int64_t begin) {
    const int64_t dim = c->dim, words = dim / PAIR, head = b * c->kv_heads + h / (c->heads / c->kv_heads);
    const NAME(word) *keys = (const NAME(word) *)c->keys + head * padded(c) * words;
    const NAME(word) *values = (const NAME(word) *)c->values + head * padded(c) * words;
    const int64_t rows = c->queries - begin < ROWS ? c->queries - begin : ROWS, later = c->tokens - c->queries;
    const int64_t end = c->causal ? begin + rows + later : c->tokens;
    NAME(number) query[ROWS * MAX_DIM] __attribute__((aligned(64))) = {0};
    NAME(number) weight[ROWS * BLOCK] __attribute__((aligned(64)));
    float scores[ROWS * BLOCK], mixed[ROWS * MAX_DIM] = {0}, most[ROWS], total[ROWS] = {0}, kept[ROWS];
    for (int64_t r = 0; r < ROWS; r++) most[r] = -INFINITY;
    const NAME(number) *asked = (const NAME(number) *)c->query + b * c->query_steps[0] + h * c->query_steps[1];
    for (int64_t r = 0; r < rows; r++)
        memcpy(query + r * dim, asked + (begin + r) * c->query_steps[2], sizeof(NAME(number)) * dim);
    for (int64_t at = 0; at < end; at += BLOCK) {
        const int64_t panels = ((end - at < BLOCK ? end - at : BLOCK) + PANEL - 1) / PANEL;
        for (int64_t panel = 0; panel < panels; panel++)
            for (int64_t r = 0; r < rows; r += TILE)
                NAME(product)((const NAME(word) *)query + r * words, words, keys + (at + panel * PANEL) * words, PANEL,
                              words, scores + r * BLOCK + panel * PANEL, BLOCK, NULL, PANEL);
        for (int64_t r = 0; r < ROWS; r++) {
            int64_t seen = (c->causal ? begin + r + later + 1 : c->tokens) - at;
            if (seen > BLOCK) seen = BLOCK;
            if (r >= rows || seen <= 0) {
                memset(weight + r * BLOCK, 0, sizeof(NAME(number)) * BLOCK);
                kept[r] = 1.0f;
                continue;
            }
            kept[r] = NAME(weights)(scores + r * BLOCK, seen, (float)c->scale, most + r, total + r, weight + r * BLOCK);
        }
        for (int64_t d = 0, wide = 0; d < dim; d += wide) /* columns of values stay near while all rows pass */
            for (int64_t r = 0; r < rows; r += TILE)
                wide = NAME(product)((const NAME(word) *)weight + r * BLOCK / PAIR, BLOCK / PAIR,
                                     values + at / PAIR * dim + d, dim, panels * PANEL / PAIR, mixed + r * dim + d, dim,
                                     kept + r, dim - d);
    }
    NAME(number) *out = (NAME(number) *)c->out;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < dim; d += VL)
            NAME(rounded)(load(mixed + r * dim + d) / broadcast(total[r]),
                          out + ((b * c->queries + begin + r) * c->heads + h) * dim + d);
}

#undef NAME
#undef BROAD
#undef PAIR
#undef PANEL
#undef PRODUCT
