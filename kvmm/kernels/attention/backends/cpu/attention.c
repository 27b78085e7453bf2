/* Decode attention over packed segments on a CPU, read in place, one head at a time.
 *
 * Scores are dot products of folded queries with bytes that are masked and converted in registers; the weight of the
 * bits in a byte (4^k, 2^k) is folded in too, so no code is shifted. Probabilities meet the values the same way.
 * Everything else of a step (transform, zero points, norms, softmax) is small and plain. The structures come from
 * packed_format.h, which structs.py makes from the declaration of the format.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "packed_format.h"
#include "vectors.h"

#define TILE 4 /* rows taken at once */
#define RUN 1024 /* tokens whose probabilities stay in the first-level cache */

/* -- small things ------------------------------------------------------------------------------------------------ */

static inline void to_float(const array_t *a, int64_t at, int64_t count, float *out) {
    read_floats(a->data, a->dtype, at, count, out);
}

static inline vi load_bytes(const uint8_t *x, int64_t count) {
    vb v = {};
    if (count >= VL)
        memcpy(&v, x, VL);
    else
        memcpy(&v, x, count);
    return __builtin_convertvector(v, vi);
}

static int64_t padded(int64_t n) { return (n + VL - 1) / VL * VL; }

/* -- scores ------------------------------------------------------------------------------------------------------ */

/* VL rows of bytes, turned (column j of them is turned + j * VL), against R folded queries of each of P planes:
 * acc[k * R + r] += sum_j folded[k][r][j] * code k of column j. */
#define DOT(P, R)                                                                                                  \
    static void dot_##P##_##R(const uint8_t *turned, int64_t width, const float *const *folded, int64_t stride,    \
                              vf *sums_) {                                                                         \
        vf acc[P * R];                                                                                             \
        for (int i = 0; i < P * R; i++) acc[i] = sums_[i];                                                         \
        for (int64_t j = 0; j < width; j++) {                                                                      \
            vb bytes;                                                                                              \
            memcpy(&bytes, turned + j * VL, VL);                                                                   \
            vi x = __builtin_convertvector(bytes, vi);                                                             \
            for (int k = 0; k < P; k++) {                                                                          \
                vf c = __builtin_convertvector(P == 1 ? x : x & (((1 << 8 / P) - 1) << 8 / P * k), vf);            \
                for (int r = 0; r < R; r++) acc[k * R + r] += c * folded[k][r * stride + j];                       \
            }                                                                                                      \
        }                                                                                                          \
        for (int i = 0; i < P * R; i++) sums_[i] = acc[i];                                                         \
    }
DOT(1, 1) DOT(1, 2) DOT(1, 3) DOT(1, 4) DOT(2, 1) DOT(2, 2) DOT(2, 3) DOT(2, 4)
DOT(4, 1) DOT(4, 2) DOT(4, 3) DOT(4, 4) DOT(8, 1) DOT(8, 2) DOT(8, 3)

typedef void (*dot_t)(const uint8_t *, int64_t, const float *const *, int64_t, vf *);

static dot_t choose_dot(int64_t planes, int64_t rows) {
    static const dot_t dots[4][4] = {{dot_1_1, dot_1_2, dot_1_3, dot_1_4},
                                     {dot_2_1, dot_2_2, dot_2_3, dot_2_4},
                                     {dot_4_1, dot_4_2, dot_4_3, dot_4_4},
                                     {dot_8_1, dot_8_2, dot_8_3, dot_8_3}};
    return dots[planes == 1 ? 0 : planes == 2 ? 1 : planes == 4 ? 2 : 3][rows - 1];
}

typedef uint8_t v16 __attribute__((vector_size(16)));

