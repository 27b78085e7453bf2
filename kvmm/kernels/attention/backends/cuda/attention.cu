// Split kernel of decode attention over packed bit planes, on int8 tensor cores. Compiled at run time; see kernel.py.
//
// One warp takes whole pages of one sequence and KV head, one after the other. Codes are the left operand of
// mma.m16n8k32: a tile of scores is 16 tokens by 8 columns, the high and the low int8 part of four query heads, so no
// row or column is wasted on four heads. Bytes go to shared memory asynchronously, a page or more ahead (to ask for the
// pages behind those through the second-level cache was slower on an H200, at the three sizes tried), and from there
// to registers in the order that the operands want: dimensions and tokens may be permuted freely as long as both
// operands are. One AND (and for values sometimes a shift) turns a 32-bit word into four operands.
//
// Lane 4 g + t holds, for head t, tokens 2 g and 2 g + 1 of every slice of 16 tokens. At every code width slice i of a
// page sits in bits b * (i / tiles) of row tile i % tiles, where tiles = PAGE * b / 128: planes of different widths add
// into the same accumulators.
//
// Logits are in units of log 2. Probabilities (times norms) are 16-bit integers in two int8 parts, 256 * high + low, of
// 127 * 256 steps of the page's largest possible one.
//
// Where scales differ inside of a page, products are in float16 instead (half_products.cuh); all else is the same.
//
// Logits that are calibrated take two passes: one (LOGIT_RANGE) finds how far each row's logits reach, the other takes them
// through the line that follows from it (CALIBRATED).

#include "variant.cuh"  // what is known when the kernel is compiled, and its Arguments; see arguments.py

#include "device.cuh"

constexpr int THREADS = WARPS * 32;
constexpr int SLICES = PAGE / 16;
constexpr int KEPT_IN_REGISTERS = 4;  // of a lane: slots of no more than 128 tokens are not looked up
constexpr int COLUMNS = 8 * ROW_TILES;
// where bits of keys' codes are lanes, the first plane's lowest bits come first, and behind the second plane its parities
constexpr int KEY_WIDTH_0 = ceil_to(KEY_LANES_0, 32) * (KEY_BIT_LANES ? KEY_BITS_0 : 1);
constexpr int KEY_WIDTH = KEY_WIDTH_0 + ceil_to(KEY_LANES_1, 32) * (KEY_BIT_LANES ? 2 : 1);
// where bits of values' codes are, sums are by channel
constexpr int SUM_LANES_1 = VALUE_BIT_LANES ? 0 : VALUE_LANES_1;
constexpr int VALUE_WIDTH_0 = ceil_to(VALUE_LANES_0, 32), VALUE_WIDTH = VALUE_WIDTH_0 + ceil_to(SUM_LANES_1, 32);
constexpr bool FOLD = QUERY_TYPE != 0;
// with KEY_HIGH_NORM the channels of the second plane have a norm and a zero point of their own
constexpr int ZERO_SUMS = KEY_HIGH_NORM ? 2 : KEY_CHUNKS;

// A step of scores is 32 code lanes (the lanes of bit planes, not of a warp); where both planes of keys end in half a
// step, the halves share one (with FOLD and groups by page every code lane is a channel, and there are no such planes).
constexpr int HALVES = !KEY_BIT_LANES && KEY_LANES_0 % 32 == 16 && KEY_LANES_1 % 32 == 16 && !(FOLD && KEY_GROUPS);
constexpr int WHOLE_0 = HALVES ? KEY_LANES_0 - 16 : KEY_WIDTH_0;
constexpr int WHOLE_1 = HALVES ? KEY_LANES_1 - 16 : KEY_WIDTH - KEY_WIDTH_0;
constexpr int WHOLE_STEPS = (WHOLE_0 + WHOLE_1) / 32, STEPS = WHOLE_STEPS + HALVES;
constexpr int TILES_0 = VALUE_LANES_0 / 16, TILES = TILES_0 + SUM_LANES_1 / 16;

// a stage of keys in shared memory: codes, norms, the query of the page's group or its scales and zero points, bias
constexpr int KEY_BYTES_0 = PAGE * KEY_BITS_0 / 8 * KEY_LANES_0, KEY_BYTES_1 = PAGE * KEY_BITS_1 / 8 * KEY_LANES_1;
constexpr int KEY_NORM_AT = KEY_BYTES_0 + KEY_BYTES_1, KEY_NORM_BYTES = PAGE * 2 * KEY_NORM * KEY_CHUNKS;
constexpr int SCALE_WIDTH = KEY_GATHER ? KEY_WIDTH_0 : KEY_LANES_1 ? KEY_WIDTH : KEY_LANES_0;  // as they are in memory
constexpr int QUERY_AT = KEY_NORM_AT + KEY_NORM_BYTES, GROUP_ROW = 2 * KEY_SCALE * SCALE_WIDTH * KEY_PARTS;
constexpr int QUERY_BYTES = KEY_GROUPS * (FOLD ? 2 * GROUP_ROW : COLUMNS * KEY_WIDTH);
constexpr int BIAS_AT = QUERY_AT + QUERY_BYTES, BIAS_BYTES = BIAS == 2 ? PAGE * 4 : 0;
constexpr int KEY_POINT_AT = BIAS_AT + BIAS_BYTES, KEY_POINT_BYTES = PAGE * 2 * KEY_TOKEN * KEY_CHUNKS;
constexpr int KEY_HIGH_AT = KEY_POINT_AT + KEY_POINT_BYTES, KEY_HIGH_BYTES = KEY_HIGH_NORM ? KEY_NORM_BYTES : 0;
constexpr int INDEX_AT = KEY_HIGH_AT + KEY_HIGH_BYTES, INDEX_BYTES = KEY_GATHER * KEY_LANES_1;
// Rows of 16 code lanes are read 16 bytes too far; rows of 8 or 40, whose plane is followed by norms or ends a multiple of
// 128, 24 bytes.
constexpr int KEY_STAGE = ceil_to(INDEX_AT + INDEX_BYTES + 16, 128);
// a stage of values: codes, a group's scales and zero points
constexpr int VALUE_BYTES_0 = PAGE * VALUE_BITS_0 / 8 * VALUE_LANES_0;
constexpr int VALUE_BYTES_1 = PAGE * VALUE_BITS_1 / 8 * VALUE_LANES_1;
constexpr int GROUP_AT = VALUE_BYTES_0 + VALUE_BYTES_1, GROUP_BYTES = VALUE_GROUPS * VALUE_WIDTH * 4;
constexpr int ZERO_AT = GROUP_AT + GROUP_BYTES, ZERO_BYTES = VALUE_ZEROS * 4;
// with HALF_PRODUCTS scales and zero points by token
constexpr int TOKENS_AT = ZERO_AT + ZERO_BYTES, TOKENS_BYTES = HALF_PRODUCTS ? PAGE * 2 * VALUE_PARTS : 0;
constexpr int VALUE_STAGE = ceil_to(TOKENS_AT + 2 * TOKENS_BYTES, 128);
// probabilities: a row of bytes a column; the padding spreads columns over the banks; with VALUE_HIGH_NORM those of the
// second plane's channels behind the others'
constexpr int P_STRIDE = PAGE + 16, P_SET = COLUMNS * P_STRIDE;
constexpr int P_AT = STAGES * (KEY_STAGE + VALUE_STAGE), P_BYTES = (1 + VALUE_HIGH_NORM) * P_SET;
// what a token's value is multiplied by, and its zero point, are wanted before its codes: they come with the keys, and
// stay while the next page's keys come
constexpr int VALUE_NORM_BYTES = PAGE * 2 * VALUE_NORM, TOKEN_BYTES = HALF_PRODUCTS ? 0 : PAGE * 2 * VALUE_TOKEN;
constexpr int VALUE_HIGH_BYTES = VALUE_HIGH_NORM ? VALUE_NORM_BYTES : 0;
constexpr int FACTOR_BYTES = VALUE_NORM_BYTES + VALUE_HIGH_BYTES + 2 * TOKEN_BYTES, FACTORS = STAGES + 1, FACTORS_AT = P_AT + P_BYTES;
// at the end a warp's part holds its sums
constexpr int SUM_WIDTH = VALUE_WIDTH + VALUE_ZEROS, SUM_STRIDE = SUM_WIDTH + 8;
constexpr bool WEIGHTS = VALUE_NORM || VALUE_TOKEN || VALUE_GROUPS;  // sums of weights are asked for
// behind the warps' parts: where a lane's bytes of the first page of every store are and how far apart pages are, which
// would take too many registers or be worked out for every page; what the block's warps found; and with FOLD the query,
// the scales of a span and their zeros
constexpr int VALUE_SOURCE = 1 + (KEY_LANES_1 > 0), NORM_SOURCE = VALUE_SOURCE + 1 + (VALUE_LANES_1 > 0);
constexpr int FACTOR_SOURCE = NORM_SOURCE + (KEY_NORM > 0), GROUP_SOURCE = FACTOR_SOURCE + (VALUE_NORM > 0);
constexpr int TOKEN_SOURCE = GROUP_SOURCE + 2 * (KEY_GROUPS && FOLD), POINT_SOURCE = TOKEN_SOURCE + 2 * (VALUE_TOKEN > 0);
constexpr int INDEX_SOURCE = POINT_SOURCE + (KEY_TOKEN > 0), KEY_HIGH_SOURCE = INDEX_SOURCE + KEY_GATHER;
constexpr int VALUE_HIGH_SOURCE = KEY_HIGH_SOURCE + KEY_HIGH_NORM, SOURCES = VALUE_HIGH_SOURCE + VALUE_HIGH_NORM;
constexpr int SOURCES_AT = WARPS * WARP_BYTES, FOUND_AT = SOURCES_AT + 512 * SOURCES;
// norms of keys and of values that are 16 lanes' each come together
constexpr bool NORMS_TOGETHER = KEY_NORM_BYTES == 256 && VALUE_NORM_BYTES == 256 && !LOGIT_RANGE;
constexpr int FOUND_BYTES = 3 * WARPS * ROW_TILES * 4 * 4;
constexpr int FOLDED_AT = FOUND_AT + FOUND_BYTES, FACTOR_AT = FOLDED_AT + ROW_TILES * 4 * KEY_WIDTH * 4;
constexpr int POINT_AT = FACTOR_AT + KEY_WIDTH * 4, ZERO_SUM_AT = POINT_AT + KEY_ZEROS * 4;
constexpr int CHANNELS_AT = ZERO_SUM_AT + ROW_TILES * 4 * 4 * ZERO_SUMS;  // with KEY_MEAN or KEY_GATHER the query by channel
static_assert(FACTORS_AT + FACTORS * FACTOR_BYTES <= WARP_BYTES, "a warp's part of the shared memory is too small");
static_assert(ROW_TILES * 4 * SUM_STRIDE * 4 <= WARP_BYTES, "a warp's part of the shared memory is too small");
static_assert(KEY_CHUNKS == 1 || (KEY_TOKEN && KEY_WIDTH / KEY_CHUNKS % 64 == 0 && !KEY_LANES_1 && !LOGIT_RANGE && !CALIBRATED),
              "a group of channels is made of chunks");
static_assert(!KEY_HIGH_NORM || (KEY_BIT_LANES && KEY_NORM && KEY_LANES_1 && !LOGIT_RANGE && !CALIBRATED), "two parts of bits");
static_assert(!VALUE_HIGH_NORM || (VALUE_BIT_LANES && VALUE_NORM && VALUE_LANES_1), "two parts of bits");
// of lanes that are digits of codes the highest of each channel counts, and what is below it is less than a step
static_assert(KEY_BIT_LANES ? 3 * KEY_LANES_0 + 2 * KEY_LANES_1 <= 1024 : KEY_WIDTH / KEY_CHUNKS <= (KEY_DIGITS ? 512 : 256),
              "254 * high + low has to fit 31 bits");

