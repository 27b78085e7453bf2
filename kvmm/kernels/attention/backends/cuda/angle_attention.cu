// Split kernel of decode attention over keys of angle codes and values in the model's dtype, in one pass. Compiled at run
// time; see angle_kernel.py.
//
// No key is rebuilt. A block multiplies its query rows by all codewords first, into a table in shared memory: four rows
// of a codeword are 16 bytes. A token's logit is then a sum of table entries times lengths, one for each group of
// channels. One warp takes whole pages of one sequence and KV head, one after the other; a lane has tokens lane + 32 i of
// a page, whose codes and lengths it reads a page ahead into registers, as they are packed.
//
// Where keys are recursive angles (ANGLES), there is one length, and the product with a query follows the recursion from
// the last channel to the first: what is found so far times an angle's sine, plus the query's channel times its cosine.
// The table in shared memory is that of cosines and sines. A page's codes come there asynchronously, while the page before
// is multiplied by its probabilities.
//
// Values come asynchronously, STAGES tiles of 16 tokens ahead. They are the left operand of mma.m16n8k16, channels by
// tokens, which ldmatrix transposes. Columns 2 t and 2 t + 1 of the right operand are the probabilities of query row t,
// rounded to the model's dtype, and what rounding left of them.
//
// Logits are in units of log 2.

#include "variant.cuh"  // what is known when the kernel is compiled, and its Arguments; see angle_kernel.py

#include "device.cuh"

constexpr int THREADS = WARPS * 32, ROWS = 4 * ROW_TILES;
constexpr int OWN = PAGE / 32;  // tokens of a page that a lane has
constexpr int WORDS = ceil_to(GROUPS, 4) / 4;  // of a byte for each group
constexpr int CODEWORDS = 1 << INDEX_BITS, GROUP_DIM = RESIDUAL_KEY_DIM / GROUPS;
constexpr int COLUMNS = ANGLES ? ANGLES : GROUPS;  // codes of a token
static_assert(!ANGLES || GROUPS == 1, "recursive angles have one length");
constexpr int VALUE_DIM = RESIDUAL_VALUE_DIM, TILES = VALUE_DIM / 16;

// tiles of values in shared memory: chunks of 16 bytes in such an order that 8 rows' are in different banks
constexpr int CHUNKS = VALUE_DIM / 8;
constexpr bool SWIZZLED = CHUNKS % 8 == 0;
constexpr int ROW_BYTES = 16 * (SWIZZLED ? CHUNKS : CHUNKS | 1), TILE_BYTES = 16 * ROW_BYTES;
constexpr int TILES_A_PAGE = PAGE / 16;

// a warp's part of the shared memory: tiles of values, probabilities of 32 tokens; at the end its sums
constexpr int RESIDUAL_AT_ONCE = 32;
constexpr int P_AT = STAGES * TILE_BYTES, P_BYTES = ROW_TILES * 4 * (RESIDUAL_AT_ONCE + 8) * 4;
constexpr int CODES_AT = P_AT + P_BYTES, CODES_BYTES = PAGE * INDEX_BITS / 8 * ANGLES;  // of recursive angles
constexpr int SUM_STRIDE = VALUE_DIM + 8;
// behind the warps' parts: what they found, the query and the table
constexpr int FOUND_AT = WARPS * WARP_BYTES, QUERY_AT = FOUND_AT + 2 * WARPS * ROWS * 4;
constexpr int TABLE_AT = QUERY_AT + ROWS * RESIDUAL_KEY_DIM * 4;
constexpr int TABLE_BYTES = ANGLES ? 16 * RESIDUAL_KEY_DIM : 16 * GROUPS * CODEWORDS;  // of four rows
constexpr int LEVELS_AT = TABLE_AT + ROW_TILES * TABLE_BYTES;
static_assert(512 * ROW_TILES <= P_BYTES && CODES_AT + CODES_BYTES + (ANGLES ? 16 : 0) <= WARP_BYTES,
              "a warp's part is too small");
static_assert(CODES_BYTES % 16 == 0 && (!ANGLES || STAGES < TILES_A_PAGE), "codes come with tiles, 16 bytes at a time");
static_assert(ROWS * SUM_STRIDE * 4 <= WARP_BYTES, "a warp's part is too small");

#include "dense_columns.cuh"