#define LOW(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* Turn up to VL rows of width bytes, stride apart: column j to turned + j * VL. Nothing at or behind end is read. */
static void turn(const uint8_t *rows, int64_t count, int64_t stride, int64_t width, const uint8_t *end,
                 uint8_t *turned) {
    for (int64_t j = 0; j < width; j += 16) {
        v16 a[16], t[16];
        for (int i = 0; i < 16; i++) {
            const uint8_t *from = rows + i * stride + j;
            a[i] = (v16){};
            if (i >= count) continue;
            if (from + 16 <= end)
                memcpy(&a[i], from, 16);
            else
                memcpy(&a[i], from, end - from);
        }
        /* interleaving rows i and i + 8 four times */
        for (int stage = 0; stage < 4; stage++) {
            for (int i = 0; i < 8; i++) {
                t[2 * i] = LOW(a[i], a[i + 8]);
                t[2 * i + 1] = HIGH(a[i], a[i + 8]);
            }
            memcpy(a, t, sizeof a);
        }
        int64_t own = width - j < 16 ? width - j : 16;
        for (int64_t i = 0; i < own; i++) memcpy(turned + (j + i) * VL, &a[i], VL);
    }
}

/* What C rows of bytes of values, run apart, add: out[c * R + r] = sum_i p[k][r][i] * code k of byte i of row c. */
#define MIX(P, R, C)                                                                                               \
    static void mix_##P##_##R##_##C(const uint8_t *codes, int64_t pages, int64_t page_stride, int64_t run,         \
                                    const float *p, int64_t page_tokens, int64_t stride, float *out) {             \
        vf acc[C * R];                                                                                             \
        for (int i = 0; i < C * R; i++) acc[i] = (vf){};                                                           \
        for (int64_t page = 0; page < pages; page++) {                                                             \
            const uint8_t *row = codes + page * page_stride;                                                       \
            const float *own = p + page * page_tokens;                                                             \
            for (int64_t i = 0; i < run; i += VL) {                                                                \
                vi x[C];                                                                                           \
                for (int c = 0; c < C; c++) x[c] = load_bytes(row + c * run + i, run - i);                         \
                for (int k = 0; k < P; k++) {                                                                      \
                    vf d[C];                                                                                       \
                    for (int c = 0; c < C; c++)                                                                    \
                        d[c] = __builtin_convertvector(                                                            \
                            P == 1 ? x[c] : x[c] & (((1 << 8 / P) - 1) << 8 / P * k), vf);                         \
                    for (int r = 0; r < R; r++) {                                                                  \
                        vf y = load(own + r * stride + k * run + i);                                               \
                        for (int c = 0; c < C; c++) acc[c * R + r] += d[c] * y;                                    \
                    }                                                                                              \
                }                                                                                                  \
            }                                                                                                      \
        }                                                                                                          \
        sums(acc, out, C * R);                                                                                     \
    }
#define MIXES(P) MIX(P, 1, 1) MIX(P, 2, 1) MIX(P, 3, 1) MIX(P, 4, 1) MIX(P, 1, 4) MIX(P, 2, 4) MIX(P, 3, 4) MIX(P, 4, 4)
MIXES(1) MIXES(2) MIXES(4) MIXES(8)

typedef void (*mix_t)(const uint8_t *, int64_t, int64_t, int64_t, const float *, int64_t, int64_t, float *);

static mix_t choose_mix(int64_t planes, int64_t rows, int64_t count) {
#define ROWS(P, C) {mix_##P##_1_##C, mix_##P##_2_##C, mix_##P##_3_##C, mix_##P##_4_##C}
    static const mix_t mixes[4][2][4] = {
        {ROWS(1, 1), ROWS(1, 4)}, {ROWS(2, 1), ROWS(2, 4)}, {ROWS(4, 1), ROWS(4, 4)}, {ROWS(8, 1), ROWS(8, 4)}};
    return mixes[planes == 1 ? 0 : planes == 2 ? 1 : planes == 4 ? 2 : 3][count == 4][rows - 1];
}

/* x [rows, n] @ matrix [n, width]; identity without a matrix */
static void times(const float *x, int64_t rows, int64_t n, const float *matrix, int64_t width, float *out) {
    for (int64_t r = 0; r < rows; r++) {
        float *o = out + r * width;
        memset(o, 0, 4 * width);
        for (int64_t i = 0; i < n; i++) {
            float a = x[r * n + i];
            const float *m = matrix + i * width;
            for (int64_t j = 0; j < width; j++) o[j] += a * m[j];
        }
    }
}