// what a block's warps found of residual tokens is joined in the room of their probabilities, as many channels at a time
constexpr int RESIDUAL_AT_ONCE = PAGE / 2;

constexpr float P_STEPS = 127.0f * 256.0f, LOG2_P_STEPS = 14.988684686772165f;
constexpr float MAGIC = 12582912.0f;  // 1.5 * 2 ** 23: adding it leaves the nearest integer in the low bits

DEVICE constexpr int plane_mask(int bits) { return bits == 8 ? -1 : ((1 << bits) - 1) * 0x01010101; }

// Bits a plane's codes are left of the byte's lowest in slice i, and where the slice's accumulator has them: a plane
// may be shifted right only.
DEVICE constexpr int key_shift(int bits, int slice) { return bits * (slice / (PAGE * bits / 128)); }
DEVICE constexpr int slice_shift(int slice) {
    return KEY_LANES_1 ? smaller(key_shift(KEY_BITS_0, slice), key_shift(KEY_BITS_1 ? KEY_BITS_1 : 1, slice))
                        : key_shift(KEY_BITS_0, slice);
}
DEVICE constexpr float power(int exponent) {
    return exponent < 0 ? 1.0f / (float)(1 << -exponent) : (float)(1 << exponent);
}

// 8 bytes of a row per step of 32 code lanes, in the order shared by codes and query: lane t has bytes 16 t to 16 t + 15 of
// every 64 (from row + 16 t) and 8 t to 8 t + 7 of the last 32 (from rest, row + 8 t).
template <int WIDTH>
DEVICE void load_row(const Byte* row, const Byte* rest, uint2* words) {
#pragma unroll
    for (int i = 0; i < WIDTH / 64; i++) {
        const uint4 chunk = *(const uint4*)(row + 64 * i);
        words[2 * i] = make_uint2(chunk.x, chunk.y);
        words[2 * i + 1] = make_uint2(chunk.z, chunk.w);
    }
    if constexpr (WIDTH % 64) words[WIDTH / 32 - 1] = *(const uint2*)(rest + WIDTH / 64 * 64);
}

// --- the scales of keys are folded into the query, which is then split into two int8 parts

// Four neighbouring numbers of a float16 (1) or float32 (2) row in shared memory.
template <int TYPE>
DEVICE void load_four(const Byte* from, float (&x)[4]) {
    if constexpr (TYPE == 2) {
        const float4 four = *(const float4*)from;
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
        const uint2 words = *(const uint2*)from;
        const float2 low = halves_to_floats(words.x), high = halves_to_floats(words.y);
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    }
}

// Where bits are lanes, steps of the first plane are those of a bit one after the other, steps of the second those of its
// codes and their parities. If a plane does not end with a whole chunk of 64, the two steps of that chunk are 32 code lanes
// in a row each, in both planes, so that the bits of a code meet in one lane.
constexpr int BIT_STEPS_0 = ceil_to(KEY_LANES_0, 32) / 32, BIT_STEPS_1 = ceil_to(KEY_LANES_1, 32) / 32;
constexpr bool SINGLE_STEPS = KEY_BIT_LANES && (KEY_LANES_0 % 64 || KEY_LANES_1 % 64);
DEVICE constexpr bool single_chunk(int chunk) {
    return KEY_BIT_LANES && ((KEY_LANES_0 % 64 && chunk == KEY_LANES_0 / 64) || (KEY_LANES_1 % 64 && chunk == KEY_LANES_1 / 64));
}
DEVICE constexpr int bit_step(int step) {  // of its bit
    return step < WHOLE_0 / 32 ? step % (BIT_STEPS_0 ? BIT_STEPS_0 : 1) : (step - WHOLE_0 / 32) % (BIT_STEPS_1 ? BIT_STEPS_1 : 1);
}
DEVICE constexpr int longer_codes(int step) {  // of a step of the first plane, lanes that the second plane has
    return KEY_LANES_1 <= 32 * step ? 0 : smaller(32, KEY_LANES_1 - 32 * step);
}

// Where code lane j of a query row is in shared memory: of every 32 floats the lanes 4 g + t with g even have the four
// at 8 t, those with g odd the four at 8 t + 4, so that no two lanes ask the same bank for different words.
// With HALVES lanes with g even have those at 4 t of every 32, the others those at 16 + 4 t; in the step of two halves
// the former are the first plane's. Padded code lanes are put behind.
DEVICE int folded_at(int j) {
    const bool second = j >= KEY_WIDTH_0;
    if constexpr (KEY_BIT_LANES) {
        const int at = second ? j - KEY_WIDTH_0 : j, i = at % (32 * (second ? BIT_STEPS_1 + !BIT_STEPS_1 : BIT_STEPS_0));
        return single_chunk(i / 64) ? j : j - i % 64 + i % 8 / 4 * 32 + i % 64 / 8 * 4 + i % 4;
    }
    const int first = second ? WHOLE_0 : 0, width = second ? WHOLE_1 : WHOLE_0;
    const int i = second ? j - KEY_WIDTH_0 : j, chunk = i / 64 * 64, rest = i - width;
    if (HALVES && rest < 0) return first + i / 32 * 32 + i % 16 / 4 * 8 + i % 32 / 16 * 4 + i % 4;
    if (rest >= 16) return KEY_WIDTH - 48 + 16 * second + rest;
    if (rest >= 0) return 32 * WHOLE_STEPS + rest / 4 * 8 + 4 * second + rest % 4;
    return first + (chunk + 64 <= width ? chunk + i % 8 / 4 * 32 + i % 64 / 8 * 4 + i % 4 : i);
}

DEVICE unsigned four_bytes(const float (&x)[4]) {  // the lowest of each
    const unsigned low = __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x0040);
    const unsigned high = __byte_perm(__float_as_uint(x[2]), __float_as_uint(x[3]), 0x0040);
    return __byte_perm(low, high, 0x5410);
}

// Whether a step of 32 code lanes is half of a chunk of 64, and which.
DEVICE constexpr int half_of(int step) {
    return KEY_BIT_LANES ? bit_step(step) % 2 : (step < WHOLE_0 / 32 ? step : step - WHOLE_0 / 32) % 2;
}
DEVICE constexpr bool is_wide(int step) {
    if (KEY_BIT_LANES) return !single_chunk(bit_step(step) / 2);
    return !HALVES && step - half_of(step) + 2 <= (step < WHOLE_0 / 32 ? WHOLE_0 / 32 : WHOLE_STEPS);
}

// The query of one tile of four heads as load_row has it: lanes with g even the high parts of head g / 2, the others
// the low ones; each works out both of half the code lanes. `rows` is the first head's row in shared memory, `group` where
// the page's scales and zero points are (SCALED), `index` the channels of the second plane (KEY_GATHER), whose codes are
// the higher bits of theirs, and `channels` the first head's query by channel. Of head t: `weight`, what a step of the low part is worth, and
// `zero`.
template <bool SCALED>
DEVICE void fold_query(unsigned rows, unsigned group, unsigned index, unsigned channels, int g, int t, uint2* words,
                       float& weight, float& zero) {
    constexpr int PIECES = STEPS;
    const int odd = g & 1;
    const Byte* const row = shared + kept(rows + (g >> 1) * KEY_WIDTH * 4 + 16 * (2 * t + odd));
    const unsigned wide = SCALED ? kept(group + 2 * KEY_SCALE * (16 * t + 8 * odd)) : 0;  // of a chunk of 64
    const unsigned narrow = SCALED ? kept(group + 2 * KEY_SCALE * (8 * t + 4 * odd)) : 0;  // of one of 32
    float x[PIECES][4], most = 1e-30f, sum = 0.0f;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        if (KEY_GATHER && piece >= WHOLE_0 / 32) {
            const int at = (piece - WHOLE_0 / 32) * 32 + 8 * t + 4 * odd;
            const bool there = at < KEY_LANES_1;
            const unsigned four = there ? *(const unsigned*)(shared + index + at) : 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int channel = four >> 8 * i & 255;
                const float y = ((const float*)(shared + channels))[(g >> 1) * KEY_ZEROS + channel];
                x[piece][i] = there ? y * load_number<KEY_SCALE>(shared + group, channel) * (1 << KEY_BITS_0) : 0.0f;
                most = fmaxf(most, fabsf(x[piece][i]));
            }
            continue;
        }
        load_four<2>(row + 128 * piece, x[piece]);
        if constexpr (SCALED) {
            const int half = half_of(piece);
            const unsigned from = is_wide(piece) ? wide + 2 * KEY_SCALE * (32 * (piece - half) + 4 * half)
                                                 : narrow + 2 * KEY_SCALE * 32 * piece;
            float scale[4] = {}, point[4] = {};  // of padded code lanes, which a page has no scales of
            const int at = is_wide(piece) ? 32 * (piece - half) + 16 * t + 8 * odd + 4 * half : 32 * piece + 8 * t + 4 * odd;
            if (KEY_GATHER || SCALE_WIDTH == KEY_WIDTH || at < SCALE_WIDTH) {
                load_four<KEY_SCALE>(shared + from, scale);
                load_four<KEY_SCALE>(shared + GROUP_ROW + from, point);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) sum = fmaf(x[piece][i], point[i], sum), x[piece][i] *= scale[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) most = fmaxf(most, fabsf(x[piece][i]));
    }
#pragma unroll
    for (int lanes = 1; lanes <= 4; lanes *= 2) {  // of the eight lanes of a head
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
        if constexpr (SCALED) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    }
    const float steps = 127.0f * reciprocal_approx(most);
    unsigned mine[PIECES], other[PIECES];
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        float high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            high[i] = fmaf(x[piece][i], steps, MAGIC);
            low[i] = fmaf(fmaf(x[piece][i], steps, MAGIC - high[i]), 254.0f, MAGIC);
        }
        const unsigned high_word = four_bytes(high), low_word = four_bytes(low);
        mine[piece] = odd ? low_word : high_word;
        other[piece] = __shfl_xor_sync(0xffffffffu, odd ? high_word : low_word, 4);
    }
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        if (!is_wide(piece)) {
            words[piece] = odd ? make_uint2(other[piece], mine[piece]) : make_uint2(mine[piece], other[piece]);
        } else if (half_of(piece) == 0) {
            const uint2 own = make_uint2(mine[piece], mine[piece + 1]);
            const uint2 theirs = make_uint2(other[piece], other[piece + 1]);
            words[piece] = odd ? theirs : own, words[piece + 1] = odd ? own : theirs;
        }
    }
    weight = __shfl_sync(0xffffffffu, most * (1.0f / (127.0f * 254.0f)), 8 * t);
    if constexpr (SCALED) zero = __shfl_sync(0xffffffffu, sum, 8 * t);
}

// Where codes are read as matrices, words hold four operands of an mma as they are: those of the last KEY_PITCH slices,
// the first plane's highest bits, are not masked, and what the bits below add is subtracted, which are the scores of
// the slices KEY_PITCH, 2 * KEY_PITCH, .. before. A narrower second plane leaves such bits too.
constexpr int KEY_PITCH = PAGE * KEY_BITS_0 / 128;
constexpr bool SUBTRACT =
    HALVES && KEY_BITS_0 < 8 && KEY_BITS_1 <= KEY_BITS_0 && KEY_LANES_0 >= 8 * ROW_TILES * (8 / KEY_BITS_0 - 1);
