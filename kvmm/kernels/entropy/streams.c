/* Adaptive coding of the codes of a stream (one channel of one head over all tokens), bit by bit; reference.py defines it.
 *
 * Every bit is predicted by MODELS tables of probabilities, each of which knows the stream's codes at some earlier tokens,
 * and the predictions are mixed in the logistic domain. All arithmetic is of integers, so every machine reads what
 * another wrote.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MODELS 5
#define CONTEXTS 64 /* of a model at most */
#define LIMIT 60 /* how many bits a probability remembers */
#define LARGEST 2047 /* of a stretched probability */
#define LOW 32
#define HIGH (65536 - LOW)

typedef struct {
    uint16_t p, count;
} slot_t;

typedef struct {
    slot_t *slots; /* [MODELS][2^bits][CONTEXTS] */
    int32_t weights[8][MODELS];
    int bits;
} stream_t;

typedef struct {
    const int16_t *stretch; /* [4096] */
    const uint16_t *squash; /* [4096] */
    const int32_t *rates; /* [LIMIT + 1] */
} tables_t;

static void begin(stream_t *stream, int bits, int32_t weight) {
    stream->bits = bits;
    const int64_t count = (int64_t)MODELS * CONTEXTS << bits;
    for (int64_t i = 0; i < count; i++) stream->slots[i] = (slot_t){32768, 0};
    for (int k = 0; k < 8; k++)
        for (int m = 0; m < MODELS; m++) stream->weights[k][m] = weight;
}

/* the contexts of a token, from the codes before it, at the first and at the second token that it is like */
static void contexts_of(int bits, int before, int first, int second, int *contexts) {
    const int fine = bits > 4 ? bits - 4 : 0, coarse = bits > 2 ? bits - 2 : 0;
    const int width = bits < 2 ? bits : 2;
    const int both = ((before >> coarse) << width) | (first >> coarse);
    contexts[0] = before >> fine;
    contexts[1] = first >> fine;
    contexts[2] = both;
    contexts[3] = second >> fine;
    contexts[4] = (both << width) | (second >> coarse);
}

/* the probability of a one in 65536ths; what update() needs is left in found and stretched */
static inline uint32_t predict(
    const tables_t *t, stream_t *stream, int level, int node, const int *contexts, slot_t **found, int32_t *stretched) {
    int64_t sum = 0;
    for (int m = 0; m < MODELS; m++) {
        found[m] = stream->slots + (((int64_t)m << stream->bits | node) * CONTEXTS + contexts[m]);
        stretched[m] = t->stretch[found[m]->p >> 4];
        sum += (int64_t)stream->weights[level][m] * stretched[m];
    }
    int64_t d = sum >> 16;
    d = d > LARGEST ? LARGEST : d < -LARGEST ? -LARGEST : d;
    return t->squash[d + 2048];
}

static inline void update(
    const tables_t *t, stream_t *stream, int level, int bit, uint32_t p, slot_t **found, const int32_t *stretched) {
    const int32_t error = (bit << 16) - (int32_t)p;
    for (int m = 0; m < MODELS; m++) {
        stream->weights[level][m] += (int32_t)(((int64_t)error * stretched[m] * 5) >> 16);
        slot_t *slot = found[m];
        const int32_t target = bit ? 65535 : 0;
        slot->p = (uint16_t)(slot->p + (((int64_t)(target - slot->p) * t->rates[slot->count]) >> 16));
        if (slot->count < LIMIT) slot->count++;
    }
}

static inline uint32_t split(uint32_t x1, uint32_t x2, uint32_t p) {
    const uint32_t range = x2 - x1;
    return x1 + (range >> 16) * p + (((range & 0xffff) * p) >> 16);
}