/* scale [channels] and zero point [dim] of a group, the fallback levels among them; zero with the offset */
static void group_parameters(const format_t *s, int64_t b, int64_t h, int64_t g, float *scale, float *zero) {
    int64_t fallback = s->fallback_zero_point.data != NULL && (g < 0 || g >= s->groups);
    if (g < 0) g = s->groups - 1;
    if (fallback) {
        if (s->channels) to_float(&s->fallback_scale, h * s->fallback_scale.head, s->channels, scale);
        to_float(&s->fallback_zero_point, h * s->fallback_zero_point.head, s->dim, zero);
    } else {
        if (s->channels) to_float(&s->scale, b * s->scale.batch + h * s->scale.head + g * s->channels, s->channels, scale);
        to_float(&s->zero_point, b * s->zero_point.batch + h * s->zero_point.head + g * s->dim, s->dim, zero);
    }
    if (s->offset.data) {
        const float *offset = (const float *)s->offset.data + h * s->offset.head;
        for (int64_t c = 0; c < s->dim; c++) zero[c] += offset[c];
    }
}

/* The query in the lanes of a group: folded [k][r][column] for plane k of its bytes, without the plane's shift. */
static void fold(const format_t *s, const uint8_t *boosted, const float *z, int64_t width, int64_t rows, int64_t total,
                 const float *scale, float *folded, int64_t k_stride) {
    int64_t column = 0;
    for (int64_t n = 0; n < s->num_planes; n++) {
        const plane_t *plane = &s->plane[n];
        for (int64_t r = 0; r < rows; r++) {
            float *to = folded + r * total + column;
            const float *from = z + r * width;
            for (int64_t j = 0; j < plane->width; j++) {
                int64_t q = column + j, channel = n && boosted ? boosted[j] : s->lane_channel ? s->lane_channel[q] : q;
                float x = from[channel];
                if (s->plane_weight) x *= s->plane_weight[q];
                to[j] = s->by_token ? x : x * scale[channel];
            }
            float worth = 1;
            for (int64_t k = 1; k < 8 / plane->bits; k++) {
                worth /= (float)(1 << plane->bits);
                for (int64_t j = 0; j < plane->width; j++) to[k * k_stride + j] = to[j] * worth;
            }
        }
        column += (plane->width + 31) / 32 * 32;
    }
}