DEVICE constexpr bool subtracted(int slice) { return SUBTRACT && slice >= SLICES - KEY_PITCH; }
DEVICE constexpr unsigned score_mask(int bits, int slice) {
    unsigned mask = (unsigned)plane_mask(bits) << slice_shift(slice);
    for (int i = slice - KEY_PITCH; subtracted(slice) && i >= 0; i -= KEY_PITCH)
        mask |= (unsigned)plane_mask(bits) << slice_shift(i);
    return mask;
}
DEVICE constexpr int score_right(int bits, int slice) { return key_shift(bits, slice) - slice_shift(slice); }

// Adds the products of one plane of keys with the query, steps of WHOLE code lanes; codes is their place in shared memory.
// `rest`: of each row tile the two rows' words of half a step more.
template <int BITS, int LANES, int WHOLE>
DEVICE void add_scores(unsigned codes, int lane, const uint2* query, int (&scores)[ROW_TILES][SLICES][4],
                       unsigned (*rest)[2]) {
    constexpr int ROW_TILE = PAGE * BITS / 128, STEPS_HERE = WHOLE / 32;
    const int g = lane / 4, t = lane % 4, matrix = lane / 8;
    // with HALVES, where rows are an odd number of 16 bytes, as matrices: rows 2 g, 2 g + 1, then their next 16 bytes
    const unsigned token_at = codes + (2 * (lane % 8) + matrix % 2) * LANES;
    const unsigned wide_at = kept(HALVES ? token_at + matrix / 2 * 16 : codes + 2 * g * LANES + 16 * t);
    const unsigned narrow_at = !HALVES && WHOLE % 64 ? kept(codes + 2 * g * LANES + 8 * t) : 0;
    // two row tiles at a time
    const unsigned rest_at = HALVES ? kept(token_at + matrix / 2 * 16 * LANES) : 0;
#pragma unroll
    for (int tile = 0; tile < ROW_TILE; tile++) {
        unsigned words[STEPS_HERE + 1][4];
        const Byte *wide = shared + wide_at + 16 * tile * LANES, *narrow = shared + narrow_at + 16 * tile * LANES;
        if constexpr (HALVES) {
#pragma unroll
            for (int step = 0; step < STEPS_HERE; step++) load_matrices(words[step], wide + 32 * step);
            const Byte* const last = shared + rest_at + 16 * tile * LANES + WHOLE;
            if constexpr (ROW_TILE == 1)
                load_two_matrices(rest[tile], last);
            else if (tile % 2 == 0)
                load_matrices(rest[tile], last);
        } else {
            uint2 first[STEPS_HERE + 1], second[STEPS_HERE + 1];
            load_row<WHOLE>(wide, narrow, first);
            load_row<WHOLE>(wide + LANES, narrow + LANES, second);
#pragma unroll
            for (int step = 0; step < STEPS_HERE; step++) {
                words[step][0] = first[step].x, words[step][1] = second[step].x;
                words[step][2] = first[step].y, words[step][3] = second[step].y;
            }
        }
#pragma unroll
        for (int plane = 0; plane < 8 / BITS; plane++) {
            const int slice = plane * ROW_TILE + tile, right = score_right(BITS, slice);
            const unsigned mask = score_mask(BITS, slice);
#pragma unroll
            for (int step = 0; step < STEPS_HERE; step++) {
                const unsigned a0 = (words[step][0] >> right) & mask, a1 = (words[step][1] >> right) & mask;
                const unsigned a2 = (words[step][2] >> right) & mask, a3 = (words[step][3] >> right) & mask;
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++) mma(scores[n][slice], a0, a1, a2, a3, query[n * STEPS + step]);
            }
        }
    }
}

// The step of two halves.
template <int BITS_0, int BITS_1>
DEVICE void add_halves(const unsigned (*rest_0)[2], const unsigned (*rest_1)[2], const uint2* query,
                       int (&scores)[ROW_TILES][SLICES][4]) {
#pragma unroll
    for (int slice = 0; slice < SLICES; slice++) {
        const unsigned *x = rest_0[slice % (PAGE * BITS_0 / 128)], *y = rest_1[slice % (PAGE * BITS_1 / 128)];
        const int x_right = score_right(BITS_0, slice), y_right = score_right(BITS_1, slice);
        const unsigned x_mask = score_mask(BITS_0, slice), y_mask = score_mask(BITS_1, slice);
        const unsigned a0 = (x[0] >> x_right) & x_mask, a1 = (x[1] >> x_right) & x_mask;
        const unsigned a2 = (y[0] >> y_right) & y_mask, a3 = (y[1] >> y_right) & y_mask;
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) mma(scores[n][slice], a0, a1, a2, a3, query[n * STEPS]);
    }
}

#if KEY_BIT_LANES || VALUE_BIT_LANES
constexpr int ALL = 0, LONGER = 1, SHORTER = 2;  // channels: with a bit in the second plane, without one
#endif

#if KEY_BIT_LANES
// The scores of keys whose bits are lanes of their own: each of the first plane's KEY_BITS_0, and of the channels that
// the second plane has another bit of that one and the parity of all. Any symmetric code book is a sum over these.
template <int CHANNELS>
DEVICE void add_bit_scores(unsigned keys, int lane, const uint2* query, int (&scores)[ROW_TILES][SLICES][4]) {
    constexpr int ROW_TILE = PAGE * KEY_BITS_0 / 128, STEPS_0 = BIT_STEPS_0, STEPS_1 = BIT_STEPS_1;
    static_assert(KEY_LANES_0 % 16 == 0 && (KEY_LANES_1 % 16 == 0 || (KEY_LANES_1 % 8 == 0 && KEY_LANES_1 < 64)),
                  "whole chunks are 16 bytes of a lane, the others 8");
    static_assert(!KEY_LANES_1 || (PAGE == 128 && KEY_BITS_1 == 1), "a second plane is a tile of rows");
    const int g = lane / 4, t = lane % 4;
    auto load = [&](unsigned wide, unsigned single, int steps, uint2* words) {
#pragma unroll
        for (int i = 0; i < steps; i += 2) {
            if (single_chunk(i / 2)) {
                words[i] = *(const uint2*)(shared + single + 32 * i);
                if (i + 1 < steps) words[i + 1] = *(const uint2*)(shared + single + 32 * i + 32);
            } else {
                const uint4 chunk = *(const uint4*)(shared + wide + 32 * i);
                words[i] = make_uint2(chunk.x, chunk.y), words[i + 1] = make_uint2(chunk.z, chunk.w);
            }
        }
    };
    uint2 more[2][STEPS_1 + 1];
    if constexpr (KEY_LANES_1 && CHANNELS != SHORTER) {  // what is read behind a row counts nothing
        const unsigned wide = kept(keys + KEY_BYTES_0 + 2 * g * KEY_LANES_1 + 16 * t);
        const unsigned single = !SINGLE_STEPS ? 0 : kept(keys + KEY_BYTES_0 + 2 * g * KEY_LANES_1 + 8 * t);
#pragma unroll
        for (int row = 0; row < 2; row++) load(wide + row * KEY_LANES_1, single + row * KEY_LANES_1, STEPS_1, more[row]);
    }
    const unsigned wide_at = kept(keys + 2 * g * KEY_LANES_0 + 16 * t);
    const unsigned single_at = !SINGLE_STEPS ? 0 : kept(keys + 2 * g * KEY_LANES_0 + 8 * t);
    auto of_channels = [&](uint2 words, int step) {  // the query of a step of both kinds
        if (CHANNELS == ALL || longer_codes(step) % 32 == 0) return words;
        return (8 * t < longer_codes(step)) == (CHANNELS == LONGER) ? words : make_uint2(0, 0);
    };
#pragma unroll
    for (int tile = 0; tile < ROW_TILE; tile++) {
        uint2 words[2][STEPS_0];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const unsigned at = (16 * tile + row) * KEY_LANES_0;
            load(wide_at + at, single_at + at, STEPS_0, words[row]);
        }
#pragma unroll
        for (int part = 0; part < 8 / KEY_BITS_0; part++) {
            const int slice = part * ROW_TILE + tile, place = part * KEY_BITS_0;
            const unsigned lowest = 0x01010101u << place;
#pragma unroll
            for (int step = 0; step < STEPS_0; step++) {
                if (CHANNELS == LONGER ? !longer_codes(step) : CHANNELS == SHORTER && longer_codes(step) == 32) continue;
                auto add = [&](const unsigned (&a)[4], int step_of_query) {
#pragma unroll
                    for (int n = 0; n < ROW_TILES; n++)
                        mma(scores[n][slice], a[0], a[1], a[2], a[3], of_channels(query[n * STEPS + step_of_query], step));
                };
                const unsigned x[4] = {words[0][step].x, words[1][step].x, words[0][step].y, words[1][step].y};
#pragma unroll
                for (int bit = 0; bit < KEY_BITS_0; bit++) {
                    const unsigned mask = lowest << bit, a[4] = {x[0] & mask, x[1] & mask, x[2] & mask, x[3] & mask};
                    add(a, bit * STEPS_0 + step);
                }
                if (step < STEPS_1 && CHANNELS != SHORTER) {
                    const unsigned y[4] = {more[0][step].x, more[1][step].x, more[0][step].y, more[1][step].y};
                    unsigned highest[4], parity[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        highest[i] = (y[i] >> (slice - place)) & lowest;
                        parity[i] = (highest[i] ^ x[i] ^ (x[i] >> 1)) & lowest;
                    }
                    add(highest, KEY_BITS_0 * STEPS_0 + step);
                    add(parity, KEY_BITS_0 * STEPS_0 + STEPS_1 + step);
                }
            }
        }
    }
}
#endif

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

// Two neighbouring numbers of a float16 (1) or float32 (2) row, as they are stored.
template <int TYPE>
struct Pair {
    float2 words;
    DEVICE void load(const Byte* row, int index) { words = *(const float2*)(row + 4 * index); }
    DEVICE float2 values() const { return words; }
    DEVICE void largest_of(const Pair& other) {  // of magnitudes
        words.x = fmaxf(fabsf(words.x), fabsf(other.words.x)), words.y = fmaxf(fabsf(words.y), fabsf(other.words.y));
    }
    DEVICE float largest() const { return max_over_tokens(fmaxf(words.x, words.y)); }
};
template <>
struct Pair<1> {
    unsigned word;
    DEVICE void load(const Byte* row, int index) { word = *(const unsigned*)(row + 2 * index); }
    DEVICE float2 values() const { return halves_to_floats(word); }
    DEVICE void largest_of(const Pair& other) { word = largest_halves(word, other.word); }
    DEVICE float largest() const {
        const float2 x = halves_to_floats(word);
        return max_over_tokens(fmaxf(x.x, x.y));
    }
};

// Slices of values are of SHARED classes, in turns of VALUE_PITCH slices, as many as the first plane has in one place
// of its bytes. The codes of class 1 stay 2 ** VALUE_BITS_0 too large, so that one shift serves both classes; in a
// second plane of narrower codes they are as far apart. With COARSE the probabilities of class 1 are quantised in
// steps as much coarser: one bit of fifteen for codes of 1 bit, two for codes of 2. That is too coarse for channels of
// several code lanes, whose highest weighs the error of all: there the classes have sums of their own (APART).
constexpr int VALUE_PITCH = PAGE * VALUE_BITS_0 / 128;
constexpr bool COARSE = VALUE_LANES_1 == 0 && !VALUE_PLANE_WEIGHTS;
constexpr int SHARED =
    !VALUE_BIT_LANES && VALUE_BITS_0 <= 2 && (COARSE || (VALUE_BITS_1 <= VALUE_BITS_0 && VALUE_PITCH % 2 == 0)) ? 2 : 1;
