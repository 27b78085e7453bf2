/* Statistics, levels and packed codes of pages on a CPU; dense.py and reference.py define them.
 *
 * VL channels are taken at a time through all tokens: their sums stay in registers, and what torch does in a dozen passes
 * over a span is one. Codes of given levels are bit by bit those of the reference; sums are of float within a run of
 * tokens and of double between runs.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { F32, F16 }; /* dtypes of vectors.h; everything here is float */
#include "vectors.h"

#define INLINE static inline __attribute__((always_inline))
#define RUN 64 /* tokens whose sums are of float */
#define MAGIC 12582912.0f /* 1.5 * 2^23: added and taken away, it rounds to the nearest even whole number */
#define SMALLEST 1e-6 /* variance of codes from which on there is something to fit */
#define MOST_CHANNELS 256

typedef struct {
    double at[VL];
} totals_t;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* `width` floats, zeros behind them */
INLINE vf load_some(const float *x, int64_t width) {
    if (width == VL) return load(x);
    vf v = {};
    memcpy(&v, x, width * sizeof *x);
    return v;
}

INLINE void store_some(float *x, vf v, int64_t width) { memcpy(x, &v, width * sizeof *x); }

INLINE void add(totals_t *total, vf v) {
    float x[VL];
    store(x, v);
    for (int i = 0; i < VL; i++) total->at[i] += x[i];
}

INLINE vf average(totals_t total, double count) {
    float x[VL];
    for (int i = 0; i < VL; i++) x[i] = (float)(total.at[i] / count);
    return load(x);
}

/* what is not a number has code 0 */
INLINE vf codes_of(vf x, vf zero_point, vf inverse, vf highest) {
    vf code = (x - zero_point) * inverse;
    code = (vf)((vi)code & (code > (vf){}));
    const vi low = code < highest;
    code = (vf)(((vi)code & low) | ((vi)highest & ~low));
    return (code + MAGIC) - MAGIC;
}

INLINE vf inverse_of(vf scale) {
    float x[VL];
    store(x, scale);
    for (int i = 0; i < VL; i++) x[i] = x[i] == 0.0f ? 0.0f : 1.0f / x[i];
    return load(x);
}

/* Tokens that count, at least one. */
static double weigh(const float *weight, int64_t tokens) {
    if (!weight) return tokens;
    double count = 0;
    for (int64_t t = 0; t < tokens; t++) count += weight[t];
    return count < 1 ? 1 : count;
}

/* Mean of `width` channels from `x` on, and their variance about it. */
INLINE void moments(
    const float *x, const float *weight, int64_t tokens, int64_t dim, int64_t width, double count, vf *mean,
    vf *variance) {
    totals_t total = {{0}}, squares = {{0}};
    for (int64_t first = 0; first < tokens; first += RUN) {
        vf sum = {};
        for (int64_t t = first; t < least(first + RUN, tokens); t++) {
            const vf v = load_some(x + t * dim, width);
            sum += weight ? v * weight[t] : v;
        }
        add(&total, sum);
    }
    *mean = average(total, count);
    for (int64_t first = 0; first < tokens; first += RUN) {
        vf sum = {};
        for (int64_t t = first; t < least(first + RUN, tokens); t++) {
            const vf v = load_some(x + t * dim, width) - *mean, centred = weight ? v * weight[t] : v;
            sum += centred * centred;
        }
        add(&squares, sum);
    }
    *variance = average(squares, count);
}

/* Scale and zero point of `width` channels from `x` on, by least squares. */
INLINE void fit_channels(
    const float *x, const float *weight, int64_t tokens, int64_t dim, int64_t width, double count,
    const float *half_step, const float *highest, int64_t refits, float *scale_out, float *zero_point_out) {
    const vf top = load_some(highest, width);
    vf mean, variance;
    moments(x, weight, tokens, dim, width, count, &mean, &variance);
    float deviation[VL], centre[VL], step[VL], zero[VL];
    store(deviation, variance);
    store(centre, mean);
    for (int i = 0; i < VL; i++) deviation[i] = __builtin_sqrtf(deviation[i]);
    vf scale = 2.0f * load_some(half_step, width) * load(deviation), zero_point = mean - scale * top / 2.0f;
    for (int64_t round = 0; round < refits; round++) {
        totals_t codes = {{0}}, squares = {{0}}, products = {{0}};
        const vf inverse = inverse_of(scale);
        for (int64_t first = 0; first < tokens; first += RUN) {
            vf c = {}, s = {}, p = {};
            for (int64_t t = first; t < least(first + RUN, tokens); t++) {
                const vf v = load_some(x + t * dim, width), code = codes_of(v, zero_point, inverse, top);
                const vf own = weight ? code * weight[t] : code;
                c += own;
                s += own * code;
                p += own * (v - mean);
            }
            add(&codes, c);
            add(&squares, s);
            add(&products, p);
        }
        store(step, scale);
        for (int i = 0; i < VL; i++) {
            const double code_mean = codes.at[i] / count, spread = squares.at[i] / count - code_mean * code_mean;
            if (spread > SMALLEST) step[i] = (float)(products.at[i] / count / spread);
            zero[i] = (float)(centre[i] - step[i] * code_mean);
        }
        scale = load(step);
        zero_point = load(zero);
    }
    store_some(scale_out, scale, width);
    store_some(zero_point_out, zero_point, width);
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
        for (int64_t at = 0; at < dim; at += VL) {
            const float *from = x + v * tokens * dim + at, *half = half_step + at, *top = highest + at;
            float *s = scale + v * dim + at, *z = zero_point + v * dim + at;
            /* apart, as a compiler makes better loops of what it knows */
            if (dim - at >= VL && !own)
                fit_channels(from, NULL, tokens, dim, VL, count, half, top, refits, s, z);
            else if (dim - at >= VL)
                fit_channels(from, own, tokens, dim, VL, count, half, top, refits, s, z);
            else
                fit_channels(from, own, tokens, dim, dim - at, count, half, top, refits, s, z);
        }
    }
}