// A byte for each group, four a word, from memory that is aligned to the largest power of two in GROUPS, at most 8.
DEVICE void load_bytes(const Byte* from, unsigned (&words)[WORDS]) {
    if constexpr (GROUPS % 8 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 2) {
            const uint2 x = *(const uint2*)(from + 4 * i);
            words[i] = x.x, words[i + 1] = x.y;
        }
    } else {
        constexpr int AT_ONCE = GROUPS % 4 == 0 ? 4 : GROUPS % 2 == 0 ? 2 : 1;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            unsigned word = 0;
#pragma unroll
            for (int j = 0; j < 4 && 4 * i + j < GROUPS; j += AT_ONCE) {
                const Byte* const bytes = from + 4 * i + j;
                const unsigned x = AT_ONCE == 4   ? *(const unsigned*)bytes
                                   : AT_ONCE == 2 ? *(const unsigned short*)bytes
                                                  : *bytes;
                word |= x << 8 * j;
            }
            words[i] = word;
        }
    }
}

// Planes of powers of two, the widest first: rows of a plane have the codes of PAGE / ROWS tokens in their bytes' bits.
DEVICE constexpr int rows_of_plane(int width) { return PAGE * width / 8; }
DEVICE constexpr int rows_before(int width) { return PAGE * (INDEX_BITS & ~(2 * width - 1)) / 8; }  // of wider planes
DEVICE constexpr int loads_of_plane(int width) { return rows_of_plane(width) < 32 ? 1 : rows_of_plane(width) / 32; }
DEVICE constexpr bool plane_of(int width) { return INDEX_BITS & width; }

// What a lane reads of a page of keys.
struct Keys {
    unsigned codes_8[plane_of(8) ? loads_of_plane(8) : 1][WORDS];
    unsigned codes_4[plane_of(4) ? loads_of_plane(4) : 1][WORDS];
    unsigned codes_2[plane_of(2) ? loads_of_plane(2) : 1][WORDS];
    unsigned codes_1[1][WORDS];
    unsigned lengths[OWN][WORDS];
    float bias[OWN];
    float scale;
    int group;
};

template <int WIDTH, int COUNT>
DEVICE void load_plane(const Byte* codes, int lane, unsigned (&words)[COUNT][WORDS]) {
    if constexpr (plane_of(WIDTH)) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int row = rows_of_plane(WIDTH) < 32 ? lane % rows_of_plane(WIDTH) : lane + 32 * i;
            load_bytes(codes + (rows_before(WIDTH) + row) * GROUPS, words[i]);
        }
    }
}

// Adds a plane's bits of the lane's token `i` to indices, four a word.
template <int WIDTH, int COUNT>
DEVICE void add_plane(const unsigned (&words)[COUNT][WORDS], int lane, int i, unsigned (&index)[WORDS]) {
    if constexpr (plane_of(WIDTH)) {
        constexpr int HELD = rows_of_plane(WIDTH);
        const int shift = WIDTH * (HELD < 32 ? (lane + 32 * i) / HELD : 32 * i / HELD);
#pragma unroll
        for (int k = 0; k < WORDS; k++) {
            const unsigned bits = words[i % COUNT][k] >> shift & ((1u << WIDTH) - 1) * 0x01010101u;
            index[k] = WIDTH == 8 ? bits : index[k] << WIDTH | bits;
        }
    }
}

DEVICE Keys load_keys(const Arguments& args, const Byte* codes, const Byte* lengths, const Byte* scales,
                      const float* bias, int page, int lane) {
    Keys x;
    codes += page * args.codes.page, lengths += page * args.radius.page;
    if constexpr (!ANGLES) {
        load_plane<8>(codes, lane, x.codes_8);
        load_plane<4>(codes, lane, x.codes_4);
        load_plane<2>(codes, lane, x.codes_2);
        load_plane<1>(codes, lane, x.codes_1);
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        load_bytes(lengths + (lane + 32 * i) * GROUPS, x.lengths[i]);
        x.bias[i] = BIAS ? bias[(long long)page * PAGE + lane + 32 * i] : 0.0f;
    }
    x.scale = load_number<KEY_SCALE>(scales + page * args.scale.page, 0);
    x.group = group_of(args.page_group, args.mean_groups, page);
    return x;
}