constexpr int APART = SHARED == 2 && !COARSE ? 2 : 1, STEP_SIZES = SHARED / APART;
DEVICE constexpr int slice_class(int slice) { return slice / VALUE_PITCH % SHARED; }
DEVICE constexpr int step_size(int slice) { return slice_class(slice) % STEP_SIZES; }
DEVICE constexpr int lowest_place(int bits) { return 8 - bits - VALUE_BITS_0 * (SHARED - 1); }  // of class 0
DEVICE constexpr int sum_place(int bits) { return lowest_place(bits) + VALUE_BITS_0 * (APART - 1); }  // in sums

// Words that hold four operands of an mma as they are: those of the last PITCH slices, the first plane's highest bits,
// are not masked. What the bits below add, codes of the slices PITCH, 2 * PITCH, .. before times probabilities of the
// last ones, is taken from the probabilities of those slices (`excess` of them), and a second plane leaves such bits
// too. Norms and scales of values are not negative, or the difference would not fit 16 bits.
constexpr bool UNMASKED = !VALUE_BIT_LANES && VALUE_PITCH % 2 == 0 && VALUE_BITS_0 < 8 && VALUE_BITS_1 <= VALUE_BITS_0;
DEVICE constexpr bool unmasked(int slice) { return UNMASKED && slice >= SLICES - VALUE_PITCH; }
DEVICE constexpr float excess(int slice) {
    return power(slice / VALUE_PITCH * VALUE_BITS_0 - sum_place(VALUE_BITS_0) - VALUE_BITS_0 * step_size(slice));
}

template <int BITS>
DEVICE unsigned top_bits(unsigned word, int slice) {  // the slice's codes among the highest bits of each byte
    const int place = lowest_place(BITS) + VALUE_BITS_0 * slice_class(slice);
    unsigned mask = (unsigned)plane_mask(BITS) << place;
    for (int low = place - VALUE_BITS_0; unmasked(slice) && low >= 0; low -= VALUE_BITS_0)
        mask |= (unsigned)plane_mask(BITS) << low;
    return (word << (place - BITS * (slice / (PAGE * BITS / 128)))) & mask;
}

// Where the codes of values have 16 bytes number i, so that rows of a matrix are in different banks. What is added to i
// in multiples of 16, or in bits 1 and 2 where they are 0, is added to this too.
DEVICE constexpr int swizzled(int i) { return i ^ (i >> 3 & 1); }

// Adds the sums of one plane of values: sums[n][tile] of head t, rows 16 tile + g and 16 tile + g + 8. codes and
// group_scale are places in shared memory, p the probabilities: slice i of column 8 n + g, tokens 4 t to 4 t + 3.
template <int BITS, int LANES>
DEVICE void add_values(unsigned codes, const unsigned (&p)[ROW_TILES][SLICES], int lane,
                       const float (&factor)[ROW_TILES], unsigned group_scale, float (*sums)[TILES][2],
                       int first_tile) {
    constexpr int ROW = PAGE * BITS / 8, WORDS = ROW / 16;  // bytes of a row, its words that a lane holds
    constexpr float UNIT = power(-sum_place(BITS));
    // matrices: rows g and g + 8 of a tile, then their next 16 bytes, or where there are none the next tile
    const int matrix = lane / 8;
    const unsigned row_at =
        kept(codes + 16 * swizzled(ROW == 16 ? lane : (lane % 8 + matrix % 2 * 8) * WORDS + matrix / 2));
    const unsigned scale_at = VALUE_GROUPS ? kept(group_scale + lane / 4 * 4) : 0;
    unsigned words[2 * WORDS < 4 ? 4 : 2 * WORDS];  // word i of row g: 2 i, of row g + 8: 2 i + 1
#pragma unroll
    for (int tile = 0; tile < LANES / 16; tile++) {
        const Byte* const row = shared + row_at + 16 * tile * ROW;
        if constexpr (ROW == 16) {
            if (tile % 2 == 0)
                load_matrices(words, row);
            else
                words[0] = words[2], words[1] = words[3];
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i += 2) load_matrices(words + 2 * i, row + 16 * i);
        }
        int products[ROW_TILES][APART][4] = {};
#pragma unroll
        for (int slice = 0; slice < SLICES; slice += 2) {
            const unsigned *low = words + 2 * (slice % WORDS), *high = words + 2 * ((slice + 1) % WORDS);
            const unsigned a0 = top_bits<BITS>(low[0], slice), a1 = top_bits<BITS>(low[1], slice);
            const unsigned a2 = top_bits<BITS>(high[0], slice + 1), a3 = top_bits<BITS>(high[1], slice + 1);
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++)
                mma(products[n][slice_class(slice) % APART], a0, a1, a2, a3, make_uint2(p[n][slice], p[n][slice + 1]));
        }
        float scale[2] = {UNIT, UNIT};
        if constexpr (VALUE_GROUPS) {
            scale[0] *= *(const float*)(shared + scale_at + 64 * tile);
            scale[1] *= *(const float*)(shared + scale_at + 64 * tile + 32);
        }
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float& sum = sums[n][first_tile + tile][i];
                int product = 256 * products[n][0][2 * i] + products[n][0][2 * i + 1];
                if constexpr (APART == 2)
                    product = (1 << VALUE_BITS_0) * product + 256 * products[n][1][2 * i] + products[n][1][2 * i + 1];
                sum = fmaf((float)product, factor[n] * scale[i], sum);
            }
        }
    }
}

#if VALUE_BIT_LANES
// As add_values, for values whose bits are lanes of their own, as those of keys in add_bit_scores: a channel is the sum of
// its lanes times `weights`, of channels that the second plane has the first four numbers, of others the last. A tile may
// be half of these and half of those.
DEVICE constexpr bool has_longer(int tile, int half) { return 16 * tile + 8 * half < VALUE_LANES_1; }

template <int CHANNELS>
DEVICE void add_bit_values(unsigned values, const unsigned (&p)[ROW_TILES][SLICES], int lane,
                           const float (&factor)[ROW_TILES], const float* weights, float (*sums)[TILES][2]) {
    constexpr int ROW = PAGE * VALUE_BITS_0 / 8, WORDS = ROW / 16, TOP = 8 - VALUE_BITS_0;
    static_assert(!VALUE_LANES_1 || (PAGE == 128 && VALUE_BITS_1 == 1 && VALUE_BITS_0 == 2), "rows of 16 bytes");
    static_assert(VALUE_LANES_1 % 8 == 0, "halves of tiles");
    constexpr int BEGIN = CHANNELS == SHORTER ? VALUE_LANES_1 / 16 : 0;
    constexpr int END = CHANNELS == LONGER ? ceil_to(VALUE_LANES_1, 16) / 16 : TILES;
    const int matrix = lane / 8;
    const unsigned row_at =
        kept(values + 16 * swizzled(ROW == 16 ? lane : (lane % 8 + matrix % 2 * 8) * WORDS + matrix / 2));
    const unsigned more_at = VALUE_LANES_1 ? kept(values + VALUE_BYTES_0 + 16 * swizzled(lane)) : 0;
    unsigned words[2 * WORDS < 4 ? 4 : 2 * WORDS], more[4] = {};
#pragma unroll
    for (int tile = BEGIN; tile < END; tile++) {
        const Byte* const row = shared + row_at + 16 * tile * ROW;
        if constexpr (ROW == 16) {
            static_assert(BEGIN % 2 == 0, "two tiles at a time");
            if (tile % 2 == 0)
                load_matrices(words, row);
            else
                words[0] = words[2], words[1] = words[3];
        } else {
#pragma unroll
            for (int i = 0; i < WORDS; i += 2) load_matrices(words + 2 * i, row + 16 * i);
        }
        const bool longer = CHANNELS != SHORTER && has_longer(tile, 0);
        if (longer) {
            if (tile % 2 == 0)
                load_matrices(more, shared + more_at + 256 * tile);
            else
                more[0] = more[2], more[1] = more[3];
        }
        int products[4][ROW_TILES][4] = {};
#pragma unroll
        for (int slice = 0; slice < SLICES; slice += 2) {
            unsigned a[4][4];  // of each bit and the parity
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int s = slice + i / 2, place = VALUE_BITS_0 * (s / WORDS);
                const unsigned x = words[2 * (s % WORDS) + i % 2] << (TOP - place), lowest = 0x01010101u << TOP;
#pragma unroll
                for (int bit = 0; bit < VALUE_BITS_0; bit++) a[bit][i] = x & (lowest << bit);
                if (longer && !has_longer(tile, i % 2)) a[2][i] = a[3][i] = 0;
                if (longer && has_longer(tile, i % 2)) {
                    const unsigned y = more[i % 2];
                    a[2][i] = (s > TOP ? y >> (s > TOP ? s - TOP : 0) : y << (s > TOP ? 0 : TOP - s)) & lowest;
                    a[3][i] = (a[2][i] ^ x ^ (x >> 1)) & lowest;
                }
            }
#pragma unroll
            for (int kind = 0; kind < (longer ? 4 : VALUE_BITS_0); kind++) {
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++)
                    mma(products[kind][n], a[kind][0], a[kind][1], a[kind][2], a[kind][3],
                        make_uint2(p[n][slice], p[n][slice + 1]));
            }
        }
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const bool more_bits = has_longer(tile, i);
                if (CHANNELS != ALL && more_bits != (CHANNELS == LONGER)) continue;
                float sum = 0.0f;
#pragma unroll
                for (int kind = 0; kind < (more_bits ? 4 : VALUE_BITS_0); kind++) {
                    const float unit = power(-TOP - (kind < VALUE_BITS_0 ? kind : 0));
                    const int product = 256 * products[kind][n][2 * i] + products[kind][n][2 * i + 1];
                    sum = fmaf((float)product, weights[(more_bits ? 0 : 4) + kind] * unit, sum);
                }
                sums[n][tile][i] = fmaf(sum, factor[n], sums[n][tile][i]);
            }
        }
    }
}
#endif

// The high and the low parts of two integers. x and y are the integers plus MAGIC + 128: byte 1 is the high part,
// rounded, and byte 0 is the low part plus 128.
DEVICE unsigned short high_parts(float x, float y) {
    return (unsigned short)__byte_perm(__float_as_uint(x), __float_as_uint(y), 0x0051);
}
DEVICE unsigned short low_parts(float x, float y) {
    return (unsigned short)(__byte_perm(__float_as_uint(x), __float_as_uint(y), 0x0040) ^ 0x8080);
}

// The lane's share of BYTES bytes: to and from are the lane's first 16. At a limit below BYTES the rest is left out.
template <int BYTES>
DEVICE void fetch(Byte* to, const Byte* from, int lane, int limit = BYTES) {
#pragma unroll
    for (int i = 0; i < BYTES; i += 512) {
        if ((limit == BYTES && i + 512 <= BYTES) || i + 16 * lane < limit) fetch_16(to + i, from + i);
    }
}

DEVICE int mean_group_of(const Arguments& args, int page) {
    return args.key_groups > 1 ? group_of(args.key_group, args.key_groups, page) : 0;
}

// What keys with one group of scales have to be known for: a factor per code lane and a zero point per channel.
DEVICE void load_scales(const Arguments& args, int batch, int head) {
    float *const factor = (float*)(shared + FACTOR_AT), *const point = (float*)(shared + POINT_AT);
    const Byte* const scale = pages_of(args.key_scale, batch, head, 0);
#pragma unroll
    for (int i = 0; i < KEY_WIDTH; i += THREADS) {
        const int j = i + threadIdx.x;
        if (j >= KEY_WIDTH) break;
        const int channel = args.lane_channel ? args.lane_channel[j] : j;
        const float weight = args.plane_weight ? args.plane_weight[j] : 1.0f;
        // padded code lanes have no channel
        factor[j] = channel >= args.key_channels ? 0.0f
                    : KEY_TOKEN                  ? weight
                                                 : load_number<KEY_SCALE>(scale, channel) * weight;
    }
    if constexpr (KEY_TOKEN) return;  // a token's zero point is that of all channels
    const Byte* const zero = pages_of(args.key_zero, batch, head, 0);
#pragma unroll
    for (int i = 0; i < KEY_ZEROS; i += THREADS) {
        const int c = i + threadIdx.x;
        if (c >= KEY_ZEROS) break;
        point[c] =
            load_number<KEY_SCALE>(zero, c) + (args.key_offset ? args.key_offset[head * args.offset_head + c] : 0);
    }
}