/* Scores of one store for the rows of one head, into scores [rows, stride]. */
static void score_planes(const format_t *s, int64_t b, int64_t h, const float *query, int64_t rows, int64_t dim,
                         float scaling, float *scores, int64_t stride, float *work) {
    int64_t width = s->transform.data ? s->transform_width : dim, total = padded(s->lanes) + VL;
    int64_t tokens = s->page_size, groups_per_page = s->by_token || s->groups_per_page < 1 ? 1 : s->groups_per_page, unit = tokens / groups_per_page;
    float *z = work, *folded = z + rows * width, *scale = folded + 8 * groups_per_page * rows * total, *zero = scale + MAX_CHANNELS;
    int64_t chunks = s->by_token ? s->channel_groups : 1, last = INT64_MIN;
    float *parameters = zero + MAX_CHANNELS + VL, *bias = parameters + 2 * chunks * (tokens + VL);
    float *sums_ = bias + groups_per_page * MAX_ROWS;
    uint8_t *turned = (uint8_t *)(sums_ + chunks * MAX_ROWS); /* up to MAX_CHANNELS columns of VL bytes */
    if (s->transform.data)
        times(query, rows, dim, (const float *)s->transform.data + h * s->transform.head, width, z);
    else
        memcpy(z, query, 4 * rows * dim);
    for (int64_t i = 0; i < rows * width; i++) z[i] *= scaling;
    if (s->by_token)
        for (int64_t c = 0; c < chunks; c++)
            for (int64_t r = 0; r < rows; r++) {
                int64_t wide = s->plane[0].width / chunks;
                sums_[c * rows + r] = dot(z + r * width + c * wide, NULL, wide);
            }
    memset(folded, 0, 4 * 8 * groups_per_page * rows * total);
    for (int64_t p = 0; p < s->pages; p++) {
        for (int64_t u = 0; u < groups_per_page; u++) {
            int64_t g = s->page_group ? s->page_group[p] : s->by_token || !s->groups_per_page ? 0 : p * groups_per_page + u;
            if (g == last) continue;
            last = g;
            int64_t own = g < 0 ? s->groups - 1 : g;
            if (!s->by_token)
                group_parameters(s, b, h, g, scale, zero);
            else if (s->mean.data)
                to_float(&s->mean, b * s->mean.batch + h * s->mean.head + own * s->dim, s->dim, zero);
            for (int64_t r = 0; r < rows; r++)
                bias[u * rows + r] = !s->by_token || s->mean.data ? dot(z + r * width, zero, s->dim) : 0;
            const uint8_t *boosted = NULL;
            if (s->group_channel.data)
                boosted = (const uint8_t *)s->group_channel.data + b * s->group_channel.batch + h * s->group_channel.head +
                          own * s->group_lanes;
            if (!s->by_token || p == 0)
                fold(s, boosted, z, width, rows, total, scale, folded + u * rows * total, groups_per_page * rows * total);
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t u = 0; u < groups_per_page; u++)
                for (int64_t t = 0; t < unit; t++) scores[r * stride + p * tokens + u * unit + t] = bias[u * rows + r];
        int64_t column = 0;
        for (int64_t n = 0; n < s->num_planes; n++) {
            const plane_t *plane = &s->plane[n];
            int64_t count = 8 / plane->bits, run = tokens / count, wide = plane->width / chunks;
            int64_t most = VL == 16 ? (count == 8 ? 3 : TILE) : count == 8 ? 1 : count == 4 ? 3 : TILE;
            const uint8_t *head = plane->codes + b * plane->batch + h * plane->head;
            const uint8_t *codes = head + p * run * plane->stored, *end = head + s->pages * run * plane->stored;
            if (s->by_token)
                for (int64_t c = 0; c < chunks; c++) {
                    int64_t at = (p * chunks + c) * tokens;
                    float *own = parameters + 2 * c * (tokens + VL);
                    to_float(&s->scale, b * s->scale.batch + h * s->scale.head + at, tokens, own);
                    to_float(&s->zero_point, b * s->zero_point.batch + h * s->zero_point.head + at, tokens, own + tokens + VL);
                }
            for (int64_t i = 0; i < run; i += VL) {
                int64_t lanes = run - i < VL ? run - i : VL;
                turn(codes + i * plane->stored, lanes, plane->stored, plane->width, end, turned);
                for (int64_t c = 0; c < chunks; c++)
                    for (int64_t r0 = 0; r0 < rows; r0 += most) {
                        int64_t own = rows - r0 < most ? rows - r0 : most;
                        const float *planes[8];
                        for (int64_t k = 0; k < count; k++)
                            planes[k] =
                                folded + ((k * groups_per_page + (k * run + i) / unit) * rows + r0) * total + column + c * wide;
                        vf found[24];
                        for (int64_t x = 0; x < count * own; x++) found[x] = (vf){};
                        choose_dot(count, own)(turned + c * wide * VL, wide, planes, total, found);
                        for (int64_t k = 0; k < count; k++)
                            for (int64_t r = 0; r < own; r++) {
                                vf x = found[k * own + r];
                                int64_t t = k * run + i;
                                if (s->by_token) {
                                    const float *at = parameters + 2 * c * (tokens + VL) + t;
                                    x = x * load(at) + sums_[c * rows + r0 + r] * load(at + tokens + VL);
                                }
                                float *to = scores + (r0 + r) * stride + p * tokens + t;
                                if (lanes == VL) {
                                    store(to, load(to) + x);
                                } else {
                                    for (int64_t l = 0; l < lanes; l++) to[l] += x[l];
                                }
                            }
                    }
            }
            column += (plane->width + 31) / 32 * 32;
        }
        if (s->norm.data) {
            to_float(&s->norm, b * s->norm.batch + h * s->norm.head + p * tokens, tokens, parameters);
            for (int64_t r = 0; r < rows; r++)
                for (int64_t t = 0; t < tokens; t++) scores[r * stride + p * tokens + t] *= parameters[t];
        }
    }
}