// The block's query rows, times the softmax scale, and their products with all codewords.
DEVICE void make_table(const Arguments& args, long long unit, int head, int first_row) {
    constexpr int SIZE = QUERY_TYPE == 2 ? 4 : 2;
    float* const query = (float*)(shared + QUERY_AT);
    const Byte* const rows = args.query + (unit * args.rows + first_row) * RESIDUAL_KEY_DIM * SIZE;
    for (int i = threadIdx.x; i < ROWS * RESIDUAL_KEY_DIM; i += THREADS) {
        const bool live = first_row + i / RESIDUAL_KEY_DIM < args.rows;
        query[i] = live ? load_number<QUERY_TYPE>(rows, i) * args.scaling : 0.0f;
    }
    __syncthreads();
    const float* const book = args.codebook + head * args.codebook_head;
#if ANGLES
    for (int i = threadIdx.x; i < ROW_TILES * RESIDUAL_KEY_DIM; i += THREADS) {  // four rows together
        const float* const x = query + i / RESIDUAL_KEY_DIM * 4 * RESIDUAL_KEY_DIM + i % RESIDUAL_KEY_DIM;
        const float4 four = {x[0], x[RESIDUAL_KEY_DIM], x[2 * RESIDUAL_KEY_DIM], x[3 * RESIDUAL_KEY_DIM]};
        *(float4*)(shared + TABLE_AT + 16 * i) = four;
    }
    for (int i = threadIdx.x; i < ANGLES * CODEWORDS; i += THREADS)
        *(float2*)(shared + LEVELS_AT + 8 * i) = *(const float2*)(book + 2 * i);
#else
    for (int i = threadIdx.x; i < GROUPS * CODEWORDS; i += THREADS) {
        const int group = i / CODEWORDS;
        const float* const word = book + group * args.codebook_group + i % CODEWORDS * GROUP_DIM;
        float sums[ROWS] = {};
#pragma unroll 4
        for (int c = 0; c < GROUP_DIM; c++) {
            const float x = word[c];
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r] = fmaf(query[r * RESIDUAL_KEY_DIM + group * GROUP_DIM + c], x, sums[r]);
        }
#pragma unroll
        for (int n = 0; n < ROW_TILES; n++) {
            float4 four = {sums[4 * n], sums[4 * n + 1], sums[4 * n + 2], sums[4 * n + 3]};
            *(float4*)(shared + TABLE_AT + n * TABLE_BYTES + 16 * i) = four;
        }
    }
#endif
    __syncthreads();
}

// The mean of a group of pages times the block's query rows.
DEVICE void load_mean(const Byte* mean, int lane, float (&offset)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float* const query = (const float*)(shared + QUERY_AT) + r * RESIDUAL_KEY_DIM;
        float sum = 0.0f;
        for (int c = lane; c < RESIDUAL_KEY_DIM; c += 32) sum = fmaf(query[c], load_number<KEY_MEAN>(mean, c), sum);
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        offset[r] = sum;
    }
}

// The largest of each row's numbers, one a lane.
DEVICE void largest_of_rows(float (&x)[ROWS]) {
#pragma unroll
    for (int n = 0; n < ROWS; n += 4) {  // lane t of four keeps row t
        const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
        const float a = fmaxf(odd ? x[n + 1] : x[n], __shfl_xor_sync(0xffffffffu, odd ? x[n] : x[n + 1], 1));
        const float b = fmaxf(odd ? x[n + 3] : x[n + 2], __shfl_xor_sync(0xffffffffu, odd ? x[n + 2] : x[n + 3], 1));
        float most = fmaxf(upper ? b : a, __shfl_xor_sync(0xffffffffu, upper ? a : b, 2));
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
#pragma unroll
        for (int r = 0; r < 4; r++) x[n + r] = __shfl_sync(0xffffffffu, most, r);
    }
}

#if ANGLES
// Words of codes of four columns in the rows that a lane has of a plane. Rows are not aligned: a word is part of the one
// at `aligned` and part of `above`, which becomes that.
template <int WIDTH, int COUNT>
DEVICE void load_angles(unsigned codes, int column, int lane, unsigned (&above)[COUNT], unsigned (&words)[COUNT][1]) {
    if constexpr (plane_of(WIDTH)) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int row = rows_of_plane(WIDTH) < 32 ? lane % rows_of_plane(WIDTH) : lane + 32 * i;
            const unsigned at = codes + (rows_before(WIDTH) + row) * ANGLES + column;
            const unsigned below = *(const unsigned*)(shared + (at & ~3u));
            words[i][0] = __byte_perm(below, above[i], 0x3210 + 0x1111 * (at & 3)), above[i] = below;
        }
    }
}

