// Products in float16, included by attention.cu with HALF_PRODUCTS: for keys whose scales differ between the tokens of a
// page (KEY_PARTS groups of them) and values whose scales differ between the channels of a token (VALUE_PARTS groups).
//
// A query in two int8 parts has to be split anew wherever scales change; in float16 one multiplication of two numbers at
// a time folds a part's scales into it. Codes need no conversion either: what an AND leaves of a 32-bit word, codes of
// two channels (bytes 0 and 2, or after a shift 1 and 3) where a float16 has its mantissa, are two subnormal numbers,
// code * 2 ** (place - 24), and tensor cores multiply those exactly.
//
// Columns 2 t and 2 t + 1 of a tile of scores are head t with the query times scales, rounded, and what rounding left
// of these and of the query.
// Zero points are the left operand of one more product a page: with the query for keys, with the probabilities for
// values, where a row of ones makes the sum of probabilities besides. Numbers of four channels, or tokens, that follow
// each other are in the order 0, 2, 1, 3, as the codes' bytes are.

#ifdef __CUDACC__
// c += a * b in float16, accumulated in float32: a 16 x 16, b 16 x 8
DEVICE void mma_half(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

DEVICE unsigned multiply_halves(unsigned x, unsigned y) {
    unsigned z;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

DEVICE unsigned multiply_add_halves(unsigned x, unsigned y, unsigned z) {  // x * y + z
    unsigned w;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(x), "r"(y), "r"(z));
    return w;
}

DEVICE unsigned to_halves(float x, float y) {  // x in the lower half
    unsigned z;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(z) : "f"(y), "f"(x));
    return z;
}
#endif

constexpr int PART_SLICES = SLICES / KEY_PARTS, PART_TILES = TILES / VALUE_PARTS;
constexpr int HALF_STRIDE = 2 * PAGE + 16;  // of a row of probabilities, one a head
constexpr int QUERY_ROW = 2 * KEY_WIDTH, QUERY_ROWS = 4 * ROW_TILES;
constexpr int REST_AT = FOLDED_AT + QUERY_ROWS * QUERY_ROW;  // what float16 leaves of the query
constexpr float P_LARGEST = 64.0f, LOG2_P_LARGEST = 6.0f;    // subnormal numbers begin far below
constexpr float QUERY_LARGEST = 16.0f;                       // to twice that
constexpr bool EXACT_QUERY = QUERY_TYPE != 2;                // 16 bits as the model has them fit, but for tiny numbers
constexpr float CODE_UNIT = 16777216.0f;                     // 2 ** 24
static_assert(SLICES % KEY_PARTS == 0 && KEY_PARTS <= 8, "a group of tokens is made of slices");
static_assert(TILES % VALUE_PARTS == 0 && VALUE_PARTS <= 8, "a group of channels is made of tiles");
static_assert(KEY_LANES_0 % 16 == 0 && !KEY_LANES_1 && !VALUE_LANES_1, "one plane");
static_assert(KEY_SCALE == 1 && VALUE_TOKEN == 1 && KEY_GROUPS, "scales are float16");
static_assert(QUERY_ROWS * HALF_STRIDE <= P_BYTES, "probabilities do not fit");

DEVICE unsigned lower_halves(unsigned x, unsigned y) { return __byte_perm(x, y, 0x5410); }
DEVICE unsigned upper_halves(unsigned x, unsigned y) { return __byte_perm(x, y, 0x7632); }
DEVICE uint2 in_order(unsigned x, unsigned y) { return make_uint2(lower_halves(x, y), upper_halves(x, y)); }

DEVICE constexpr int place_of(int bits, int slice) { return bits * (slice / (PAGE * bits / 128)); }