/* Vectors [count, dim] as floats: the tensor itself, or converted into buffer. */
static const float *vectors(const array_t *a, int64_t at, int64_t count, int64_t dim, float *buffer) {
    if (a->dtype == F32) return (const float *)a->data + at;
    to_float(a, at, count * dim, buffer);
    return buffer;
}

static void score_dense(const array_t *a, int64_t b, int64_t h, int64_t count, int64_t dim, const float *query,
                        int64_t rows, float scaling, float *scores, int64_t stride, float *work) {
    float found[16 + VL];
    for (int64_t t = 0; t < count; t += 4) {
        int64_t own = count - t < 4 ? count - t : 4;
        const float *key = vectors(a, b * a->batch + h * a->head + t * dim, own, dim, work);
        for (int64_t r0 = 0; r0 < rows; r0 += 4) {
            int64_t n = rows - r0 < 4 ? rows - r0 : 4, d = 0;
            const float *q = query + r0 * dim;
            vf acc[16];
            for (int i = 0; i < 16; i++) acc[i] = (vf){};
            if (own == 4 && n == 3) { /* three rows a head are common */
                for (; d + VL <= dim; d += VL)
                    for (int i = 0; i < 4; i++)
                        for (int r = 0; r < 3; r++) acc[i * 4 + r] += load(key + i * dim + d) * load(q + r * dim + d);
            } else {
                for (; d + VL <= dim; d += VL)
                    for (int64_t i = 0; i < own; i++)
                        for (int64_t r = 0; r < n; r++)
                            acc[i * 4 + r] += load(key + i * dim + d) * load(q + r * dim + d);
            }
            sums(acc, found, 16);
            for (int64_t i = 0; i < own; i++)
                for (int64_t r = 0; r < n; r++) {
                    float x = found[i * 4 + r];
                    for (int64_t e = d; e < dim; e++) x += key[i * dim + e] * q[r * dim + e];
                    scores[(r0 + r) * stride + t + i] = x * scaling;
                }
        }
    }
}

/* Tokens that the model's own vectors stand for; slots at or behind count hold none. */
static const int32_t *kept_slots(const format_t *s, int64_t b, int64_t h) {
    return (const int32_t *)s->kept_slot.data + b * s->kept_slot.batch + h * s->kept_slot.head;
}

static void score_kept(const format_t *s, int64_t b, int64_t h, const int32_t *slot, int64_t count, int64_t dim,
                       const float *query, int64_t rows, float scaling, float *scores, int64_t stride, float *work) {
    for (int64_t e = 0; e < s->kept_tokens; e++) {
        if (slot[e] >= count) continue;
        const float *key = vectors(&s->kept, b * s->kept.batch + h * s->kept.head + e * dim, 1, dim, work);
        for (int64_t r = 0; r < rows; r++) scores[r * stride + slot[e]] = dot(query + r * dim, key, dim) * scaling;
    }
}

/* Their probabilities become 0, so that the codes in their slots count for nothing. */
static void weigh_kept(const format_t *s, int64_t b, int64_t h, const int32_t *slot, int64_t count, int64_t dim, float *p,
                       int64_t rows, int64_t stride, float *out, float *work) {
    for (int64_t e = 0; e < s->kept_tokens; e++) {
        if (slot[e] >= count) continue;
        const float *value = vectors(&s->kept, b * s->kept.batch + h * s->kept.head + e * dim, 1, dim, work);
        for (int64_t r = 0; r < rows; r++) {
            float weight = p[r * stride + slot[e]];
            p[r * stride + slot[e]] = 0;
            for (int64_t d = 0; d < dim; d++) out[r * dim + d] += weight * value[d];
        }
    }
}