// Waits for the query; the block's rows of it go to shared memory as fold_query wants them; for keys with one group of
// scales with these in it, and what the zero points add with them.
DEVICE void load_query_rows(const Arguments& args, long long unit, int first_row) {
    constexpr int SIZE = QUERY_TYPE == 2 ? 4 : 2, SHARE = ceil_to(4 * ROW_TILES * KEY_WIDTH, THREADS) / THREADS;
    int column[SHARE];
#pragma unroll
    for (int n = 0; n < SHARE; n++) {
        const int j = (n * THREADS + threadIdx.x) % KEY_WIDTH;
        column[n] = args.lane_channel ? args.lane_channel[j] : j;
        if constexpr (KEY_ORDER) {  // side by side for all heads of a store
            const int head = (int)(unit % args.heads) / KEY_HEADS * KEY_HEADS;
            column[n] = ((const short*)pages_of(args.lane_order, (int)(unit / args.heads), head, 0))[j];
        }
    }
    wait_for_query();
    float* const folded = (float*)(shared + FOLDED_AT);
    const float *const factor = (const float*)(shared + FACTOR_AT), *const point = (const float*)(shared + POINT_AT);
    const Byte* const rows = args.query + (unit * args.rows + first_row) * args.query_width * SIZE;
    const int held = min(args.rows - first_row, 4 * ROW_TILES);
#pragma unroll
    for (int n = 0; n < SHARE; n++) {
        const int i = n * THREADS + threadIdx.x, row = i / KEY_WIDTH, j = i % KEY_WIDTH;
        if (i >= 4 * ROW_TILES * KEY_WIDTH) break;
        float x = 0.0f;
        if (row < held && column[n] < args.query_width)
            x = load_number<QUERY_TYPE>(rows + row * args.query_width * SIZE, column[n]) * args.scaling;
        if constexpr (!KEY_GROUPS) x *= factor[j];
        folded[row * KEY_WIDTH + folded_at(j)] = x;
    }
    if constexpr (KEY_TOKEN) {  // sums over the channels of each group
        constexpr int CHUNK = KEY_WIDTH / KEY_CHUNKS;
        const int lane = threadIdx.x % 32;
        __syncthreads();
        for (int i = threadIdx.x / 32; i < held * KEY_CHUNKS; i += WARPS) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < CHUNK; j += 32) sum += folded[i / KEY_CHUNKS * KEY_WIDTH + i % KEY_CHUNKS * CHUNK + j + lane];
#pragma unroll
            for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
            if (lane == 0) ((float*)(shared + ZERO_SUM_AT))[i] = sum;
        }
    } else if constexpr (!KEY_GROUPS) {
        const int lane = threadIdx.x % 32;
        for (int i = threadIdx.x / 32; i < held * ZERO_SUMS; i += WARPS) {
            const Byte* const channels = rows + i / ZERO_SUMS * args.query_width * SIZE;
            // with KEY_HIGH_NORM the channels of the second plane, then the others
            const int from = i % ZERO_SUMS * KEY_LANES_1, to = KEY_HIGH_NORM && !from ? KEY_LANES_1 : KEY_ZEROS;
            float sum = 0.0f;
#pragma unroll
            for (int c = 0; c < KEY_ZEROS; c += 32)
                if (c + lane >= from && c + lane < to)
                    sum = fmaf(load_number<QUERY_TYPE>(channels, c + lane), point[c + lane], sum);
#pragma unroll
            for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
            if (lane == 0) ((float*)(shared + ZERO_SUM_AT))[i] = sum * args.scaling;
        }
    }
    if constexpr (KEY_MEAN || KEY_GATHER) {
        for (int i = threadIdx.x; i < 4 * ROW_TILES * KEY_ZEROS; i += THREADS) {
            const int row = i / KEY_ZEROS, channel = i % KEY_ZEROS;
            const Byte* const channels = rows + row * args.query_width * SIZE;
            ((float*)(shared + CHANNELS_AT))[i] =
                row < held ? load_number<QUERY_TYPE>(channels, channel) * args.scaling : 0.0f;
        }
    }
    __syncthreads();
}

// The mean of a group of pages times the query of head t, of every row tile.
DEVICE void load_mean(const Arguments& args, int batch, int head, int group, float (&mean)[ROW_TILES]) {
    const int lane = threadIdx.x % 32;
    const Byte* const from = pages_of(args.key_mean, batch, head, 0) + group * args.key_mean.page;
#pragma unroll
    for (int row = 0; row < 4 * ROW_TILES; row++) {
        const float* const channels = (const float*)(shared + CHANNELS_AT) + row * KEY_ZEROS;
        float sum = 0.0f;
        for (int c = lane; c < KEY_ZEROS; c += 32) sum = fmaf(channels[c], load_number<KEY_MEAN>(from, c), sum);
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        if (lane % 4 == row % 4) mean[row / 4] = sum;
    }
}

#if HALF_PRODUCTS
#include "half_products.cuh"
#endif

#if RESIDUAL
#include "dense_columns.cuh"
#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) split_kernel(const Arguments args) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int split = blockIdx.x, batch = blockIdx.z;
    const int head = blockIdx.y % args.heads, first_row = blockIdx.y / args.heads * (4 * ROW_TILES);
    // page number `index` of this warp: all warps of all splits take turns
    const int step = args.num_kv_splits * WARPS, begin = warp * args.num_kv_splits + split;
    const long long unit = (long long)batch * args.heads + head;

    // places in shared memory
    const unsigned key_stages = warp * WARP_BYTES, value_stages = key_stages + STAGES * KEY_STAGE;
    const unsigned probabilities = key_stages + P_AT;

    const int query_rows = min(2 * (args.rows - first_row), COLUMNS);
    auto query_of = [&](int group) {
        return args.query + ((unit * args.key_groups + group) * 2 * args.rows + 2 * first_row) * KEY_WIDTH;
    };

    const unsigned sources = SOURCES_AT + 16 * lane;
    // 64 bits of an address, 32 of a page's size, and where the lane's codes of values go
    auto keep_source = [&](int index, const Paged& store, int lane, int heads_together = 1) {
        const unsigned long long data = (unsigned long long)pages_of(store, batch, head / heads_together, lane);
        const uint4 source = {(unsigned)data, (unsigned)(data >> 32), (unsigned)store.page,
                              16u * swizzled(lane)};
        *(uint4*)(shared + sources + 512 * index) = source;
    };
    keep_source(0, args.keys[0], lane, KEY_HEADS);
    if constexpr (KEY_LANES_1) keep_source(1, args.keys[1], lane);
    keep_source(VALUE_SOURCE, args.values[0], lane);
    if constexpr (VALUE_LANES_1) keep_source(VALUE_SOURCE + 1, args.values[1], lane);
    // every warp writes them all, and others may read them already: always the same
    if constexpr (KEY_NORM) {
        if (!NORMS_TOGETHER || lane < 16) keep_source(NORM_SOURCE, args.key_norm, lane, KEY_HEADS);
    }
    if constexpr (VALUE_NORM) {
        if (!NORMS_TOGETHER || lane >= 16)
            keep_source(NORMS_TOGETHER ? NORM_SOURCE : FACTOR_SOURCE, args.value_norm,
                        NORMS_TOGETHER ? lane - 16 : lane);
    }
    if constexpr (KEY_GROUPS && FOLD) {
        keep_source(GROUP_SOURCE, args.key_scale, lane);
        keep_source(GROUP_SOURCE + 1, args.key_zero, lane);
    }
    if constexpr (VALUE_TOKEN) {
        keep_source(TOKEN_SOURCE, args.value_scale, lane);
        keep_source(TOKEN_SOURCE + 1, args.value_zero, lane);
    }
    if constexpr (KEY_TOKEN) keep_source(POINT_SOURCE, args.key_point, lane, KEY_HEADS);
    if constexpr (KEY_GATHER) keep_source(INDEX_SOURCE, args.group_channel, lane);
    if constexpr (KEY_HIGH_NORM) keep_source(KEY_HIGH_SOURCE, args.key_high_norm, lane);
    if constexpr (VALUE_HIGH_NORM) keep_source(VALUE_HIGH_SOURCE, args.value_high_norm, lane);
    auto source_of = [&](int index) { return *(const uint4*)(shared + sources + 512 * index); };
    auto from_source = [&](const uint4& source, int page) {
        const unsigned long long data = (unsigned long long)source.y << 32 | source.x;
        return (const Byte*)(data + (unsigned long long)(unsigned)page * source.z);
    };
    auto fetch_keys = [&](int page, int limit, int stage, int slot) {
        if (page < limit) {
            Byte* const to = shared + kept(key_stages + stage * KEY_STAGE + 16 * lane);
            const int group = KEY_GROUPS ? group_of(args.key_group, args.key_groups, page) : 0;
            // all are looked up before the first is asked for: a fetch has to wait for what was read from shared memory
            const Byte* const codes = from_source(source_of(0), page);
            const Byte* const more_codes = KEY_LANES_1 ? from_source(source_of(1), page) : nullptr;
            const Byte* const norms = KEY_NORM ? from_source(source_of(NORM_SOURCE), page) : nullptr;
            const Byte* const value_norms =
                VALUE_NORM && !NORMS_TOGETHER && !LOGIT_RANGE ? from_source(source_of(FACTOR_SOURCE), page) : nullptr;
            constexpr bool SCALES = KEY_GROUPS && FOLD, VALUE_SCALES = TOKEN_BYTES && !LOGIT_RANGE;
            const Byte* const scales = SCALES ? from_source(source_of(GROUP_SOURCE), group) : nullptr;
            const Byte* const zeros = SCALES ? from_source(source_of(GROUP_SOURCE + 1), group) : nullptr;
            const Byte* const value_scales = VALUE_SCALES ? from_source(source_of(TOKEN_SOURCE), page) : nullptr;
            const Byte* const value_zeros = VALUE_SCALES ? from_source(source_of(TOKEN_SOURCE + 1), page) : nullptr;
            const Byte* const points = KEY_TOKEN ? from_source(source_of(POINT_SOURCE), page) : nullptr;
            const Byte* const index = KEY_GATHER ? from_source(source_of(INDEX_SOURCE), group) : nullptr;
            const Byte* const high_norms = KEY_HIGH_NORM ? from_source(source_of(KEY_HIGH_SOURCE), page) : nullptr;
            const Byte* const value_high = VALUE_HIGH_NORM ? from_source(source_of(VALUE_HIGH_SOURCE), page) : nullptr;
            fetch<KEY_BYTES_0>(to, codes, lane);
            if constexpr (KEY_GATHER) fetch<INDEX_BYTES>(to + INDEX_AT, index, lane);
            if constexpr (KEY_TOKEN) fetch<KEY_POINT_BYTES>(to + KEY_POINT_AT, points, lane);
            if constexpr (KEY_LANES_1) fetch<KEY_BYTES_1>(to + KEY_BYTES_0, more_codes, lane);
            if constexpr (KEY_GROUPS) {
                if constexpr (FOLD) {
                    fetch<GROUP_ROW>(to + QUERY_AT, scales, lane);
                    fetch<GROUP_ROW>(to + QUERY_AT + GROUP_ROW, zeros, lane);
                } else {
                    fetch<QUERY_BYTES>(to + QUERY_AT, query_of(group) + 16 * lane, lane, query_rows * KEY_WIDTH);
                }
            }
            Byte* const factors = shared + kept(key_stages + FACTORS_AT + slot * FACTOR_BYTES + 16 * lane);
            if constexpr (NORMS_TOGETHER) {
                fetch_16(lane < 16 ? to + KEY_NORM_AT : factors - 256, norms);
            } else {
                if constexpr (KEY_NORM) fetch<KEY_NORM_BYTES>(to + KEY_NORM_AT, norms, lane);
                if constexpr (VALUE_NORM && !LOGIT_RANGE) fetch<VALUE_NORM_BYTES>(factors, value_norms, lane);
            }
            if constexpr (KEY_HIGH_NORM) fetch<KEY_HIGH_BYTES>(to + KEY_HIGH_AT, high_norms, lane);
            if constexpr (VALUE_HIGH_NORM) fetch<VALUE_HIGH_BYTES>(factors + VALUE_NORM_BYTES, value_high, lane);
            if constexpr (VALUE_SCALES) {
                fetch<TOKEN_BYTES>(factors, value_scales, lane);
                fetch<TOKEN_BYTES>(factors + TOKEN_BYTES, value_zeros, lane);
            }
            if constexpr (BIAS == 2) {
                const float* from = args.bias + batch * args.bias_batch + (long long)page * PAGE;
                fetch<BIAS_BYTES>(to + BIAS_AT, (const Byte*)from + 16 * lane, lane);
            }
        }
        fetch_end();
    };
    auto fetch_values = [&](int page, int limit, int stage) {
        if (!LOGIT_RANGE && page < limit) {
            const uint4 source = source_of(VALUE_SOURCE);
            Byte* const codes_to = shared + kept(value_stages + stage * VALUE_STAGE + source.w);
            const Byte* const codes = from_source(source, page);
            const Byte* const more_codes = VALUE_LANES_1 ? from_source(source_of(VALUE_SOURCE + 1), page) : nullptr;
            const Byte* const scales = HALF_PRODUCTS ? from_source(source_of(TOKEN_SOURCE), page) : nullptr;
            const Byte* const zeros = HALF_PRODUCTS ? from_source(source_of(TOKEN_SOURCE + 1), page) : nullptr;
            fetch<VALUE_BYTES_0>(codes_to, codes, lane);
            if constexpr (HALF_PRODUCTS) {
                Byte* const to = shared + kept(value_stages + stage * VALUE_STAGE + TOKENS_AT + 16 * lane);
                fetch<TOKENS_BYTES>(to, scales, lane);
                fetch<TOKENS_BYTES>(to + TOKENS_BYTES, zeros, lane);
            }
            if constexpr (VALUE_LANES_1) fetch<VALUE_BYTES_1>(codes_to + VALUE_BYTES_0, more_codes, lane);
            if constexpr (VALUE_GROUPS) {
                Byte* const to = shared + kept(value_stages + stage * VALUE_STAGE + 16 * lane);
                const int group = group_of(args.value_group, args.value_groups, page);
                const float* from = args.group_scale + (unit * args.value_groups + group) * VALUE_WIDTH;
                fetch<GROUP_BYTES>(to + GROUP_AT, (const Byte*)from + 16 * lane, lane);
                const float* zeros_from = args.group_zero + (unit * args.value_groups + group) * VALUE_ZEROS;
                fetch<ZERO_BYTES>(to + ZERO_AT, (const Byte*)zeros_from + 16 * lane, lane);
            }
        }
        fetch_end();
    };
    // The first page is asked for before it is known whether it is in use: that it exists is enough.
    const int room = RESIDUAL && split >= args.num_kv_splits ? 0 : args.pages;
    fetch_keys(begin, room, 0, 0);
    fetch_values(begin, room, 0);
    const int pages = args.num_pages ? min(*args.num_pages, room) : room;
