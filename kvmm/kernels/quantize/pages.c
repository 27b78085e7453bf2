/* Levels and packed codes of pages on a CPU; dense.py and reference.py define both.
 *
 * Channels are taken LANES at a time through all tokens: their sums stay in registers, and what torch does in a dozen
 * passes over a span is one. Codes are made as the reference makes them, operation by operation; sums are of float within
 * a run of tokens and of double between runs.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define RUN 64 /* tokens whose sums are of float */
#define MAGIC 12582912.0f /* 1.5 * 2^23: added and taken away, it rounds to the nearest even whole number */
#define SMALLEST 1e-6 /* variance of codes from which on there is something to fit */

typedef struct {
    float at[LANES];
} lanes_t;

static inline lanes_t read_lanes(const float *x, int64_t count) {
    lanes_t found = {{0}};
    if (count >= LANES)
        memcpy(found.at, x, sizeof found.at);
    else
        memcpy(found.at, x, count * sizeof *x);
    return found;
}

/* what is not a number has code 0 */
static inline float code_of(float x, float zero_point, float inverse, float highest) {
    float code = (x - zero_point) * inverse;
    code = code > 0.0f ? code : 0.0f;
    code = code < highest ? code : highest;
    return (code + MAGIC) - MAGIC;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Mean of `width` channels from `x` on, and the sum of the squares of what is left without it. */
static void moments(
    const float *restrict x, const float *restrict weight, int64_t tokens, int64_t dim, int64_t width, double count,
    lanes_t *mean_out, double *squares) {
    double total[LANES] = {0};
    lanes_t mean;
    for (int64_t first = 0; first < tokens; first += RUN) {
        lanes_t sum = {{0}};
        for (int64_t t = first; t < least(first + RUN, tokens); t++) {
            const lanes_t v = read_lanes(x + t * dim, width);
            const float w = weight ? weight[t] : 1.0f;
            for (int i = 0; i < LANES; i++) sum.at[i] += v.at[i] * w;
        }
        for (int i = 0; i < LANES; i++) total[i] += sum.at[i];
    }
    for (int i = 0; i < LANES; i++) mean.at[i] = (float)(total[i] / count), squares[i] = 0;
    for (int64_t first = 0; first < tokens; first += RUN) {
        lanes_t sum = {{0}};
        for (int64_t t = first; t < least(first + RUN, tokens); t++) {
            const lanes_t v = read_lanes(x + t * dim, width);
            const float w = weight ? weight[t] : 1.0f;
            for (int i = 0; i < LANES; i++) {
                const float centred = (v.at[i] - mean.at[i]) * w;
                sum.at[i] += centred * centred;
            }
        }
        for (int i = 0; i < LANES; i++) squares[i] += sum.at[i];
    }
    *mean_out = mean;
}

/* Tokens that count, at least one. */
static double weigh(const float *weight, int64_t tokens) {
    if (!weight) return tokens;
    double count = 0;
    for (int64_t t = 0; t < tokens; t++) count += weight[t];
    return count < 1 ? 1 : count;
}

/* Scale and zero point of `width` channels from `x` on, by least squares. */
static void fit_channels(
    const float *restrict x, const float *restrict weight, int64_t tokens, int64_t dim, int64_t width, double count,
    const float *half_step, const float *highest, int64_t refits, float *scale_out, float *zero_point_out) {
    const lanes_t top = read_lanes(highest, width), half = read_lanes(half_step, width);
    double total[LANES];
    lanes_t mean, scale, zero_point;
    moments(x, weight, tokens, dim, width, count, &mean, total);
    for (int i = 0; i < LANES; i++) {
        scale.at[i] = 2.0f * half.at[i] * __builtin_sqrtf((float)(total[i] / count));
        zero_point.at[i] = mean.at[i] - scale.at[i] * top.at[i] / 2.0f;
    }
    for (int64_t round = 0; round < refits; round++) {
        double codes[LANES] = {0}, squares[LANES] = {0}, products[LANES] = {0};
        lanes_t inverse;
        for (int i = 0; i < LANES; i++) inverse.at[i] = scale.at[i] == 0.0f ? 0.0f : 1.0f / scale.at[i];
        for (int64_t first = 0; first < tokens; first += RUN) {
            lanes_t c = {{0}}, s = {{0}}, p = {{0}};
            for (int64_t t = first; t < least(first + RUN, tokens); t++) {
                const lanes_t v = read_lanes(x + t * dim, width);
                const float w = weight ? weight[t] : 1.0f;
                for (int i = 0; i < LANES; i++) {
                    const float code = code_of(v.at[i], zero_point.at[i], inverse.at[i], top.at[i]), own = code * w;
                    c.at[i] += own;
                    s.at[i] += own * code;
                    p.at[i] += code * ((v.at[i] - mean.at[i]) * w);
                }
            }
            for (int i = 0; i < LANES; i++) codes[i] += c.at[i], squares[i] += s.at[i], products[i] += p.at[i];
        }
        for (int i = 0; i < LANES; i++) {
            const double code_mean = codes[i] / count, variance = squares[i] / count - code_mean * code_mean;
            if (variance > SMALLEST) scale.at[i] = (float)(products[i] / count / variance);
            zero_point.at[i] = (float)(mean.at[i] - scale.at[i] * code_mean);
        }
    }
    memcpy(scale_out, scale.at, width * sizeof(float));
    memcpy(zero_point_out, zero_point.at, width * sizeof(float));
}

/* Of every vector v of [tokens][dim] the weights of its tokens, or NULL if every token counts. For [B, H, G] vectors
 * and [B, G] weights, `repeats` is H * G, for [1, G] weights all of the vectors. */
static const float *weight_of(const float *weight, int64_t v, int64_t repeats, int64_t groups, int64_t tokens) {
    return weight ? weight + (v / repeats * groups + v % groups) * tokens : NULL;
}

/* scale and zero_point [vectors][dim] */
void kvmm_fit_levels(
    const float *x, const float *weight, int64_t vectors, int64_t repeats, int64_t groups, int64_t tokens, int64_t dim,
    const float *half_step, const float *highest, int64_t refits, float *scale, float *zero_point) {
    for (int64_t v = 0; v < vectors; v++) {
        const float *own = weight_of(weight, v, repeats, groups, tokens);
        const double count = weigh(own, tokens);
        for (int64_t at = 0; at < dim; at += LANES)
            fit_channels(
                x + v * tokens * dim + at, own, tokens, dim, least(LANES, dim - at), count, half_step + at,
                highest + at, refits, scale + v * dim + at, zero_point + v * dim + at);
    }
}

/* mean and variance [vectors][dim] */
void kvmm_moments(
    const float *x, const float *weight, int64_t vectors, int64_t repeats, int64_t groups, int64_t tokens, int64_t dim,
    float *mean, float *variance) {
    for (int64_t v = 0; v < vectors; v++) {
        const float *own = weight_of(weight, v, repeats, groups, tokens);
        const double count = weigh(own, tokens);
        for (int64_t at = 0; at < dim; at += LANES) {
            const int64_t width = least(LANES, dim - at);
            lanes_t centre;
            double squares[LANES];
            moments(x + v * tokens * dim + at, own, tokens, dim, width, count, &centre, squares);
            memcpy(mean + v * dim + at, centre.at, width * sizeof(float));
            for (int64_t i = 0; i < width; i++) variance[v * dim + at + i] = (float)(squares[i] / count);
        }
    }
}

/* excess [vectors][tokens]: the squares by which channels are further than reach [vectors][dim] from their means */
void kvmm_token_excess(
    const float *restrict x, const float *restrict mean, const float *restrict reach, int64_t vectors, int64_t tokens,
    int64_t dim, float *restrict excess) {
    for (int64_t v = 0; v < vectors; v++)
        for (int64_t t = 0; t < tokens; t++) {
            const float *own = x + (v * tokens + t) * dim;
            lanes_t sum = {{0}};
            for (int64_t at = 0; at < dim; at += LANES) {
                const int64_t width = least(LANES, dim - at);
                const lanes_t a = read_lanes(own + at, width), m = read_lanes(mean + v * dim + at, width);
                const lanes_t r = read_lanes(reach + v * dim + at, width);
                for (int i = 0; i < LANES; i++) {
                    const float apart = __builtin_fabsf(a.at[i] - m.at[i]) - r.at[i];
                    const float over = apart > 0.0f ? apart : 0.0f;
                    sum.at[i] += over * over;
                }
            }
            float total = 0;
            for (int i = 0; i < LANES; i++) total += sum.at[i];
            excess[v * tokens + t] = total;
        }
}

/* sums [pages][dim] and counts [pages] of the slots where keep [pages][page_size] is not 0 */
void kvmm_page_sums(
    const float *restrict x, const uint8_t *keep, int64_t pages, int64_t page_size, int64_t dim, float *restrict sums,
    float *counts) {
    for (int64_t p = 0; p < pages; p++) {
        float *sum = sums + p * dim, count = 0;
        memset(sum, 0, dim * sizeof *sum);
        for (int64_t t = 0; t < page_size; t++) {
            if (!keep[p * page_size + t]) continue;
            const float *own = x + (p * page_size + t) * dim;
            for (int64_t c = 0; c < dim; c++) sum[c] += own[c];
            count += 1;
        }
        counts[p] = count;
    }
}

/* One byte a row and channel: `rows` rows of a page, whose codes lie 8 / bits * rows apart. */
static void pack(
    const uint8_t *codes, int64_t stride, int64_t rows, int64_t first, int64_t count, int bits, int shift, uint8_t *out,
    int64_t row_step, int64_t lane_step) {
    const int mask = (1 << bits) - 1;
    uint8_t row[256];
    for (int64_t j = 0; j < rows; j++) {
        memset(row, 0, count);
        for (int s = 0; s < 8 / bits; s++) {
            const uint8_t *own = codes + (s * rows + j) * stride + first;
            for (int64_t c = 0; c < count; c++) row[c] |= (uint8_t)((own[c] >> shift & mask) << (s * bits));
        }
        if (lane_step == 1)
            memcpy(out + j * row_step, row, count);
        else
            for (int64_t c = 0; c < count; c++) out[j * row_step + c * lane_step] = row[c];
    }
}

/* Bit planes of channels with a number of bits each, at most 256 of them.
 *
 * x [vectors][pages][page_size][dim]; scale and zero_point [vectors][coded]; in plane p of two bits there are the first
 * two_bit[p] channels, in the plane of one bit those from one_first to coded. The planes of a page, [rows][lanes] or
 * [lanes][rows] if `transposed`, have `lanes` two_lanes and one_lanes. Returns 0, or 1 without memory. */
int kvmm_plane_codes(
    const float *x, const float *scale, const float *zero_point, const float *highest, int64_t vectors, int64_t pages,
    int64_t page_size, int64_t dim, int64_t coded, const int64_t *two_bit, int64_t one_first, int64_t transposed,
    uint8_t *two, int64_t two_lanes, uint8_t *one, int64_t one_lanes) {
    uint8_t *codes = malloc(page_size * coded + 1);
    float inverse[256];
    if (!codes) return 1;
    for (int64_t v = 0; v < vectors; v++) {
        const float *steps = scale + v * coded, *zero = zero_point + v * coded;
        for (int64_t c = 0; c < coded; c++) inverse[c] = steps[c] == 0.0f ? 0.0f : 1.0f / steps[c];
        for (int64_t p = 0; p < pages; p++) {
            const int64_t page = v * pages + p;
            const float *from = x + page * page_size * dim;
            for (int64_t t = 0; t < page_size; t++)
                for (int64_t c = 0; c < coded; c++)
                    codes[t * coded + c] = (uint8_t)(int32_t)code_of(from[t * dim + c], zero[c], inverse[c], highest[c]);
            const int64_t rows2 = page_size / 4, rows1 = page_size / 8;
            int64_t lane = 0;
            for (int plane = 0; plane < 4 && two; lane += two_bit[plane++])
                pack(
                    codes, coded, rows2, 0, two_bit[plane], 2, 2 * plane,
                    two + page * rows2 * two_lanes + lane * (transposed ? rows2 : 1), transposed ? 1 : two_lanes,
                    transposed ? rows2 : 1);
            if (one)
                pack(
                    codes, coded, rows1, one_first, coded - one_first, 1, 0, one + page * rows1 * one_lanes,
                    transposed ? 1 : one_lanes, transposed ? rows1 : 1);
        }
    }
    free(codes);
    return 0;
}