/* CalibQuant's calibration: logits of [gamma, delta] go to [gamma - tau1, delta - tau2], where that line rises. */
static void calibrate(const format_t *s, float *scores, const float *bias, int64_t count) {
    float delta = -INFINITY, gamma = INFINITY;
    for (int64_t t = 0; t < count; t++) {
        float seen = bias ? scores[t] + bias[t] : scores[t];
        if (seen > delta) delta = seen;
        if (!(bias && bias[t] < -1e20f) && scores[t] < gamma) gamma = scores[t];
    }
    float span = delta - gamma, slope = 1 + (float)(s->low_shift - s->high_shift) / span;
    if (!(slope > 0 && span > 0 && span < INFINITY)) return;
    for (int64_t t = 0; t < count; t++) scores[t] = (scores[t] - gamma) * slope + (gamma - (float)s->low_shift);
}

/* -- values ------------------------------------------------------------------------------------------------------ */

/* out [rows, dim] += what the probabilities p [rows, stride] take from one store. */
static void weigh_planes(const format_t *s, int64_t b, int64_t h, float *p, int64_t rows, int64_t stride, float *out,
                       int64_t dim, float *work) {
    int64_t tokens = s->page_size, chunks = s->by_token ? s->channel_groups : 1;
    int64_t batch_pages = RUN / tokens < 1 ? 1 : RUN / tokens, capacity = batch_pages * tokens + VL;
    float *transformed = work, *scale = transformed + rows * (s->dim + VL), *zero = scale + MAX_CHANNELS, *norm = zero + MAX_CHANNELS + VL;
    float *scaled = norm + 2 * (tokens + VL), found[16 + VL];
    memset(transformed, 0, 4 * rows * s->dim);
    for (int64_t first = 0; first < s->pages;) {
        /* a run of pages of one group */
        int64_t g = s->page_group && !s->by_token ? s->page_group[first] : s->groups_per_page == 1 ? first : 0, last = first + 1;
        while (last < s->pages && last - first < batch_pages &&
               (s->by_token || (s->page_group ? s->page_group[last] == g : s->groups_per_page != 1)))
            last++;
        int64_t count = last - first, span = count * tokens;
        if (s->norm.data)
            for (int64_t page = first; page < last; page++) {
                to_float(&s->norm, b * s->norm.batch + h * s->norm.head + page * tokens, tokens, norm);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t t = 0; t < tokens; t++) p[r * stride + page * tokens + t] *= norm[t];
            }
        if (!s->by_token) {
            group_parameters(s, b, h, g, scale, zero);
            for (int64_t r = 0; r < rows; r++) {
                float weight = dot(p + r * stride + first * tokens, NULL, span);
                for (int64_t c = 0; c < s->dim; c++) transformed[r * s->dim + c] += weight * zero[c];
            }
        }
        int64_t column = 0;
        for (int64_t n = 0; n < s->num_planes; n++) {
            const plane_t *plane = &s->plane[n];
            int64_t planes = 8 / plane->bits, run = tokens / planes, wide = plane->width / chunks;
            const uint8_t *codes = plane->codes + b * plane->batch + h * plane->head + first * plane->stored * run;
            for (int64_t c = 0; c < chunks; c++) {
                float offset[MAX_ROWS] = {0};
                for (int64_t page = first; page < last; page++) {
                    if (s->by_token) {
                        int64_t at = b * s->scale.batch + h * s->scale.head + (page * chunks + c) * tokens;
                        to_float(&s->scale, at, tokens, norm);
                        at = b * s->zero_point.batch + h * s->zero_point.head + (page * chunks + c) * tokens;
                        to_float(&s->zero_point, at, tokens, norm + tokens);
                    }
                    for (int64_t r = 0; r < rows; r++) {
                        const float *own = p + r * stride + page * tokens;
                        float *to = scaled + r * capacity + (page - first) * tokens, worth = 1;
                        if (s->by_token) offset[r] += dot(own, norm + tokens, tokens);
                        for (int64_t k = 0; k < planes; k++) {
                            if (s->by_token)
                                for (int64_t t = k * run; t < (k + 1) * run; t++) to[t] = own[t] * norm[t] * worth;
                            else
                                for (int64_t t = k * run; t < (k + 1) * run; t++) to[t] = own[t] * worth;
                            worth /= (float)(1 << plane->bits);
                        }
                    }
                }
                for (int64_t r = 0; r < rows; r++) memset(scaled + r * capacity + span, 0, 4 * VL);
                for (int64_t r0 = 0; r0 < rows; r0 += TILE) {
                    int64_t own = rows - r0 < TILE ? rows - r0 : TILE;
                    for (int64_t j = c * wide; j < (c + 1) * wide;) {
                        int64_t several = (c + 1) * wide - j < 4 ? 1 : 4;
                        choose_mix(planes, own, several)(codes + j * run, count, plane->stored * run, run,
                                                         scaled + r0 * capacity, tokens, capacity, found);
                        for (int64_t x = 0; x < several; x++, j++) {
                            int64_t q = column + j, channel = s->lane_channel ? s->lane_channel[q] : q;
                            for (int64_t r = 0; r < own; r++) {
                                float y = found[x * own + r];
                                if (s->plane_weight) y *= s->plane_weight[q];
                                y = s->by_token ? y + offset[r0 + r] : y * scale[channel];
                                transformed[(r0 + r) * s->dim + channel] += y;
                            }
                        }
                    }
                }
            }
            column += (plane->width + 31) / 32 * 32;
        }
        first = last;
    }
    if (s->transform.data) {
        const float *matrix = (const float *)s->transform.data + h * s->transform.head;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < s->dim; c++) {
                float a = transformed[r * s->dim + c];
                for (int64_t d = 0; d < dim; d++) out[r * dim + d] += a * matrix[c * dim + d];
            }
    } else {
        for (int64_t i = 0; i < rows * dim; i++) out[i] += transformed[i];
    }
}