#pragma unroll
    for (int stage = 1; stage < STAGES; stage++) {
        fetch_keys(begin + stage * step, pages, stage, stage);
        fetch_values(begin + stage * step, pages, stage);
    }

#if RESIDUAL
    // These columns need the query as the model has it, which was there before this kernel could start.
    const int dense_part = split - args.residual_start;
    if (dense_part >= 0 && dense_part < args.num_residual_splits) add_dense(args, batch, head, first_row, dense_part);
    if (split >= args.num_kv_splits) return;  // a block for these columns alone
#endif

    // The right operand of the scores: column g of a tile is row g of the query.
    uint2 query[ROW_TILES * STEPS];
    float weight[ROW_TILES], zero[ROW_TILES], chunk_zero[ROW_TILES][ZERO_SUMS], slope[ROW_TILES], shift[ROW_TILES];
    auto load_adjust = [&] {
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            const int row = first_row + 4 * n + t;
            const bool live = CALIBRATED && row < args.rows;
            slope[n] = live ? args.calibration[(unit * args.rows + row) * 2] : 1.0f;
            shift[n] = live ? args.calibration[(unit * args.rows + row) * 2 + 1] : 0.0f;
        }
    };
    auto take_through = [&](int n) {
        if constexpr (CALIBRATED) weight[n] *= slope[n], zero[n] = fmaf(zero[n], slope[n], shift[n]);
    };
    auto load_query = [&](const Byte* rows) {
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            uint2* words = query + n * STEPS;
            if (8 * n + g < query_rows) {
                const Byte* row = rows + (8 * n + g) * KEY_WIDTH;
                const Byte* more = row + KEY_WIDTH_0;
                if constexpr (HALVES) {
                    auto word = [&](int step, int half) {
                        const Byte* const at = step < WHOLE_0 / 32  ? row + 32 * step + 16 * half
                                               : step < WHOLE_STEPS ? more + 32 * step - WHOLE_0 + 16 * half
                                               : half               ? more + WHOLE_1
                                                                    : row + WHOLE_0;
                        return *(const unsigned*)(at + 4 * t);
                    };
#pragma unroll
                    for (int i = 0; i < STEPS; i++) words[i] = make_uint2(word(i, 0), word(i, 1));
                } else {
                    load_row<WHOLE_0>(row + 16 * t, row + 8 * t, words);
                    load_row<WHOLE_1>(more + 16 * t, more + 8 * t, words + WHOLE_0 / 32);
                }
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
            take_through(n);
        }
    };
#if HALF_PRODUCTS
    load_half_query(args, unit, first_row);
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) weight[n] = ((const float*)(shared + FACTOR_AT))[4 * n + t];
#else
    if constexpr (FOLD) {
        if constexpr (!KEY_GROUPS) {
            load_scales(args, batch, head);
            __syncthreads();
        }
        load_query_rows(args, unit, first_row);
        load_adjust();
        if constexpr (!KEY_GROUPS) {
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
                fold_query<false>(FOLDED_AT + 16 * n * KEY_WIDTH, 0, 0, 0, g, t, query + n * STEPS, weight[n], zero[n]);
                const float* const sums_of_row = (const float*)(shared + ZERO_SUM_AT) + (4 * n + t) * ZERO_SUMS;
                zero[n] = sums_of_row[0];  // behind the last row any
#pragma unroll
                for (int chunk = 0; chunk < ZERO_SUMS; chunk++) chunk_zero[n][chunk] = sums_of_row[chunk];
                take_through(n);
            }
        }
    } else if constexpr (!KEY_GROUPS) {
        wait_for_query();
        load_adjust();
        load_query(query_of(0));
        load_weights(0);
    } else {
        wait_for_query();
        load_adjust();
        if (begin < pages) load_weights(group_of(args.key_group, args.key_groups, begin));
    }
#endif

    float top[ROW_TILES], total[ROW_TILES], total_zero[ROW_TILES], total_high[ROW_TILES] = {}, sums[ROW_TILES][TILES][2] = {};
    float zero_sums[ROW_TILES][VALUE_ZEROS / 8 + 1] = {};  // of head t, channels 8 i + g
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++)
        top[n] = -infinity(), total[n] = LOGIT_RANGE ? infinity() : 0.0f, total_zero[n] = 0.0f;

    int kept_slots[KEPT_IN_REGISTERS];  // those of this lane
#pragma unroll
    for (int i = 0; i < (KEPT <= KEPT_IN_REGISTERS ? KEPT : 0); i++) {
        const Byte* const slots = pages_of(args.kept_slot, batch, head, 0);
        kept_slots[i] = 32 * i + lane < args.kept ? ((const int*)slots)[32 * i + lane] : -PAGE;
    }

    float mean[ROW_TILES] = {};
    int mean_group = -1, next_group = KEY_MEAN && begin < pages ? mean_group_of(args, begin) : 0;

    int stage = 0, slot = 0;
    for (int page = begin; page < pages; page += step) {
        const unsigned keys = key_stages + stage * KEY_STAGE, values = value_stages + stage * VALUE_STAGE;
        const unsigned factors = key_stages + FACTORS_AT + slot * FACTOR_BYTES;

        float2 bias[SLICES];
        if constexpr (BIAS == 1) {
            const float* from = args.bias + batch * args.bias_batch + (long long)page * PAGE + 2 * g;
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++)
                bias[slice] = make_float2(from[16 * slice], from[16 * slice + 1]);
        }

        unsigned hidden = 0;  // of a slice's two tokens those that are kept elsewhere, in two bits
        if constexpr (KEPT) {
            auto hide = [&](int slot, bool here) {
                for (unsigned found = __ballot_sync(0xffffffffu, here); found; found &= found - 1) {
                    const int at = __shfl_sync(0xffffffffu, slot, __ffs(found) - 1) - page * PAGE;
                    if (at % 16 / 2 == g) hidden |= 1u << (at / 16 * 2 + at % 2);
                }
            };
            if constexpr (KEPT <= KEPT_IN_REGISTERS) {
#pragma unroll
                for (int i = 0; i < KEPT; i++) hide(kept_slots[i], kept_slots[i] / PAGE == page);
            } else {  // of a long context: looked up while the page is on its way
                const int* const slots = (const int*)pages_of(args.kept_slot, batch, head, 0);
                int at = first_not_below(slots, args.kept, page * PAGE, lane) + lane;
                for (bool more = true; more; at += 32) {
                    const int slot = at < args.kept ? slots[at] : 0x7fffffff;
                    const bool here = slot / PAGE == page;
                    hide(slot, here);
                    more = __all_sync(0xffffffffu, here);
                }
            }
        }

        fetch_wait<2 * STAGES - 1>();  // the oldest of the fetches under way
#if HALF_PRODUCTS
        float scores[ROW_TILES][SLICES][4] = {}, part_zero[ROW_TILES][KEY_PARTS];
        half_scores(keys, lane, scores, part_zero);
#else
        if constexpr (KEY_GROUPS && FOLD) {
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
                fold_query<true>(FOLDED_AT + 16 * n * KEY_WIDTH, keys + QUERY_AT, keys + INDEX_AT,
                                 CHANNELS_AT + 16 * n * KEY_ZEROS, g, t, query + n * STEPS, weight[n], zero[n]);
                take_through(n);
            }
        } else if constexpr (KEY_GROUPS) {
            load_query(shared + keys + QUERY_AT);
        }
#if KEY_CHUNKS > 1
        // of two tokens of head t, channels of one scale at a time
        float found[ROW_TILES][SLICES][2] = {};