/* mean and variance [vectors][dim] */
void kvmm_moments(
    const float *x, const float *weight, int64_t vectors, int64_t repeats, int64_t groups, int64_t tokens, int64_t dim,
    float *mean, float *variance) {
    for (int64_t v = 0; v < vectors; v++) {
        const float *own = weight_of(weight, v, repeats, groups, tokens);
        const double count = weigh(own, tokens);
        for (int64_t at = 0; at < dim; at += VL) {
            const int64_t width = least(VL, dim - at);
            const float *from = x + v * tokens * dim + at;
            vf centre, square;
            if (width == VL && !own)
                moments(from, NULL, tokens, dim, VL, count, &centre, &square);
            else
                moments(from, own, tokens, dim, width, count, &centre, &square);
            store_some(mean + v * dim + at, centre, width);
            store_some(variance + v * dim + at, square, width);
        }
    }
}

INLINE vf square_beyond(vf x, vf mean, vf reach) {
    const vf apart = x - mean, over = (vf)((vi)apart & 0x7fffffff) - reach;
    const vf some = (vf)((vi)over & (over > (vf){}));
    return some * some;
}

/* excess [vectors][tokens]: the squares by which channels are further than reach [vectors][dim] from their means */
void kvmm_token_excess(
    const float *x, const float *mean, const float *reach, int64_t vectors, int64_t tokens, int64_t dim,
    float *excess) {
    for (int64_t v = 0; v < vectors; v++) {
        const float *m = mean + v * dim, *r = reach + v * dim;
        for (int64_t t = 0; t < tokens; t++) {
            const float *own = x + (v * tokens + t) * dim;
            vf total = {};
            int64_t at = 0;
            for (; at + VL <= dim; at += VL) total += square_beyond(load(own + at), load(m + at), load(r + at));
            if (at < dim) {
                const int64_t rest = dim - at;
                total += square_beyond(load_some(own + at, rest), load_some(m + at, rest), load_some(r + at, rest));
            }
            excess[v * tokens + t] = sum(total);
        }
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

/* Codes [tokens][count] of the first `count` channels, each read VL at a time; scale ... highest have room for that. */
static void token_codes(
    const float *x, int64_t tokens, int64_t dim, int64_t count, const float *zero_point, const float *inverse,
    const float *highest, uint8_t *restrict codes) {
    for (int64_t at = 0; at < count; at += VL) {
        const int64_t width = least(VL, count - at), there = least(VL, dim - at);
        const vf zero = load(zero_point + at), inv = load(inverse + at), top = load(highest + at);
        for (int64_t t = 0; t < tokens; t++) {
            const vf v = there == VL ? load(x + t * dim + at) : load_some(x + t * dim + at, there);
            const vb found = __builtin_convertvector(__builtin_convertvector(codes_of(v, zero, inv, top), vi), vb);
            memcpy(codes + t * count + at, &found, width);
        }
    }
}

/* One byte a row and channel: `rows` rows of a page, whose codes lie 8 / bits * rows apart. */
static void pack(
    const uint8_t *codes, int64_t stride, int64_t rows, int64_t first, int64_t count, int bits, int shift, uint8_t *out,
    int64_t row_step, int64_t lane_step) {
    const int mask = (1 << bits) - 1;
    uint8_t row[MOST_CHANNELS];
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

/* Where the bytes of one plane of a page lie: [rows][lanes] or [lanes][rows] if `transposed`. */
INLINE void pack_page(
    const uint8_t *codes, int64_t stride, int64_t page_size, int64_t first, int64_t count, int bits, int shift,
    int transposed, int64_t lanes, int64_t lane, uint8_t *out) {
    const int64_t rows = page_size * bits / 8;
    pack(
        codes, stride, rows, first, count, bits, shift, out + lane * (transposed ? rows : 1), transposed ? 1 : lanes,
        transposed ? rows : 1);
}

/* Codes of coordinates of unit vectors: the number of borders below each, in bit planes.
 *
 * x [pages][page_size][dim] and inverse [lengths][pages][page_size]; of each of the `runs` of neighbouring channels their
 * number, which of the inverses they are multiplied by, and how many of the ascending `borders`, one after the other,
 * are theirs. low [pages] planes of all channels, high [pages] of the bits above them of the first high_channels. Returns
 * 0, or 1 without memory. */
int kvmm_book_codes(
    const float *x, const float *inverse, int64_t pages, int64_t page_size, int64_t dim, int64_t runs,
    const int64_t *channels, const int64_t *length_of, const int64_t *borders_of, const float *borders, int64_t low_bits,
    int64_t high_bits, int64_t high_channels, int64_t transposed, uint8_t *low, uint8_t *high) {
    uint8_t *codes = malloc(page_size * dim + 1);
    if (!codes) return 1;
    for (int64_t page = 0; page < pages; page++) {
        for (int64_t t = 0; t < page_size; t++) {
            const float *own = x + (page * page_size + t) * dim, *levels = borders;
            uint8_t *to = codes + t * dim;
            for (int64_t r = 0; r < runs; levels += borders_of[r++]) {
                const float factor = inverse[(length_of[r] * pages + page) * page_size + t];
                for (int64_t at = 0; at < channels[r]; at += VL) {
                    const int64_t width = least(VL, channels[r] - at);
                    const vf v = load_some(own + at, width) * factor;
                    vi count = {};
                    for (int64_t k = 0; k < borders_of[r]; k++) count -= v > broadcast(levels[k]);
                    const vb found = __builtin_convertvector(count, vb);
                    memcpy(to + at, &found, width);
                }
                own += channels[r];
                to += channels[r];
            }
        }
        const int64_t row = page_size / 8;
        pack_page(codes, dim, page_size, 0, dim, low_bits, 0, transposed, dim, 0, low + page * row * low_bits * dim);
        if (high)
            pack_page(
                codes, dim, page_size, 0, high_channels, high_bits, low_bits, transposed, high_channels, 0,
                high + page * row * high_bits * high_channels);
    }
    free(codes);
    return 0;
}

/* Bit planes of channels with a number of bits each, at most MOST_CHANNELS of them.
 *
 * x [vectors][pages][page_size][dim]; scale and zero_point [vectors][coded]; in plane p of two bits there are the first
 * two_bit[p] channels, in the plane of one bit those from one_first to coded. The planes of a page, [rows][lanes] or
 * [lanes][rows] if `transposed`, have `lanes` two_lanes and one_lanes. Returns 0, or 1 without memory. */
int kvmm_plane_codes(
    const float *x, const float *scale, const float *zero_point, const float *highest, int64_t vectors, int64_t pages,
    int64_t page_size, int64_t dim, int64_t coded, const int64_t *two_bit, int64_t one_first, int64_t transposed,
    uint8_t *two, int64_t two_lanes, uint8_t *one, int64_t one_lanes) {
    uint8_t *codes = malloc(page_size * coded + 1);
    float inverse[MOST_CHANNELS + VL] = {0}, zero[MOST_CHANNELS + VL] = {0}, top[MOST_CHANNELS + VL] = {0};
    if (!codes) return 1;
    memcpy(top, highest, coded * sizeof *top);
    for (int64_t v = 0; v < vectors; v++) {
        memcpy(zero, zero_point + v * coded, coded * sizeof *zero);
        for (int64_t c = 0; c < coded; c++) inverse[c] = scale[v * coded + c] == 0.0f ? 0.0f : 1.0f / scale[v * coded + c];
        for (int64_t page = v * pages; page < (v + 1) * pages; page++) {
            const int64_t row = page_size / 8;
            int64_t lane = 0;
            token_codes(x + page * page_size * dim, page_size, dim, coded, zero, inverse, top, codes);
            for (int plane = 0; plane < 4 && two; lane += two_bit[plane++])
                pack_page(
                    codes, coded, page_size, 0, two_bit[plane], 2, 2 * plane, transposed, two_lanes, lane,
                    two + page * row * 2 * two_lanes);
            if (one)
                pack_page(
                    codes, coded, page_size, one_first, coded - one_first, 1, 0, transposed, one_lanes, 0,
                    one + page * row * one_lanes);
        }
    }
    free(codes);
    return 0;
}