// Waits for the query; the block's rows of it go to shared memory, twice: rounded to float16 and what is left then. The
// largest number of a row is between QUERY_LARGEST and twice that; what it was divided by is at FACTOR_AT.
DEVICE void load_half_query(const Arguments& args, long long unit, int first_row) {
    constexpr int SIZE = QUERY_TYPE == 2 ? 4 : 2, SHARE = KEY_WIDTH / 32;
    const int lane = threadIdx.x % 32, held = min(args.rows - first_row, QUERY_ROWS);
    wait_for_query();
    for (int row = threadIdx.x / 32; row < QUERY_ROWS; row += WARPS) {
        const Byte* const from = args.query + (unit * args.rows + first_row + row) * args.query_width * SIZE;
        float x[SHARE], most = 1e-30f;
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            const int channel = 32 * i + lane;
            x[i] = row < held && channel < args.query_width ? load_number<QUERY_TYPE>(from, channel) : 0.0f;
            most = fmaxf(most, fabsf(x[i]));
        }
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
        const unsigned exponent = __float_as_uint(most) & 0x7f800000u;  // a power of two, and one over it
        const float step = __uint_as_float(exponent) * (1.0f / QUERY_LARGEST);
        const float steps = __uint_as_float(0x7f000000u - exponent) * QUERY_LARGEST;
        unsigned short* const whole = (unsigned short*)(shared + FOLDED_AT + row * QUERY_ROW);
        unsigned short* const rest = (unsigned short*)(shared + REST_AT + row * QUERY_ROW);
#pragma unroll
        for (int i = 0; i < SHARE; i++) {
            const int at = 32 * i + (lane & ~3) + (lane & 1) * 2 + (lane >> 1 & 1);
            const unsigned rounded = to_halves(x[i] * steps, 0.0f);
            whole[at] = (unsigned short)rounded;
            rest[at] = (unsigned short)to_halves(fmaf(x[i], steps, -halves_to_floats(rounded).x), 0.0f);
        }
        if (lane == 0) ((float*)(shared + FACTOR_AT))[row] = step * args.scaling;
    }
    __syncthreads();
}

// Adds the scores of 16 * QUADS channels from number `first` on, of which lane t has 4 * QUADS; the last may only pad, without
// scales and zero points in memory. In shared memory, where the lane's channels are:
// `codes` in row 2 g of the first tile of rows, `scales` in the first group's row, `zeros` in that of group g, `query` in
// head g / 2's row. `points`: group g's zero points times the query of head t.
template <int QUADS>
DEVICE void add_channels(int first, unsigned codes, unsigned scales, unsigned zeros, unsigned query, int lane,
                         float (&scores)[ROW_TILES][SLICES][4], float (&points)[ROW_TILES][4]) {
    constexpr int ROW_TILE = PAGE * KEY_BITS_0 / 128;
    const unsigned odd = lane & 4 ? 0xffffffffu : 0;
    const bool pads = first + 16 * QUADS > SCALE_WIDTH && first + lane % 4 * 4 * QUADS >= SCALE_WIDTH;
    uint2 q[ROW_TILES][QUADS], rest[ROW_TILES][QUADS];
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
#pragma unroll
        for (int i = 0; i < QUADS; i += 2) {
            const uint4 x = *(const uint4*)(shared + query + 4 * n * QUERY_ROW + 8 * i);
            q[n][i] = make_uint2(x.x, x.y), q[n][i + 1] = make_uint2(x.z, x.w);
            const uint4 y = *(const uint4*)(shared + query + REST_AT - FOLDED_AT + 4 * n * QUERY_ROW + 8 * i);
            rest[n][i] = make_uint2(y.x & odd, y.y & odd), rest[n][i + 1] = make_uint2(y.z & odd, y.w & odd);
        }
    }
#pragma unroll
    for (int i = 0; i < QUADS; i += 2) {
        uint4 z = {0, 0, 0, 0};
        if (lane / 4 < KEY_PARTS && !pads) z = *(const uint4*)(shared + zeros + 8 * i);
        const uint2 first = in_order(z.x, z.y), second = in_order(z.z, z.w);
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            const uint2 x = odd ? rest[n][i] : q[n][i], y = odd ? rest[n][i + 1] : q[n][i + 1];
            mma_half(points[n], first.x, 0, first.y, 0, x.x, x.y);
            mma_half(points[n], second.x, 0, second.y, 0, y.x, y.y);
        }
    }