#pragma unroll
        for (int chunk = 0; chunk < KEY_CHUNKS; chunk++) {
            constexpr int WIDTH = KEY_WIDTH / KEY_CHUNKS;
            int scores[ROW_TILES][SLICES][4] = {};
            add_scores<KEY_BITS_0, KEY_LANES_0, WIDTH>(keys + chunk * WIDTH, lane, query + chunk * WIDTH / 32, scores, nullptr);
            const Byte* const scales = shared + kept(keys + KEY_NORM_AT + 4 * KEY_NORM * g);
            const Byte* const points = shared + kept(keys + KEY_POINT_AT + 4 * KEY_TOKEN * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                Pair<KEY_NORM> scale;
                Pair<KEY_TOKEN> point;
                scale.load(scales, chunk * PAGE + 16 * slice), point.load(points, chunk * PAGE + 16 * slice);
                const float2 s = scale.values(), z = point.values();
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++) {
                    const float unit_weight = weight[n] * power(-slice_shift(slice)), sum = chunk_zero[n][chunk];
                    const int* const x = scores[n][slice];
                    found[n][slice][0] += fmaf((float)(254 * x[0] + x[1]) * unit_weight, s.x, z.x * sum);
                    found[n][slice][1] += fmaf((float)(254 * x[2] + x[3]) * unit_weight, s.y, z.y * sum);
                }
            }
        }
#elif KEY_HIGH_NORM
        // of two tokens of head t, channels of one norm at a time
        float found[ROW_TILES][SLICES][2] = {};
        auto add_part = [&](const int (&scores)[ROW_TILES][SLICES][4], unsigned norms_at, int part) {
            const Byte* const norms = shared + kept(norms_at + 4 * KEY_NORM * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                Pair<KEY_NORM> by;
                by.load(norms, 16 * slice);
                const float2 s = by.values();
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++) {
                    const float unit_weight = weight[n] * power(-slice_shift(slice)), sum = chunk_zero[n][part];
                    const int* const x = scores[n][slice];
                    float* const y = found[n][slice];
                    y[0] = fmaf(fmaf((float)(254 * x[0] + x[1]), unit_weight, sum), s.x, y[0]);
                    y[1] = fmaf(fmaf((float)(254 * x[2] + x[3]), unit_weight, sum), s.y, y[1]);
                }
            }
        };
        {
            int scores[ROW_TILES][SLICES][4] = {};
            add_bit_scores<LONGER>(keys, lane, query, scores);
            add_part(scores, keys + KEY_HIGH_AT, 0);
        }
        {
            int scores[ROW_TILES][SLICES][4] = {};
            add_bit_scores<SHORTER>(keys, lane, query, scores);
            add_part(scores, keys + KEY_NORM_AT, 1);
        }
#else
        int scores[ROW_TILES][SLICES][4] = {};
        unsigned rest[2][PAGE / 16][2];
#if KEY_BIT_LANES
        add_bit_scores<ALL>(keys, lane, query, scores);
#else
        add_scores<KEY_BITS_0, KEY_LANES_0, WHOLE_0>(keys, lane, query, scores, rest[0]);
        if constexpr (KEY_LANES_1) {
            constexpr int BITS = KEY_BITS_1 ? KEY_BITS_1 : 1;
            add_scores<BITS, KEY_LANES_1, WHOLE_1>(keys + KEY_BYTES_0, lane, query + WHOLE_0 / 32, scores, rest[1]);
            if constexpr (HALVES) add_halves<KEY_BITS_0, BITS>(rest[0], rest[1], query + WHOLE_STEPS, scores);
        }
#endif
#endif
#endif
        if constexpr (KEY_MEAN) {
            if (next_group != mean_group) load_mean(args, batch, head, next_group, mean);
            mean_group = next_group;
            if (page + step < pages) next_group = mean_group_of(args, page + step);
        }
        constexpr bool IN_SCORES = KEY_CHUNKS > 1 || KEY_HIGH_NORM;  // scales and zero points are
        Pair<KEY_TOKEN> point[SLICES];
        if constexpr (KEY_TOKEN && !IN_SCORES) {
            const Byte* const row = shared + kept(keys + KEY_POINT_AT + 4 * KEY_TOKEN * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) point[slice].load(row, 16 * slice);
        }
        Pair<KEY_NORM> norm[SLICES];
        if constexpr (KEY_NORM && !IN_SCORES) {
            const Byte* const row = shared + kept(keys + KEY_NORM_AT + 4 * KEY_NORM * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) norm[slice].load(row, 16 * slice);
        }
        if constexpr (BIAS == 2) {
            const Byte* const row = shared + kept(keys + BIAS_AT + 8 * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) bias[slice] = *(const float2*)(row + 64 * slice);
        }
        __syncwarp();  // all lanes have read the keys
        fetch_keys(page + STAGES * step, pages, stage, slot == 0 ? FACTORS - 1 : slot - 1);

#if !HALF_PRODUCTS && KEY_CHUNKS == 1 && !KEY_HIGH_NORM
        unsigned whole[ROW_TILES][SLICES][2];  // of two tokens of head t
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    unsigned& x = whole[n][slice][i];
                    x = 254 * scores[n][slice][2 * i] + scores[n][slice][2 * i + 1];
                    if constexpr (SUBTRACT) x = kept(x);  // or it is multiplied again where it is subtracted
                    if (subtracted(slice)) {
#pragma unroll
                        for (int j = slice % KEY_PITCH; j < slice; j += KEY_PITCH) x -= whole[n][j][i];
                    }
                }
            }
        }

#endif

        // of a slice's two tokens of head t, without bias
        auto logits = [&](int n, int slice) {
#if HALF_PRODUCTS
            const float* const found = scores[n][slice];
            const float unit_weight = weight[n] * (CODE_UNIT * power(-place_of(KEY_BITS_0, slice)));
            const float zero_part = weight[n] * part_zero[n][slice / PART_SLICES];
            float2 x = make_float2(fmaf(found[0] + found[1], unit_weight, zero_part),
                                   fmaf(found[2] + found[3], unit_weight, zero_part));
#elif KEY_CHUNKS > 1 || KEY_HIGH_NORM
            float2 x = make_float2(found[n][slice][0], found[n][slice][1]);
#else
            const float unit_weight = weight[n] * power(-slice_shift(slice)), constant = KEY_TOKEN ? 0.0f : zero[n];
            float2 x = make_float2(fmaf((float)(int)whole[n][slice][0], unit_weight, constant),
                                   fmaf((float)(int)whole[n][slice][1], unit_weight, constant));
#endif
            if constexpr (KEY_NORM && !IN_SCORES) {
                const float2 by = norm[slice].values();
                x.x *= by.x, x.y *= by.y;
            }
            if constexpr (KEY_TOKEN && !IN_SCORES) {
                const float2 by = point[slice].values();
                x.x = fmaf(by.x, zero[n], x.x), x.y = fmaf(by.y, zero[n], x.y);
            }
            if constexpr (KEY_MEAN) x.x += mean[n], x.y += mean[n];
            return x;
        };
        if constexpr (LOGIT_RANGE) {  // `total` is the smallest logit of a token
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
                for (int slice = 0; slice < SLICES; slice++) {
                    const float2 x = logits(n, slice);
                    float2 added = make_float2(0.0f, 0.0f);
                    if constexpr (BIAS) added = bias[slice];
                    top[n] = fmaxf(top[n], fmaxf(fmaf(added.x, LOG2_E, x.x), fmaf(added.y, LOG2_E, x.y)));
                    total[n] = fminf(total[n], added.x < NO_SLOT ? infinity() : x.x);
                    total[n] = fminf(total[n], added.y < NO_SLOT ? infinity() : x.y);
                }
            }
            fetch_values(page + STAGES * step, pages, stage);
            if (++stage == STAGES) stage = 0;
            if (++slot == FACTORS) slot = 0;
            continue;
        }

        // Norms (or scales) multiply the probabilities; their largest sets the steps, whatever the probabilities are.
        constexpr int FACTOR = HALF_PRODUCTS ? 0 : VALUE_TOKEN ? VALUE_TOKEN : VALUE_NORM;
        Pair<FACTOR> value_factor[SLICES];
        float most = 1.0f;
        if constexpr (FACTOR) {
            const Byte* const row = shared + kept(factors + 4 * FACTOR * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) value_factor[slice].load(row, 16 * slice);
            Pair<FACTOR> largest = value_factor[0];
#pragma unroll
            for (int slice = 1; slice < SLICES; slice++) largest.largest_of(value_factor[slice]);
            most = fmaxf(largest.largest(), 1e-20f);
        }
        constexpr int HIGH = VALUE_HIGH_NORM ? VALUE_NORM : 0;
        Pair<HIGH> high_factor[SLICES];
        float high_share = 1.0f;  // the largest norm of the others over the largest one of the second plane's channels
        if constexpr (HIGH) {
            const Byte* const row = shared + kept(factors + VALUE_NORM_BYTES + 4 * HIGH * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) high_factor[slice].load(row, 16 * slice);
            Pair<HIGH> largest = high_factor[0];
#pragma unroll
            for (int slice = 1; slice < SLICES; slice++) largest.largest_of(high_factor[slice]);
            high_share = most / fmaxf(largest.largest(), 1e-20f);
        }

        float factor[ROW_TILES], page_weight[ROW_TILES];
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            float2 x[SLICES], largest_pair = make_float2(NO_TOKEN, -infinity());  // without a token: probabilities of 0
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                x[slice] = logits(n, slice);
                if constexpr (BIAS) {
                    x[slice].x = fmaf(bias[slice].x, LOG2_E, x[slice].x);
                    x[slice].y = fmaf(bias[slice].y, LOG2_E, x[slice].y);
                }
                if constexpr (KEPT) {
                    if (hidden >> 2 * slice & 1) x[slice].x = -infinity();
                    if (hidden >> 2 * slice & 2) x[slice].y = -infinity();
                }
                largest_pair.x = fmaxf(largest_pair.x, x[slice].x), largest_pair.y = fmaxf(largest_pair.y, x[slice].y);
            }
            const float largest = max_over_tokens(fmaxf(largest_pair.x, largest_pair.y));
#if HALF_PRODUCTS
            const float new_top = fmaxf(top[n], largest);
            const float decay = exp2_approx(top[n] - new_top);
            factor[n] = exp2_approx(largest - new_top) * (1.0f / P_LARGEST);
            const bool grows = new_top > top[n];
            top[n] = new_top;
            // even tokens of a slice, then odd ones
            Byte* const row = shared + kept(probabilities + (4 * n + t) * HALF_STRIDE + 2 * g);
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const float start = LOG2_P_LARGEST - (float)place_of(VALUE_BITS_0, slice) - largest;
                const unsigned pair = to_halves(exp2_approx(x[slice].x + start), exp2_approx(x[slice].y + start));
                *(unsigned short*)(row + 32 * slice) = (unsigned short)pair;
                *(unsigned short*)(row + 32 * slice + 16) = (unsigned short)(pair >> 16);
            }
            total[n] *= decay, total_zero[n] *= decay;
#else
            float offset = LOG2_P_STEPS, unit_p = 1.0f / P_STEPS;
            if constexpr (FACTOR) offset -= log2_approx(most), unit_p *= most;
            offset -= largest;
            const float new_top = fmaxf(top[n], largest);
            const float decay = exp2_approx(top[n] - new_top);
            factor[n] = exp2_approx(largest - new_top) * unit_p;
            const bool grows = new_top > top[n];
            top[n] = new_top;
            float sum[STEP_SIZES] = {}, sum_zero[STEP_SIZES] = {}, sum_high = 0.0f;
            // column 2 t of the tile holds the high parts, column 2 t + 1 the low ones
            Byte* const column = shared + kept(probabilities + (8 * n + 2 * t) * P_STRIDE + 2 * g);
            const unsigned zeros = VALUE_TOKEN ? kept(factors + TOKEN_BYTES + 4 * VALUE_TOKEN * g) : 0;
            float2 last[VALUE_PITCH];