static void weigh_dense(const array_t *a, int64_t b, int64_t h, int64_t count, int64_t dim, const float *p, int64_t rows,
                      int64_t stride, float *out, float *work) {
    for (int64_t first = 0; first < count; first += 8) {
        int64_t own = count - first < 8 ? count - first : 8;
        const float *v = vectors(a, b * a->batch + h * a->head + first * dim, own, dim, work);
        for (int64_t r = 0; r < rows; r++) {
            const float *weight = p + r * stride + first;
            float *to = out + r * dim;
            int64_t d = 0;
            for (; d + VL <= dim; d += VL) {
                vf acc = load(to + d);
                for (int64_t t = 0; t < own; t++) acc += weight[t] * load(v + t * dim + d);
                store(to + d, acc);
            }
            for (; d < dim; d++)
                for (int64_t t = 0; t < own; t++) to[d] += weight[t] * v[t * dim + d];
        }
    }
}

/* -- one layer --------------------------------------------------------------------------------------------------- */

/* Heads [first, last) of all sequences; returns 0, or 1 without memory. */
int kvmm_attend(const call_t *c, int64_t first, int64_t last) {
    int64_t residual = c->residual_length ? *c->residual_length : c->num_residual, total = c->slots + residual, stride = padded(total) + VL, need = 0;
    for (int64_t i = 0; i < c->num_segments; i++) {
        const format_t *k = &c->segments[i].key, *v = &c->segments[i].value;
        int64_t tokens = v->page_size;
        int64_t groups_per_page = k->groups_per_page < 1 ? 1 : k->groups_per_page;
        int64_t keys = c->rows * (k->transform_width + c->dim) + 8 * groups_per_page * c->rows * (padded(k->lanes) + VL) +
                       2 * (k->channel_groups + 1) * (tokens + VL) + (groups_per_page + k->channel_groups + 1) * MAX_ROWS +
                       MAX_CHANNELS * VL / 4;
        int64_t batch = RUN / tokens < 1 ? 1 : RUN / tokens;
        int64_t values = c->rows * (v->dim + VL + batch * tokens + VL) + 4 * (tokens + VL);
        if (keys > need) need = keys;
        if (values > need) need = values;
    }
    need += 8 * (c->dim + c->value_dim) + 4096;
    float *scores = malloc(4 * (c->rows * stride + need)), *work = scores + c->rows * stride;
    if (!scores) return 1;
    for (int64_t at = first; at < last; at++) {
        int64_t b = at / c->heads, h = at % c->heads, start = 0;
        const float *query = c->query + at * c->rows * c->dim;
        float *out = c->out + at * c->rows * c->value_dim;
        for (int64_t i = 0; i < c->num_segments; i++) {
            format_t own = c->segments[i].key, *s = &own;
            if (c->segments[i].used) own.pages = *c->segments[i].used;
            int64_t count = s->pages * s->page_size, slots = c->segments[i].slots;
            if (s->kind == PLANES) {
                score_planes(s, b, h, query, c->rows, c->dim, c->scaling, scores + start, stride, work);
            } else if (s->kind == DENSE) {
                score_dense(&s->values, b, h, count, c->dim, query, c->rows, c->scaling, scores + start, stride, work);
            } else {
                const float *logits = (const float *)s->values.data + at * c->rows * count;
                for (int64_t r = 0; r < c->rows; r++) memcpy(scores + r * stride + start, logits + r * count, 4 * count);
            }
            if (s->kind == PLANES && s->kept.data)
                score_kept(s, b, h, kept_slots(s, b, h), count, c->dim, query, c->rows, c->scaling,
                           scores + start, stride, work);
            for (int64_t r = 0; r < c->rows; r++)
                for (int64_t t = count; t < slots; t++) scores[r * stride + start + t] = -INFINITY;
            if (s->calibrates)
                for (int64_t r = 0; r < c->rows; r++) {
                    const float *bias = c->bias;
                    if (bias) bias += b * c->bias_batch + r % c->length * c->bias_row + start;
                    calibrate(s, scores + r * stride + start, bias, count);
                }
            start += slots;
        }
        score_dense(&c->residual_key, b, h, residual, c->dim, query, c->rows, c->scaling, scores + start, stride, work);
        float weight[MAX_ROWS];
        for (int64_t r = 0; r < c->rows; r++) {
            float *x = scores + r * stride;
            if (c->bias) {
                const float *bias = c->bias + b * c->bias_batch + r % c->length * c->bias_row;
                for (int64_t t = 0; t < total; t++) x[t] += bias[t];
            }
            for (int64_t t = total; t < stride; t++) x[t] = -INFINITY;
            vf most = load(x), all = {};
            for (int64_t t = VL; t + VL <= stride; t += VL) {
                vf y = load(x + t);
                vi larger = y > most;
                most = (vf)(((vi)y & larger) | ((vi)most & ~larger));
            }
            float maximum = most[0];
            for (int i = 1; i < VL; i++)
                if (most[i] > maximum) maximum = most[i];
            for (int64_t t = 0; t + VL <= stride; t += VL) {
                vf y = exponential(load(x + t) - broadcast(maximum));
                store(x + t, y);
                all += y;
            }
            weight[r] = sum(all);
            if (c->lse) c->lse[at * c->rows + r] = maximum + logf(weight[r]);
        }
        memset(out, 0, 4 * c->rows * c->value_dim);
        start = 0;
        for (int64_t i = 0; i < c->num_segments; i++) {
            format_t own = c->segments[i].value, *s = &own;
            if (c->segments[i].used) own.pages = *c->segments[i].used;
            int64_t count = s->pages * s->page_size;
            if (s->kind == PLANES && s->kept.data)
                weigh_kept(s, b, h, kept_slots(s, b, h), count, c->value_dim, scores + start, c->rows, stride,
                           out, work);
            if (s->kind == PLANES)
                weigh_planes(s, b, h, scores + start, c->rows, stride, out, c->value_dim, work);
            else
                weigh_dense(&s->values, b, h, count, c->value_dim, scores + start, c->rows, stride, out, work);
            start += c->segments[i].slots;
        }
        weigh_dense(&c->residual_value, b, h, residual, c->value_dim, scores + start, c->rows, stride, out, work);
        for (int64_t r = 0; r < c->rows; r++)
            for (int64_t d = 0; d < c->value_dim; d++) out[r * c->value_dim + d] /= weight[r];
    }
    free(scores);
    return 0;
}