/* Bytes written for one stream, or -1 if they do not fit. */
static int64_t encode(
    const tables_t *t, stream_t *stream, const uint8_t *codes, const int32_t *like, int64_t tokens, uint8_t *out,
    int64_t space) {
    uint32_t x1 = 0, x2 = 0xffffffff;
    int64_t size = 0;
    int contexts[MODELS];
    int32_t stretched[MODELS];
    slot_t *found[MODELS];
    for (int64_t i = 0; i < tokens; i++) {
        if (i) contexts_of(stream->bits, codes[i - 1], codes[like[i]], codes[like[tokens + i]], contexts);
        else memset(contexts, 0, sizeof contexts);
        int node = 1;
        for (int level = 0; level < stream->bits; level++) {
            const int bit = codes[i] >> (stream->bits - 1 - level) & 1;
            const uint32_t p = predict(t, stream, level, node, contexts, found, stretched);
            const uint32_t middle = split(x1, x2, p);
            if (bit) x2 = middle;
            else x1 = middle + 1;
            update(t, stream, level, bit, p, found, stretched);
            node = node << 1 | bit;
            while (!((x1 ^ x2) & 0xff000000)) {
                if (size >= space) return -1;
                out[size++] = x2 >> 24;
                x1 <<= 8;
                x2 = x2 << 8 | 255;
            }
        }
    }
    if (size + 4 > space) return -1;
    for (int k = 24; k >= 0; k -= 8) out[size++] = x1 >> k;
    return size;
}

static void decode(
    const tables_t *t, stream_t *stream, uint8_t *codes, const int32_t *like, int64_t tokens, const uint8_t *in,
    int64_t size) {
    uint32_t x1 = 0, x2 = 0xffffffff, x = 0;
    int64_t at = 0;
    int contexts[MODELS];
    int32_t stretched[MODELS];
    slot_t *found[MODELS];
    for (int k = 0; k < 4; k++) x = x << 8 | (at < size ? in[at++] : 0);
    for (int64_t i = 0; i < tokens; i++) {
        if (i) contexts_of(stream->bits, codes[i - 1], codes[like[i]], codes[like[tokens + i]], contexts);
        else memset(contexts, 0, sizeof contexts);
        int node = 1;
        for (int level = 0; level < stream->bits; level++) {
            const uint32_t p = predict(t, stream, level, node, contexts, found, stretched);
            const uint32_t middle = split(x1, x2, p);
            const int bit = x <= middle;
            if (bit) x2 = middle;
            else x1 = middle + 1;
            update(t, stream, level, bit, p, found, stretched);
            node = node << 1 | bit;
            while (!((x1 ^ x2) & 0xff000000)) {
                x1 <<= 8;
                x2 = x2 << 8 | 255;
                x = x << 8 | (at < size ? in[at++] : 0); /* behind the end of a damaged file are zeros */
            }
        }
        codes[i] = (uint8_t)(node - (1 << stream->bits));
    }
}

/* Encode or decode streams one after the other.
 *
 * codes uint8 [streams, tokens]; bits uint8 [streams], 1 to 8; like int32 [2, tokens], each below its token; data has space
 * bytes for every stream; sizes int64 [streams] are those of the streams' data. Returns 0, or the number of a stream whose data
 * do not fit, from 1 on, or -1 without memory.
 */
int64_t kvmm_code_streams(
    int decoding, uint8_t *codes, const uint8_t *bits, const int32_t *like, int64_t streams, int64_t tokens,
    const int16_t *stretch, const uint16_t *squash, const int32_t *rates, int32_t weight, uint8_t *data, int64_t space,
    int64_t *sizes) {
    const tables_t tables = {stretch, squash, rates};
    stream_t stream;
    stream.slots = malloc(sizeof(slot_t) * MODELS * CONTEXTS << 8);
    if (!stream.slots) return -1;
    int64_t failed = 0;
    for (int64_t n = 0; n < streams && !failed; n++) {
        begin(&stream, bits[n], weight);
        if (decoding) {
            decode(&tables, &stream, codes + n * tokens, like, tokens, data, sizes[n]);
            data += sizes[n];
        } else {
            sizes[n] = encode(&tables, &stream, codes + n * tokens, like, tokens, data, space);
            if (sizes[n] < 0) failed = n + 1;
            data += space;
        }
    }
    free(stream.slots);
    return failed;
}