#pragma unroll
            for (int i = SLICES - 1; i >= 0; i--) {
                const int slice = i;
                const int part = step_size(slice);
                const float start = offset - (float)(VALUE_BITS_0 * part);
                float2 p = make_float2(exp2_approx(x[slice].x + start), exp2_approx(x[slice].y + start));
                // the first of a size of steps, not added to 0, which would take an instruction
                const bool starts =
                    slice >= SLICES - STEP_SIZES * VALUE_PITCH && slice % VALUE_PITCH == VALUE_PITCH - 1;
                sum[part] = (starts ? p.x : sum[part] + p.x) + p.y;
                float2 by = make_float2(1.0f, 1.0f);
                if constexpr (FACTOR) by = value_factor[slice].values();
                if constexpr (VALUE_TOKEN) {
                    Pair<VALUE_TOKEN> pair;
                    pair.load(shared + zeros, 16 * slice);
                    const float2 z = pair.values();
                    sum_zero[part] = fmaf(p.x, z.x, starts ? p.y * z.y : fmaf(p.y, z.y, sum_zero[part]));
                } else if constexpr (VALUE_NORM) {
                    sum_zero[part] = fmaf(p.x, by.x, starts ? p.y * by.y : fmaf(p.y, by.y, sum_zero[part]));
                }
                float2 zero_point = make_float2(MAGIC + 128.0f, MAGIC + 128.0f);
                if (UNMASKED && !unmasked(slice)) {
                    const float share = excess(slice), both = (1.0f + share) * (MAGIC + 128.0f);
                    zero_point.x = fmaf(-share, last[slice % VALUE_PITCH].x, both);
                    zero_point.y = fmaf(-share, last[slice % VALUE_PITCH].y, both);
                }
                const float2 unscaled = p;
                p.x = fmaf(p.x, by.x, zero_point.x), p.y = fmaf(p.y, by.y, zero_point.y);
                if constexpr (HIGH) {
                    const float2 high = high_factor[slice].values();
                    const float2 q = make_float2(unscaled.x * high.x, unscaled.y * high.y);
                    sum_high += q.x + q.y;
                    const float x = fmaf(q.x, high_share, MAGIC + 128.0f), y = fmaf(q.y, high_share, MAGIC + 128.0f);
                    *(unsigned short*)(column + P_SET + 16 * slice) = high_parts(x, y);
                    *(unsigned short*)(column + P_SET + P_STRIDE + 16 * slice) = low_parts(x, y);
                }
                if (unmasked(slice)) last[slice % VALUE_PITCH] = p;
                *(unsigned short*)(column + 16 * slice) = high_parts(p.x, p.y);
                *(unsigned short*)(column + P_STRIDE + 16 * slice) = low_parts(p.x, p.y);
            }
            float page_total = sum[0], page_zero = sum_zero[0];
#pragma unroll
            for (int part = 1; part < STEP_SIZES; part++) {
                page_total = fmaf(sum[part], power(VALUE_BITS_0 * part), page_total);
                page_zero = fmaf(sum_zero[part], power(VALUE_BITS_0 * part), page_zero);
            }
            total[n] = fmaf(total[n], decay, page_total * factor[n]);
            total_zero[n] = fmaf(total_zero[n], decay, page_zero * factor[n]);
            if constexpr (HIGH) total_high[n] = fmaf(total_high[n], decay, sum_high * factor[n]);
            const float weights = VALUE_NORM ? page_zero : page_total;
            if constexpr (VALUE_ZEROS) page_weight[n] = sum_over_tokens(weights * factor[n]);
#endif
            if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) sums[n][tile][0] *= decay, sums[n][tile][1] *= decay;
#pragma unroll
                for (int i = 0; i < VALUE_ZEROS / 8; i++) zero_sums[n][i] *= decay;
            }
        }
        __syncwarp();

        fetch_wait<2 * STAGES - 1>();
#if HALF_PRODUCTS
        unsigned p[ROW_TILES][2 * SLICES];
        const unsigned p_at = kept(probabilities + lane % 8 / 2 * HALF_STRIDE + lane / 8 * 16);
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
            for (int i = 0; i < SLICES; i += 2) load_matrices(p[n] + 2 * i, shared + p_at + 4 * n * HALF_STRIDE + 32 * i);
        }
        add_half_values(values, p, lane, factor, total, total_zero, sums);
#else
        const unsigned group_scale = values + GROUP_AT;
        unsigned p[ROW_TILES][SLICES];
        const unsigned p_at = kept(probabilities + lane % 8 * P_STRIDE + lane / 8 * 16);
        auto load_probabilities = [&](int set) {
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
                for (int i = 0; i < SLICES; i += 4)
                    load_matrices(p[n] + i, shared + p_at + set * P_SET + 8 * n * P_STRIDE + 16 * i);
            }
        };
#if VALUE_HIGH_NORM
        float high_unit[ROW_TILES];
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) high_unit[n] = factor[n] / high_share;
        load_probabilities(1);
        add_bit_values<LONGER>(values, p, lane, high_unit, args.value_weights, sums);
        load_probabilities(0);
        add_bit_values<SHORTER>(values, p, lane, factor, args.value_weights, sums);
#elif VALUE_BIT_LANES
        load_probabilities(0);
        add_bit_values<ALL>(values, p, lane, factor, args.value_weights, sums);
#else
        load_probabilities(0);
        add_values<VALUE_BITS_0, VALUE_LANES_0>(values, p, lane, factor, group_scale, sums, 0);
        if constexpr (VALUE_LANES_1)
            add_values<VALUE_BITS_1 ? VALUE_BITS_1 : 1, VALUE_LANES_1>(
                values + VALUE_BYTES_0, p, lane, factor, group_scale + 4 * VALUE_WIDTH_0, sums, TILES_0);
#endif
        if constexpr (VALUE_ZEROS) {
            const Byte* const zeros = shared + kept(values + ZERO_AT + 4 * g);
#pragma unroll
            for (int i = 0; i < VALUE_ZEROS / 8; i++) {
                const float zero_point = *(const float*)(zeros + 32 * i);
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++) zero_sums[n][i] = fmaf(page_weight[n], zero_point, zero_sums[n][i]);
            }
        }
        if constexpr (KEY_GROUPS && !FOLD) {
            if (page + step < pages) load_weights(group_of(args.key_group, args.key_groups, page + step));
        }
#endif
        __syncwarp();  // all lanes have read the values and the probabilities
        fetch_values(page + STAGES * step, pages, stage);
        if (++stage == STAGES) stage = 0;
        if (++slot == FACTORS) slot = 0;
    }

    fetch_wait<0>();

    const int rows = min(args.rows - first_row, 4 * ROW_TILES);
    const long long out_row = (unit * args.num_kv_splits + split) * args.rows + first_row;

    // The block's warps become one split.
    float* const shared_top = (float*)(shared + FOUND_AT);
    float* const shared_total = shared_top + WARPS * ROW_TILES * 4;
    if constexpr (LOGIT_RANGE) {
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            const int at = warp * ROW_TILES * 4 + 4 * n + t;
            const float largest = max_over_tokens(top[n]), smallest = -max_over_tokens(-total[n]);
            if (g == 0) shared_top[at] = largest, shared_total[at] = smallest;
        }
        __syncthreads();
        if (threadIdx.x < rows) {
            float largest = -infinity(), smallest = infinity();
            for (int i = 0; i < WARPS; i++) {
                largest = fmaxf(largest, shared_top[i * ROW_TILES * 4 + threadIdx.x]);
                smallest = fminf(smallest, shared_total[i * ROW_TILES * 4 + threadIdx.x]);
            }
            args.out_m[out_row + threadIdx.x] = largest, args.out_l[out_row + threadIdx.x] = smallest;
        }
        return;
    }
    float* const shared_zero = shared_total + WARPS * ROW_TILES * 4;
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        total[n] = sum_over_tokens(total[n]);
        if constexpr (WEIGHTS && !HALF_PRODUCTS) total_zero[n] = sum_over_tokens(total_zero[n]);
        if constexpr (VALUE_HIGH_NORM) total_high[n] = sum_over_tokens(total_high[n]);
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
        float* const row = (float*)(shared + warp * WARP_BYTES) + (4 * n + t) * SUM_STRIDE;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const int at = tile < TILES_0 ? 16 * tile : VALUE_WIDTH_0 + 16 * (tile - TILES_0);
            row[at + g] = sums[n][tile][0] * share;
            row[at + g + 8] = sums[n][tile][1] * share;
        }
#pragma unroll
        for (int i = 0; i < VALUE_ZEROS / 8; i++) row[VALUE_WIDTH + 8 * i + g] = zero_sums[n][i] * share;
        if constexpr (HALF_PRODUCTS) row[VALUE_WIDTH + g] = total_zero[n] * share;  // of group g
        if constexpr (VALUE_HIGH_NORM) row[VALUE_WIDTH + g] = (g == 0 ? total_high[n] : total_zero[n]) * share;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * SUM_WIDTH; i += WARPS * 32) {
        const int row = i / SUM_WIDTH, code_lane = i % SUM_WIDTH;
        const bool padding = code_lane < VALUE_WIDTH_0 ? code_lane >= VALUE_LANES_0
                                                   : code_lane >= VALUE_WIDTH_0 + SUM_LANES_1 && code_lane < VALUE_WIDTH;
        float sum = 0.0f;
        if (!padding) {
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += ((const float*)(shared + w * WARP_BYTES))[row * SUM_STRIDE + code_lane];
            if constexpr (HALF_PRODUCTS) {
                const int zero_at = row * SUM_STRIDE + VALUE_WIDTH + code_lane / (VALUE_LANES_0 / VALUE_PARTS);
#pragma unroll
                for (int w = 0; w < WARPS; w++) sum += ((const float*)(shared + w * WARP_BYTES))[zero_at];
            }
            if constexpr (VALUE_HIGH_NORM) {  // their zero points are weighted by other sums, so they are added here
                const int zero_at = row * SUM_STRIDE + VALUE_WIDTH + (code_lane >= VALUE_LANES_1);
                float by = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) by += ((const float*)(shared + w * WARP_BYTES))[zero_at];
                const float scale = ((const float*)pages_of(args.value_scale, batch, head, 0))[code_lane];
                sum = fmaf(sum, scale, by * ((const float*)pages_of(args.value_zero, batch, head, 0))[code_lane]);
            }
        }
        if (code_lane < VALUE_WIDTH && args.channel_lanes)
            ((float*)shared)[row * SUM_STRIDE + code_lane] = sum;  // where the first warp's was, which is no longer needed
        else if (code_lane < VALUE_WIDTH)
            args.out_acc[(out_row + row) * VALUE_WIDTH + code_lane] = sum;
        else
            args.out_zero[(out_row + row) * VALUE_ZEROS + code_lane - VALUE_WIDTH] = sum;
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
        if (WEIGHTS && !VALUE_ZEROS && !VALUE_HIGH_NORM && args.out_zero) args.out_zero[out_row + row] = block_zero;
    }
    if (args.channel_lanes) {
        __syncthreads();
        for (int i = threadIdx.x; i < rows * args.channels; i += WARPS * 32) {
            const int row = i / args.channels, channel = i % args.channels;
            float sum = 0.0f;
#pragma unroll 2
            for (int k = 0; k < args.lanes_per_channel; k++) {
                const int at = k * args.channels + channel;
                const float lane_sum = ((const float*)shared)[row * SUM_STRIDE + args.channel_lanes[at]];
                sum = fmaf(lane_sum, args.channel_weights[at], sum);
            }
            args.out_acc[(out_row + row) * args.channels + channel] = sum;
        }
    }
}
