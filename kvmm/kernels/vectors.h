/* Vectors of floats as wide as the processor has them, and what they are used for in more than one library.
 *
 * The numbers of dtypes (F32, F16, ...) come from the header that a library includes before this one.
 */
#ifndef KVMM_VECTORS_H
#define KVMM_VECTORS_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VL 16
#else
#define VL 8
#endif

typedef float vf __attribute__((vector_size(4 * VL)));
typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint8_t vb __attribute__((vector_size(VL)));

static inline float half_to_float(uint16_t h) {
#if defined(__FLT16_MAX__) && (defined(__F16C__) || defined(__aarch64__))
    _Float16 x;
    memcpy(&x, &h, 2);
    return (float)x;
#else
    /* exponents differ by 112; the product also makes subnormals right (parameters are finite) */
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float f;
    memcpy(&f, &bits, 4);
    f *= 0x1p112f;
    return sign ? -f : f;
#endif
}

static inline void read_floats(const void *data, int64_t dtype, int64_t at, int64_t count, float *out) {
    if (dtype == F32) {
        memcpy(out, (const float *)data + at, 4 * count);
    } else if (dtype == F16) {
        const uint16_t *x = (const uint16_t *)data + at;
        for (int64_t i = 0; i < count; i++) out[i] = half_to_float(x[i]);
    } else {
        const uint16_t *x = (const uint16_t *)data + at;
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)x[i] << 16;
            memcpy(out + i, &bits, 4);
        }
    }
}

static inline vf load(const float *x) {
    vf v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store(float *x, vf v) { memcpy(x, &v, sizeof v); }

static inline vf broadcast(float x) { return x - (vf){}; }

static inline float sum(vf v) {
    float x[VL], total = 0;
    store(x, v);
    for (int width = VL / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    total = x[0];
    return total;
}

#if VL == 16
#define MERGE(a, b, ...) (__builtin_shufflevector(a, b, __VA_ARGS__))
/* sums of 16 vectors as one: halves are put side by side and added, four times */
static inline vf merge8(vf a, vf b) {
    return MERGE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           MERGE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
static inline vf merge4(vf a, vf b) {
    return MERGE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           MERGE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
static inline vf merge2(vf a, vf b) {
    return MERGE(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           MERGE(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
}
static inline vf merge1(vf a, vf b) {
    return MERGE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           MERGE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
static inline void sums(const vf *v, float *out, int count) {
    vf a[16], zero = {};
    for (int i = 0; i < 16; i++) a[i] = i < count ? v[i] : zero;
    for (int i = 0; i < 8; i++) a[i] = merge8(a[2 * i], a[2 * i + 1]);
    for (int i = 0; i < 4; i++) a[i] = merge4(a[2 * i], a[2 * i + 1]);
    for (int i = 0; i < 2; i++) a[i] = merge2(a[2 * i], a[2 * i + 1]);
    store(out, merge1(a[0], a[1]));
}
#else
static inline void sums(const vf *v, float *out, int count) {
    for (int i = 0; i < count; i++) out[i] = sum(v[i]);
}
#endif

static inline vf exponential(vf x) {
    vi tiny = x < broadcast(-87.0f);
    vi whole = __builtin_convertvector(x * broadcast(1.44269504088896341f) - broadcast(0.5f), vi) & ~tiny;
    vf n = __builtin_convertvector(whole, vf); /* the nearest whole number, as x is not positive */
    vf r = (x - n * broadcast(0.693145751953125f)) - n * broadcast(1.42860682030941723212e-6f);
    vf p = broadcast(1.9875691500e-4f);
    p = p * r + broadcast(1.3981999507e-3f);
    p = p * r + broadcast(8.3334519073e-3f);
    p = p * r + broadcast(4.1665795894e-2f);
    p = p * r + broadcast(1.6666665459e-1f);
    p = p * r + broadcast(5.0000001201e-1f);
    p = p * r * r + r + broadcast(1.0f);
    vf power = (vf)((whole + 127) << 23);
    return (vf)((vi)(p * power) & ~tiny);
}

static inline float dot(const float *x, const float *y, int64_t count) { /* sum of x if y is NULL */
    vf acc = {};
    int64_t i = 0;
    for (; i + VL <= count; i += VL) acc += y ? load(x + i) * load(y + i) : load(x + i);
    float total = sum(acc);
    for (; i < count; i++) total += y ? x[i] * y[i] : x[i];
    return total;
}

#endif