#pragma unroll
    for (int part = 0; part < KEY_PARTS; part++) {
        uint2 b[ROW_TILES][QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; i += 2) {
            uint4 s = {0, 0, 0, 0};
            if (!pads) s = *(const uint4*)(shared + scales + part * 2 * SCALE_WIDTH + 8 * i);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint2 scale = j ? in_order(s.z, s.w) : in_order(s.x, s.y);
                auto folded = [&](unsigned x, unsigned more, unsigned y) {
                    const unsigned rounded = multiply_halves(x, y);
                    const unsigned z = multiply_add_halves(x, y, (rounded ^ 0x80008000u) & odd);
                    return EXACT_QUERY ? z : multiply_add_halves(more, y, z);
                };
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++)
                    b[n][i + j] = make_uint2(folded(q[n][i + j].x, rest[n][i + j].x, scale.x),
                                             folded(q[n][i + j].y, rest[n][i + j].y, scale.y));
            }
        }
#pragma unroll
        for (int j = 0; j < PART_SLICES; j++) {
            const int slice = part * PART_SLICES + j;
            const unsigned mask = (unsigned)(plane_mask(KEY_BITS_0) & 0x00ff00ff) << place_of(KEY_BITS_0, slice);
            const Byte* const row = shared + codes + 16 * (slice % ROW_TILE) * KEY_LANES_0;
            unsigned word[2][QUADS];  // of tokens 2 g and 2 g + 1
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if constexpr (QUADS == 4) {
                    const uint4 x = *(const uint4*)(row + k * KEY_LANES_0);
                    word[k][0] = x.x, word[k][1] = x.y, word[k][2] = x.z, word[k][3] = x.w;
                } else {
                    const uint2 x = *(const uint2*)(row + k * KEY_LANES_0);
                    word[k][0] = x.x, word[k][1] = x.y;
                }
            }
#pragma unroll
            for (int i = 0; i < QUADS; i++) {
                const unsigned a0 = word[0][i] & mask, a1 = word[1][i] & mask;
                const unsigned a2 = (word[0][i] >> 8) & mask, a3 = (word[1][i] >> 8) & mask;
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++) mma_half(scores[n][slice], a0, a1, a2, a3, b[n][i].x, b[n][i].y);
            }
        }
    }
}

// The scores of a page whose stage of shared memory is at `keys`, in units of the codes' places, and of group p the zero
// points' part for head t, both without the weight of the row.
DEVICE void half_scores(unsigned keys, int lane, float (&scores)[ROW_TILES][SLICES][4],
                        float (&zeros)[ROW_TILES][KEY_PARTS]) {
    constexpr int WIDE = KEY_WIDTH / 64;
    const int g = lane / 4, t = lane % 4;
    const unsigned codes = kept(keys + 2 * g * KEY_LANES_0 + 16 * t), query = FOLDED_AT + g / 2 * QUERY_ROW + 32 * t;
    const unsigned scales = kept(keys + QUERY_AT + 32 * t), points_at = scales + GROUP_ROW + g * 2 * SCALE_WIDTH;
    float points[ROW_TILES][4] = {};
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        add_channels<4>(64 * i, codes + 64 * i, scales + 128 * i, points_at + 128 * i, query + 128 * i, lane, scores, points);
    if constexpr (KEY_WIDTH % 64)
        add_channels<2>(64 * WIDE, codes + 64 * WIDE - 8 * t, scales + 128 * WIDE - 16 * t,
                        points_at + 128 * WIDE - 16 * t, query + 128 * WIDE - 16 * t, lane, scores, points);
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        const float both = points[n][0] + points[n][1];
#pragma unroll
        for (int part = 0; part < KEY_PARTS; part++) zeros[n][part] = __shfl_sync(0xffffffffu, both, 4 * part + t);
    }
}