// Products of the lane's tokens with the query rows, without their lengths. `codes`: the page's in shared memory.
DEVICE void follow_angles(unsigned codes, int lane, float (&x)[OWN][ROWS]) {
    unsigned above_8[loads_of_plane(8)] = {}, above_4[loads_of_plane(4)] = {}, above_2[loads_of_plane(2)] = {}, above_1[1] = {};
    unsigned codes_8[loads_of_plane(8)][1], codes_4[loads_of_plane(4)][1], codes_2[loads_of_plane(2)][1], codes_1[1][1];
    constexpr int LAST = (ANGLES - 1) / 4 * 4;
    auto load = [&](int column) {
        load_angles<8>(codes, column, lane, above_8, codes_8);
        load_angles<4>(codes, column, lane, above_4, codes_4);
        load_angles<2>(codes, column, lane, above_2, codes_2);
        load_angles<1>(codes, column, lane, above_1, codes_1);
    };
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        const float4 four = *(const float4*)(shared + TABLE_AT + n * TABLE_BYTES + 16 * ANGLES);
#pragma unroll
        for (int i = 0; i < OWN; i++)
            x[i][4 * n] = four.x, x[i][4 * n + 1] = four.y, x[i][4 * n + 2] = four.z, x[i][4 * n + 3] = four.w;
    }
    load(LAST + 4);  // what is above the last columns; nothing of it is used that is not theirs
#pragma unroll 1
    for (int column = LAST; column >= 0; column -= 4) {
        load(column);
        unsigned index[OWN][1] = {};
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            add_plane<8>(codes_8, lane, i, index[i]);
            add_plane<4>(codes_4, lane, i, index[i]);
            add_plane<2>(codes_2, lane, i, index[i]);
            add_plane<1>(codes_1, lane, i, index[i]);
        }
#pragma unroll
        for (int k = 3; k >= 0; k--) {
            if (ANGLES % 4 && column + k >= ANGLES) continue;
            float2 level[OWN];
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const unsigned code = index[i][0] >> 8 * k & 255;
                level[i] = *(const float2*)(shared + LEVELS_AT + 8 * CODEWORDS * (column + k) + 8 * code);
            }
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
                const float4 four = *(const float4*)(shared + TABLE_AT + n * TABLE_BYTES + 16 * (column + k));
#pragma unroll
                for (int i = 0; i < OWN; i++) {
                    float* const y = x[i] + 4 * n;
                    y[0] = fmaf(level[i].y, y[0], four.x * level[i].x), y[1] = fmaf(level[i].y, y[1], four.y * level[i].x);
                    y[2] = fmaf(level[i].y, y[2], four.z * level[i].x), y[3] = fmaf(level[i].y, y[3], four.w * level[i].x);
                }
            }
        }
    }
}
#endif

DEVICE float of_row(const float* x, int t) { return t < 2 ? (t ? x[1] : x[0]) : t == 2 ? x[2] : x[3]; }

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) split_kernel(const Arguments args) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    // blocks of the same head and other rows follow each other: they share its values in the second-level cache
    const int row_blocks = (args.rows + ROWS - 1) / ROWS;
    const int split = blockIdx.x / row_blocks, first_row = blockIdx.x % row_blocks * ROWS;
    const int head = blockIdx.y, batch = blockIdx.z;
    // page number `index` of this warp: all warps of all splits take turns
    const int step = args.num_kv_splits * WARPS, begin = warp * args.num_kv_splits + split;
    const long long unit = (long long)batch * args.heads + head;
    const unsigned tiles = warp * WARP_BYTES, probabilities = tiles + P_AT;

    // Every lane has chunks lane + 32 i of a tile of values.
    const Byte* const values = pages_of(args.values, batch, head, lane);
    auto fetch_tile = [&](int page, int limit, int tile, int stage) {
        if (page < limit) {
            const Byte* const from = values + page * args.values.page + tile * (16 * VALUE_DIM * 2);
#pragma unroll
            for (int i = 0; i < CHUNKS / 2; i++) {
                const int chunk = lane + 32 * i, row = chunk / CHUNKS, column = chunk % CHUNKS;
                Byte* const to = shared + tiles + stage * TILE_BYTES + row * ROW_BYTES;
                fetch_16(to + 16 * (SWIZZLED ? column ^ (row & 7) : column), from + 512 * i);
            }
        }
        fetch_end();
    };
    const Byte* const codes = pages_of(args.codes, batch, head, 0);
    auto fetch_codes = [&](int page, int limit) {
        if (ANGLES && page < limit) {
            const Byte* const from = codes + page * args.codes.page + 16 * lane;
#pragma unroll 4
            for (int i = 0; i < CODES_BYTES; i += 512)
                if (i + 16 * lane < CODES_BYTES) fetch_16(shared + tiles + CODES_AT + 16 * lane + i, from + i);
        }
    };
    const int room = split >= args.num_kv_splits ? 0 : args.pages;
    // The first tiles are asked for before it is known whether their pages are in use: that they exist is enough.
    fetch_codes(begin, room);  // with the first tile
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++)
        fetch_tile(begin + stage / TILES_A_PAGE * step, room, stage % TILES_A_PAGE, stage);
    const Byte* const lengths = pages_of(args.radius, batch, head, 0);
    const Byte* const scales = pages_of(args.scale, batch, head, 0);
    const Byte* const means = pages_of(args.mean, batch, head, 0);
    const float* const bias = BIAS ? args.bias + batch * args.bias_batch : nullptr;
    Keys next = {};
    if (begin < room) next = load_keys(args, codes, lengths, scales, bias, begin, lane);
    const int pages = args.num_pages ? min(*args.num_pages, room) : room;
    launch_dependents();

