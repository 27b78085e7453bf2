/* Slots of a paged cache on a CPU: writing tokens, and attention over them; reference.py defines both.
 *
 * A code's bits are read where they lie. Every bit of a slot adds a fixed number to a score (a channel's query, step and
 * the bit's weight in one), so a score is the sum of the numbers whose bits are set: a masked add, with bytes of the slot
 * as the mask. The other way round, values add a token's probability to the sums of the bits that are set, and channels
 * are made of these sums once a query. The widths of the channels count only where those numbers are made.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "slots.h"
#include "vectors.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define MOST_GROUPS 4 /* queries of a head taken at once */
#define NORM_EPSILON 1e-6f

/* Add x where the VL bits from p on are set. */
static inline __attribute__((always_inline)) vf add_where(vf acc, const uint8_t *p, vf x) {
#if defined(__AVX512F__)
    uint16_t bits;
    memcpy(&bits, p, 2);
    return (vf)_mm512_mask_add_ps((__m512)acc, bits, (__m512)acc, (__m512)x);
#else
    const vi lane = {1, 2, 4, 8, 16, 32, 64, 128};
    const vi mask = (((vi){} + *p) & lane) == lane;
    return acc + (vf)((vi)x & mask);
#endif
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline float read_half(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return half_to_float(h);
}

/* Float16 of a number that is not negative, to the nearest, ties to even. */
static uint16_t to_half(float x) {
    uint32_t bits;
    if (x < 0x1p-14f) return (uint16_t)rintf(x * 0x1p24f);
    memcpy(&bits, &x, 4);
    bits += 0xfff + (bits >> 13 & 1);
    const uint32_t half = (bits >> 13) - (112 << 10);
    return half > 0x7c00 ? 0x7c00 : (uint16_t)half;
}

/* out = sum over rows i of x[i] * matrix[i], [dim] of [dim, dim] */
static void combine(const float *x, const float *matrix, int64_t dim, float *out) {
    int64_t c = 0;
    for (; c + 4 * VL <= dim; c += 4 * VL) {
        vf a0 = {}, a1 = {}, a2 = {}, a3 = {};
        for (int64_t i = 0; i < dim; i++) {
            const float *row = matrix + i * dim + c;
            a0 += load(row) * x[i];
            a1 += load(row + VL) * x[i];
            a2 += load(row + 2 * VL) * x[i];
            a3 += load(row + 3 * VL) * x[i];
        }
        store(out + c, a0), store(out + c + VL, a1), store(out + c + 2 * VL, a2), store(out + c + 3 * VL, a3);
    }
    for (; c < dim; c++) {
        float total = 0;
        for (int64_t i = 0; i < dim; i++) total += x[i] * matrix[i * dim + c];
        out[c] = total;
    }
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

/* Codes of channels about a mean or about zero (NULL), and the squared error that they leave. */
static float round_channels(const side_t *side, int64_t head, int64_t dim, const float *x, const float *mean, float *codes) {
    const float *zero = side->zero_point + head * dim, *step = side->steps + head * side->coded;
    float error = 0;
    for (int64_t c = 0; c < dim; c++) {
        const float above = x[c] - (mean ? mean[c] : 0) - zero[c];
        if (c >= side->coded) {
            error += above * above;
            continue;
        }
        const float most = (float)((1 << side->widths[c]) - 1), at = above / step[c];
        codes[c] = fminf(fmaxf(rintf(at), 0), most);
        const float left = (at - codes[c]) * step[c];
        error += left * left;
    }
    return error;
}

static void encode(const side_t *side, int64_t head, int64_t dim, const float *vector, float *scratch, uint8_t *out) {
    float *x = scratch, *channels = x + dim, *codes = channels + dim, *short_codes = codes + dim;
    const float *offset = side->offset + head * dim;
    memcpy(x, vector, 4 * dim);
    if (side->has_norm) {
        const float length = fmaxf(sqrtf(dot(x, x, dim)), NORM_EPSILON);
        const uint16_t half = to_half(length);
        const float norm = half_to_float(half);
        for (int64_t i = 0; i < dim; i++) x[i] /= norm;
        memcpy(out + side->code_bytes, &half, 2);
    }
    combine(x, side->forward + head * dim * dim, dim, channels);
    const float error = round_channels(side, head, dim, channels, offset, codes);
    const int is_short = round_channels(side, head, dim, channels, NULL, short_codes) < error;
    if (is_short) codes = short_codes;
    memset(out, 0, side->code_bytes);
    int64_t at = 0, single = side->paired;
    for (int64_t c = 0; c < side->coded; c++) {
        const int pairs = side->widths[c] & ~1;
        const uint32_t code = (uint32_t)codes[c], bits = (code & ((1u << pairs) - 1)) << (at & 7);
        out[at >> 3] |= (uint8_t)bits;
        if (bits >> 8) out[(at >> 3) + 1] |= (uint8_t)(bits >> 8);
        at += pairs;
        if (side->widths[c] & 1) {
            out[single >> 3] |= (code >> pairs) << (single & 7);
            single++;
        }
    }
    out[single >> 3] |= is_short << (single & 7);
}

/* Put tokens first to last - 1 into their slots. Returns 0, 1 without memory, or 2 for a slot that the cache does not
 * have. */
int kvmm_write_slots(const slot_write_t *call, int64_t first, int64_t last) {
    const slot_cache_t *cache = call->cache;
    const int64_t *slots = call->slots;
    const int64_t dim = cache->dim, heads = cache->heads, size = cache->itemsize * dim;
    float *vector = malloc(4 * 5 * dim);
    if (!vector) return 1;
    int failed = 0;
    for (int64_t t = first; t < last && !failed; t++) {
        if (slots[t] < 0) continue;
        const int64_t block = slots[t] / cache->block_size, place = slots[t] % cache->block_size;
        if (block >= cache->num_blocks) {
            failed = 2;
            break;
        }
        for (int64_t h = 0; h < heads; h++) {
            const int64_t from = (t * heads + h) * dim;
            uint8_t *held = cache->data + block * cache->block_stride + h * cache->head_stride;
            uint8_t *out = held + place * cache->slot_stride;
            read_floats(call->key, cache->dtype, from, dim, vector);
            encode(&cache->key, h, dim, vector, vector + dim, out);
            read_floats(call->value, cache->dtype, from, dim, vector);
            encode(&cache->value, h, dim, vector, vector + dim, out + cache->value_start);
            if (place) continue;
            uint8_t *exact = held + cache->block_size * cache->slot_stride;
            memcpy(exact, (const uint8_t *)call->key + from * cache->itemsize, size);
            memcpy(exact + size, (const uint8_t *)call->value + from * cache->itemsize, size);
        }
    }
    free(vector);
    return failed;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

/* What every bit of a slot adds to the score of a query in the basis of the codes, and what is added to every score. */
static float bit_weights(const side_t *side, int64_t head, int64_t dim, const float *query, float *weights) {
    const float *step = side->steps + head * side->coded, *offset = side->offset + head * dim;
    const float *zero = side->zero_point + head * dim;
    int64_t at = 0, single = side->paired;
    for (int64_t c = 0; c < side->coded; c++) {
        const int pairs = side->widths[c] & ~1;
        for (int k = 0; k < pairs; k++) weights[at++] = query[c] * step[c] * (float)(1 << k);
        if (side->widths[c] & 1) weights[single++] = query[c] * step[c] * (float)(1 << pairs);
    }
    const float mean = dot(query, offset, dim);
    weights[single] = -mean;
    return mean + dot(query, zero, dim);
}

/* The channels that sums of bits stand for; total is what the probabilities add up to. */
static void channels_of(const side_t *side, int64_t head, int64_t dim, const float *sums_, float total, float *out) {
    const float *step = side->steps + head * side->coded, *offset = side->offset + head * dim;
    const float *zero = side->zero_point + head * dim;
    int64_t at = 0, single = side->paired;
    for (int64_t c = 0; c < side->coded; c++) {
        const int pairs = side->widths[c] & ~1;
        float code = 0;
        for (int k = 0; k < pairs; k++) code += sums_[at++] * (float)(1 << k);
        if (side->widths[c] & 1) code += sums_[single++] * (float)(1 << pairs);
        out[c] = code * step[c];
    }
    for (int64_t c = side->coded; c < dim; c++) out[c] = 0;
    for (int64_t c = 0; c < dim; c++) out[c] += total * (zero[c] + offset[c]) - sums_[single] * offset[c];
}

/* Scores of G queries with four slots from p on: scores[g * stride + 0 .. 3]. */
static inline __attribute__((always_inline)) void score_four(
    const uint8_t *p, int64_t slot, const float *weights, int64_t width, int groups, float *scores, int64_t stride) {
    vf acc[4 * MOST_GROUPS];
    for (int i = 0; i < 4 * groups; i++) acc[i] = (vf){};
    for (int64_t v = 0; v < width; v += VL, p += VL / 8)
        for (int g = 0; g < groups; g++) {
            const vf w = load(weights + g * width + v);
            for (int t = 0; t < 4; t++) acc[4 * g + t] = add_where(acc[4 * g + t], p + t * slot, w);
        }
    float found[16];
    sums(acc, found, 4 * groups);
    for (int g = 0; g < groups; g++) memcpy(scores + g * stride, found + 4 * g, 16);
}

/* Add count tokens' probabilities to the sums of the bits that are set in their slots. */
static inline __attribute__((always_inline)) void weigh(
    const uint8_t *slots, int64_t slot, int64_t count, const float *p, int64_t stride, int64_t width, int groups, float *sums_) {
    for (int64_t v = 0; v < width; v += 2 * VL) {
        const int two = v + VL < width;
        vf a[MOST_GROUPS], b[MOST_GROUPS];
        for (int g = 0; g < groups; g++) {
            a[g] = load(sums_ + g * width + v);
            b[g] = two ? load(sums_ + g * width + v + VL) : (vf){};
        }
        const uint8_t *at = slots + v / 8;
        if (two)
            for (int64_t t = 0; t < count; t++, at += slot)
                for (int g = 0; g < groups; g++) {
                    const vf x = broadcast(p[g * stride + t]);
                    a[g] = add_where(a[g], at, x);
                    b[g] = add_where(b[g], at + VL / 8, x);
                }
        else
            for (int64_t t = 0; t < count; t++, at += slot)
                for (int g = 0; g < groups; g++) a[g] = add_where(a[g], at, broadcast(p[g * stride + t]));
        for (int g = 0; g < groups; g++) {
            store(sums_ + g * width + v, a[g]);
            if (two) store(sums_ + g * width + v + VL, b[g]);
        }
    }
}

#define BY_GROUPS(call) \
    switch (groups) { \
    case 1: { enum { G = 1 }; call; break; } \
    case 2: { enum { G = 2 }; call; break; } \
    case 3: { enum { G = 3 }; call; break; } \
    default: { enum { G = 4 }; call; break; } \
    }

/* Where the state of some queries of a head lies while their tokens are read, one row a query. */
typedef struct {
    float *query, *weights, *base, *sums, *exact, *p, *total, *maximum, *normalizer, *vector;
    int64_t key_width, value_width, stride;
} state_t;

/* Make probabilities of count scores a query, relative to the maximum so far. */
static void renormalize(const slot_cache_t *cache, state_t *s, int groups, int64_t count) {
    for (int g = 0; g < groups; g++) {
        float *x = s->p + g * s->stride, maximum = s->maximum[g];
        for (int64_t t = 0; t < count; t++) maximum = fmaxf(maximum, x[t]);
        const float scale = expf(s->maximum[g] - maximum);
        if (scale != 1) {
            for (int64_t i = 0; i < s->value_width; i++) s->sums[g * s->value_width + i] *= scale;
            for (int64_t i = 0; i < cache->dim; i++) s->exact[g * cache->dim + i] *= scale;
            s->total[g] *= scale;
            s->normalizer[g] *= scale;
        }
        s->maximum[g] = maximum;
        for (int64_t t = count; t < (count + VL - 1) / VL * VL; t++) x[t] = -INFINITY;
        vf all = {};
        for (int64_t t = 0; t < count; t += VL) {
            const vf y = exponential(load(x + t) - broadcast(maximum));
            store(x + t, y);
            all += y;
        }
        s->normalizer[g] += sum(all);
    }
}

/* Read count tokens of a block, the first of which is exact. */
static void read_block(const slot_cache_t *cache, state_t *s, int groups, const uint8_t *held, int64_t count) {
    const side_t *key = &cache->key, *value = &cache->value;
    const int64_t dim = cache->dim, slot = cache->slot_stride, size = 2 * cache->itemsize * dim;
    for (int64_t t = 0; t < count; t += 4) {
        /* the last four are read again where fewer are left */
        const int64_t from = count < 4 ? 0 : least(t, count - 4);
        float *scores = s->p + from;
        if (count < 4 && cache->block_size < 4) { /* there are no four slots */
            for (int64_t i = 0; i < count; i++)
                for (int g = 0; g < groups; g++) {
                    vf acc = {};
                    for (int64_t v = 0; v < s->key_width; v += VL)
                        acc = add_where(acc, held + i * slot + v / 8, load(s->weights + g * s->key_width + v));
                    s->p[g * s->stride + i] = sum(acc);
                }
            break;
        }
        BY_GROUPS(score_four(held + from * slot, slot, s->weights, s->key_width, G, scores, s->stride))
    }
    uint8_t *exact = (uint8_t *)s->vector;
    float *exact_key = s->vector + 2 * dim, *exact_value = exact_key + dim;
    memcpy(exact, held + cache->block_size * slot, size);
    read_floats(exact, cache->dtype, 0, 2 * dim, exact_key);
    for (int g = 0; g < groups; g++) {
        float *x = s->p + g * s->stride;
        for (int64_t t = 0; t < count; t++) x[t] += s->base[g];
        if (key->has_norm)
            for (int64_t t = 0; t < count; t++) x[t] *= read_half(held + t * slot + key->code_bytes);
        x[0] = dot(s->query + g * dim, exact_key, dim);
    }
    renormalize(cache, s, groups, count);
    for (int g = 0; g < groups; g++) {
        float *x = s->p + g * s->stride;
        for (int64_t i = 0; i < dim; i++) s->exact[g * dim + i] += x[0] * exact_value[i];
        x[0] = 0;
        if (value->has_norm)
            for (int64_t t = 0; t < count; t++)
                x[t] *= read_half(held + t * slot + cache->value_start + value->code_bytes);
        s->total[g] += dot(x, NULL, count);
    }
    BY_GROUPS(weigh(held + cache->value_start, slot, count, s->p, s->stride, s->value_width, G, s->sums))
}

/* Read the new tokens first to last of the call, which are exact. */
static void read_new(
    const slot_cache_t *cache, const slot_call_t *call, state_t *s, int groups, int64_t head, int64_t first, int64_t last) {
    const int64_t dim = cache->dim;
    for (int64_t t = first; t <= last; t++) {
        read_floats(call->key, cache->dtype, (t * cache->heads + head) * dim, dim, s->vector);
        for (int g = 0; g < groups; g++) s->p[g * s->stride] = dot(s->query + g * dim, s->vector, dim);
        renormalize(cache, s, groups, 1);
        read_floats(call->value, cache->dtype, (t * cache->heads + head) * dim, dim, s->vector);
        for (int g = 0; g < groups; g++)
            for (int64_t i = 0; i < dim; i++) s->exact[g * dim + i] += s->p[g * s->stride] * s->vector[i];
    }
}

static int attend(const slot_cache_t *cache, const slot_call_t *call, state_t *s, int64_t row, int64_t head, int64_t query, int groups) {
    const int64_t dim = cache->dim, token = call->token[row], past = call->past[row];
    const int32_t *blocks = call->blocks + call->sequence[row] * call->blocks_stride;
    memset(s->weights, 0, 4 * groups * s->key_width);
    memset(s->sums, 0, 4 * groups * s->value_width);
    memset(s->exact, 0, 4 * groups * dim);
    for (int g = 0; g < groups; g++) {
        float *x = s->query + g * dim;
        read_floats(call->query, cache->dtype, (token * call->query_heads + query + g) * dim, dim, x);
        for (int64_t i = 0; i < dim; i++) x[i] *= call->scaling;
        combine(x, cache->key.inverse + head * dim * dim, dim, s->vector);
        s->base[g] = bit_weights(&cache->key, head, dim, s->vector, s->weights + g * s->key_width);
        s->maximum[g] = -INFINITY;
        s->total[g] = s->normalizer[g] = 0;
    }
    for (int64_t done = 0; done < past; done += cache->block_size) {
        const int64_t block = blocks[done / cache->block_size];
        if (block < 0 || block >= cache->num_blocks) return 2;
        const uint8_t *held = cache->data + block * cache->block_stride + head * cache->head_stride;
        read_block(cache, s, groups, held, least(cache->block_size, past - done));
    }
    read_new(cache, call, s, groups, head, call->first[row], token);
    for (int g = 0; g < groups; g++) {
        float *out = call->out + (row * call->query_heads + query + g) * dim, *channels = s->vector;
        channels_of(&cache->value, head, dim, s->sums + g * s->value_width, s->total[g], channels);
        combine(channels, cache->value.inverse_turned + head * dim * dim, dim, out);
        for (int64_t i = 0; i < dim; i++) out[i] = (out[i] + s->exact[g * dim + i]) / s->normalizer[g];
    }
    return 0;
}

/* Attention of pairs first to last - 1 of a row and a head of keys. Returns 0, 1 without memory, or 2 for a block that the
 * cache does not have. */
int kvmm_attend_slots(const slot_call_t *call, int64_t first, int64_t last) {
    const slot_cache_t *cache = call->cache;
    const int64_t dim = cache->dim, groups = call->query_heads / cache->heads;
    state_t s = {.stride = (cache->block_size + VL - 1) / VL * VL};
    s.key_width = (8 * cache->key.code_bytes + VL - 1) / VL * VL;
    s.value_width = (8 * cache->value.code_bytes + VL - 1) / VL * VL;
    float **parts[] = {&s.query, &s.weights, &s.base, &s.sums, &s.exact, &s.p, &s.total, &s.maximum, &s.normalizer, &s.vector};
    const int64_t sizes[] = {dim, s.key_width, 1, s.value_width, dim, s.stride, 1, 1, 1, dim};
    int64_t all = 0;
    for (int i = 0; i < 10; i++) all += MOST_GROUPS * sizes[i];
    float *memory = malloc(4 * all);
    if (!memory) return 1;
    for (int i = 0, at = 0; i < 10; at += MOST_GROUPS * sizes[i++]) *parts[i] = memory + at;
    int failed = 0;
    for (int64_t pair = first; pair < last && !failed; pair++)
        for (int64_t g = 0; g < groups && !failed; g += MOST_GROUPS) {
            const int64_t row = pair / cache->heads, head = pair % cache->heads;
            failed = attend(cache, call, &s, row, head, head * groups + g, (int)least(MOST_GROUPS, groups - g));
        }
    free(memory);
    return failed;
}