// Adds a page's values, whose stage is at `values`: sums[n][tile] as add_values does, total[n] the probabilities of head
// t (in lanes with g = 0), and zeros[n] those times the zero points of group g. `p`: of slice i of head g / 2 tokens
// 4 t and 4 t + 2, then 4 t + 1 and 4 t + 3, divided by 2 ** place. `factor` as in the kernel.
DEVICE void add_half_values(unsigned values, const unsigned (&p)[ROW_TILES][2 * SLICES], int lane,
                            const float (&factor)[ROW_TILES], float (&total)[ROW_TILES], float (&zeros)[ROW_TILES],
                            float (*sums)[TILES][2]) {
    constexpr int ROW = PAGE * VALUE_BITS_0 / 8, WORDS = ROW / 16;
    const int g = lane / 4, t = lane % 4, matrix = lane / 8;
    const unsigned scales = kept(values + TOKENS_AT + 8 * t), points_at = scales + VALUE_PARTS * 2 * PAGE + g * 2 * PAGE;
    float weighted[ROW_TILES][4] = {};
    const unsigned ones = g == 0 ? 0x3c003c00u : 0;
#pragma unroll
    for (int slice = SLICES - 1; slice >= 0; slice--) {  // from the highest place down
        uint2 z = {0, 0};
        if (g < VALUE_PARTS) z = *(const uint2*)(shared + points_at + 32 * slice);
        z = in_order(z.x, z.y);
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            mma_half(weighted[n], z.x, ones, z.y, ones, p[n][2 * slice], p[n][2 * slice + 1]);
            if (slice % WORDS == 0 && slice) {
                weighted[n][0] *= (float)(1 << VALUE_BITS_0), weighted[n][2] *= (float)(1 << VALUE_BITS_0);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        zeros[n] = fmaf(weighted[n][0], factor[n], zeros[n]);
        total[n] = fmaf(weighted[n][2], factor[n], total[n]);
    }

    const unsigned row_at =
        kept(values + 16 * swizzled(ROW == 16 ? lane : (lane % 8 + matrix % 2 * 8) * WORDS + matrix / 2));
    unsigned words[2 * WORDS < 4 ? 4 : 2 * WORDS];  // word i of row g: 2 i, of row g + 8: 2 i + 1
#pragma unroll
    for (int part = 0; part < VALUE_PARTS; part++) {
        unsigned b[ROW_TILES][SLICES][2];
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {
            const uint2 s = *(const uint2*)(shared + scales + part * 2 * PAGE + 32 * slice), scale = in_order(s.x, s.y);
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
                b[n][slice][0] = multiply_halves(p[n][2 * slice], scale.x);
                b[n][slice][1] = multiply_halves(p[n][2 * slice + 1], scale.y);
            }
        }
#pragma unroll
        for (int i = 0; i < PART_TILES; i++) {
            const int tile = part * PART_TILES + i;
            const Byte* const row = shared + row_at + 16 * tile * ROW;
            if constexpr (ROW == 16) {
                if (tile % 2 == 0)
                    load_matrices(words, row);
                else
                    words[0] = words[2], words[1] = words[3];
            } else {
#pragma unroll
                for (int j = 0; j < WORDS; j += 2) load_matrices(words + 2 * j, row + 16 * j);
            }
            float products[ROW_TILES][4] = {};
#pragma unroll
            for (int slice = 0; slice < SLICES; slice++) {
                const unsigned mask = (unsigned)(plane_mask(VALUE_BITS_0) & 0x00ff00ff) << place_of(VALUE_BITS_0, slice);
                const unsigned *word = words + 2 * (slice % WORDS);
                const unsigned a0 = word[0] & mask, a1 = word[1] & mask;
                const unsigned a2 = (word[0] >> 8) & mask, a3 = (word[1] >> 8) & mask;
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++)
                    mma_half(products[n], a0, a1, a2, a3, b[n][slice][0], b[n][slice][1]);
            }
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
                const float unit = factor[n] * CODE_UNIT;
                sums[n][tile][0] = fmaf(products[n][0], unit, sums[n][tile][0]);
                sums[n][tile][1] = fmaf(products[n][2], unit, sums[n][tile][1]);
            }
        }
    }
}