#if RESIDUAL_TOKENS
    const int dense_part = split - args.residual_start;
    if (dense_part >= 0 && dense_part < args.num_residual_splits) add_dense(args, batch, head, first_row, dense_part);
    if (split >= args.num_kv_splits) return;  // a block for these columns alone
#endif
    make_table(args, unit, head, first_row);

    float top[ROWS], total[ROWS] = {}, offset[ROWS] = {}, sums[ROW_TILES][TILES][4] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = NO_TOKEN;
    int group = -1, stage = 0;
    // row `lane % 8` of matrix `lane / 8`: tokens 0 to 7 or 8 to 15 of a tile, and 8 of its 16 channels
    const int own_row = lane % 8 + lane / 16 * 8, own_chunk = lane / 8 % 2;

    for (int page = begin; page < pages; page += step) {
        if (next.group != group) {
            group = next.group;
            load_mean(means + group * args.mean.page, lane, offset);
        }
        float p[OWN][ROWS];
        const float scale = next.scale * args.length_step;
#if ANGLES
        fetch_wait<STAGES - 1>();  // the first page's codes; others came with tiles that have been multiplied
        follow_angles(tiles + CODES_AT, lane, p);
        __syncwarp();
        fetch_codes(page + step, pages);  // with the next tile
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const float length = scale * (float)(next.lengths[i][0] & 255);
#pragma unroll
            for (int r = 0; r < ROWS; r++) p[i][r] = fmaf(p[i][r], length, fmaf(next.bias[i], LOG2_E, offset[r]));
        }
#else
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            unsigned index[WORDS] = {};
            add_plane<8>(next.codes_8, lane, i, index);
            add_plane<4>(next.codes_4, lane, i, index);
            add_plane<2>(next.codes_2, lane, i, index);
            add_plane<1>(next.codes_1, lane, i, index);
            float x[ROWS] = {};
#pragma unroll
            for (int j = 0; j < GROUPS; j++) {
                const unsigned place = 8 * (j % 4);
                const unsigned entry = (place < 4 ? index[j / 4] << 4 : index[j / 4] >> (place - 4)) & 0xff0;
                const float length = (float)(next.lengths[i][j / 4] >> place & 255);
#pragma unroll
                for (int n = 0; n < ROW_TILES; n++) {
                    const float4 four =
                        *(const float4*)(shared + TABLE_AT + n * TABLE_BYTES + 16 * CODEWORDS * j + entry);
                    x[4 * n] = fmaf(length, four.x, x[4 * n]), x[4 * n + 1] = fmaf(length, four.y, x[4 * n + 1]);
                    x[4 * n + 2] = fmaf(length, four.z, x[4 * n + 2]), x[4 * n + 3] = fmaf(length, four.w, x[4 * n + 3]);
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) p[i][r] = fmaf(x[r], scale, fmaf(next.bias[i], LOG2_E, offset[r]));
        }
#endif
        if (page + step < pages) next = load_keys(args, codes, lengths, scales, bias, page + step, lane);

        float largest[ROWS], decay[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            largest[r] = p[0][r];
#pragma unroll
            for (int i = 1; i < OWN; i++) largest[r] = fmaxf(largest[r], p[i][r]);
        }
        largest_of_rows(largest);
        bool grows = false;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float new_top = fmaxf(top[r], largest[r]);
            decay[r] = exp2_approx(top[r] - new_top), grows |= new_top > top[r], top[r] = new_top;
        }
        if (grows) {  // the same in all lanes
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
                const float factor = of_row(decay + 4 * n, t);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) sums[n][tile][i] *= factor;
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) total[r] *= decay[r];
        }
#pragma unroll
        for (int i = 0; i < OWN; i++) {
#pragma unroll
            for (int n = 0; n < ROW_TILES; n++) {
                unsigned words[4];
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    const float x = exp2_approx(p[i][4 * n + r] - top[4 * n + r]);
                    total[4 * n + r] += x;
                    words[r] = to_dense(x, x - from_dense(to_dense(x, 0.0f)).x);
                }
                *(uint4*)(shared + probabilities + 512 * n + 16 * lane) = {words[0], words[1], words[2], words[3]};
            }
            unsigned b[ROW_TILES][4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                fetch_wait<STAGES - 1>();
                if (half == 0) {
#pragma unroll
                    for (int n = 0; n < ROW_TILES; n++) load_transposed(b[n], shared + probabilities + 512 * n + 16 * lane);
                }
                const unsigned row = tiles + stage * TILE_BYTES + own_row * ROW_BYTES;
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    const int chunk = 2 * tile + own_chunk;
                    unsigned a[4];
                    load_transposed(a, shared + row + 16 * (SWIZZLED ? chunk ^ (own_row & 7) : chunk));
#pragma unroll
                    for (int n = 0; n < ROW_TILES; n++)
                        mma_dense(sums[n][tile], a[0], a[1], a[2], a[3], b[n][2 * half], b[n][2 * half + 1]);
                }
                __syncwarp();
                const int coming = 2 * i + half + STAGES;
                fetch_tile(page + coming / TILES_A_PAGE * step, pages, coming % TILES_A_PAGE, stage);
                stage = stage == STAGES - 1 ? 0 : stage + 1;
            }
        }
    }
    fetch_wait<0>();

    // the block's warps become one split
    float* const shared_top = (float*)(shared + FOUND_AT);
    float* const shared_total = shared_top + WARPS * ROWS;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) total[r] += __shfl_xor_sync(0xffffffffu, total[r], lanes);
        if (lane == r) shared_top[warp * ROWS + r] = top[r], shared_total[warp * ROWS + r] = total[r];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < ROW_TILES; n++) {
        float block_top = NO_TOKEN;
#pragma unroll
        for (int i = 0; i < WARPS; i++) block_top = fmaxf(block_top, shared_top[i * ROWS + 4 * n + t]);
        const float share = exp2_approx(of_row(top + 4 * n, t) - block_top);
        float* const mine = (float*)(shared + tiles) + (4 * n + t) * SUM_STRIDE + g;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            mine[16 * tile] = (sums[n][tile][0] + sums[n][tile][1]) * share;
            mine[16 * tile + 8] = (sums[n][tile][2] + sums[n][tile][3]) * share;
        }
    }
    const int rows = min(args.rows - first_row, ROWS);
    const long long out_row = (unit * args.num_kv_splits + split) * args.rows + first_row;
    if (threadIdx.x < rows) {
        float most = NO_TOKEN, sum = 0.0f;
        for (int i = 0; i < WARPS; i++) most = fmaxf(most, shared_top[i * ROWS + threadIdx.x]);
        for (int i = 0; i < WARPS; i++)
            sum = fmaf(shared_total[i * ROWS + threadIdx.x], exp2_approx(shared_top[i * ROWS + threadIdx.x] - most), sum);
        args.out_m[out_row + threadIdx.x] = sum > 0.0f ? most : -infinity();
        args.out_l[out_row + threadIdx.x] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * VALUE_DIM; i += THREADS) {
        const int r = i / VALUE_DIM, c = i % VALUE_DIM;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += ((const float*)(shared + w * WARP_BYTES))[r * SUM_STRIDE + c];
        args.out_acc[out_row * VALUE_DIM + i] = sum;
    }
}
