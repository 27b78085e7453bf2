// Residual tokens, in the model's dtype, for a kernel that reads pages of codes besides, and with RESIDUAL_KEPT the
// tokens of these pages that are kept in that dtype (PAGE, args.kept, args.kept_slot). Wants WARPS, ROW_TILES, FOUND_AT,
// P_AT and P_BYTES, a warp's room for probabilities in its WARP_BYTES, and RESIDUAL_AT_ONCE, channels of which are joined there at a time.

#pragma once

constexpr int RESIDUAL_STRIDE = RESIDUAL_AT_ONCE + 8, RESIDUAL_WIDTH = ceil_to(RESIDUAL_VALUE_DIM, 32);
static_assert(4 * ROW_TILES * RESIDUAL_STRIDE * 4 <= P_BYTES, "sums of residual tokens do not fit");

// --- columns in the model's dtype: probabilities in two parts, the low ones in the rows that queries leave idle

DEVICE uint4 load_16(const Byte* from, bool there) {
    uint4 x = {0, 0, 0, 0};
    if (there) x = *(const uint4*)from;
    return x;
}

DEVICE float2 from_dense(unsigned halves) {
    if constexpr (RESIDUAL == 3) return make_float2(__uint_as_float(halves << 16), __uint_as_float(halves & 0xffff0000u));
    return halves_to_floats(halves);
}

// Split `part` of the residual tokens for the block's rows. A warp takes 16 columns at a time. Lane 4 g + t has row g of
// the query, columns 8 j + g of the keys and 8 j + 2 t, 8 j + 2 t + 1 of the values (j = 0, 1); of every 64 bytes of a
// key those at 16 t, of every 128 bytes of a value those at 16 g, and of the sums channels 16 t to 16 t + 15 of 64.
DEVICE void add_dense(const Arguments& args, int batch, int head, int first_row, int part) {
    constexpr int PIECES = ceil_to(RESIDUAL_KEY_DIM, 32) / 32, CHUNKS = ceil_to(RESIDUAL_VALUE_DIM, 64) / 64, ROWS = 4 * ROW_TILES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const long long unit = (long long)batch * args.heads + head;
    const int columns = args.residual_length ? min(*args.residual_length, args.residual_tokens) : args.residual_tokens;
    const Byte* const keys = pages_of(args.residual_keys, batch, head, t);
    const Byte* const values = pages_of(args.residual_values, batch, head, g);
    const float* const bias = args.residual_bias ? args.residual_bias + batch * args.residual_bias_batch : nullptr;

    uint4 query[PIECES];
    const Byte* const row = args.residual_query + (unit * args.rows + first_row + g) * RESIDUAL_KEY_DIM * 2 + 16 * t;
    const bool live = g < ROWS && first_row + g < args.rows;
#pragma unroll
    for (int i = 0; i < PIECES; i++) query[i] = load_16(row + 64 * i, live && 32 * i + 8 * t < RESIDUAL_KEY_DIM);

#if RESIDUAL_KEPT
    const Byte* const kept_keys = pages_of(args.kept_keys, batch, head, t);
    const Byte* const kept_values = pages_of(args.kept_values, batch, head, g);
    const int* const kept_slots = (const int*)pages_of(args.kept_slot, batch, head, 0);
    const float* const page_bias = args.bias ? args.bias + batch * args.bias_batch : nullptr;
    const int slots_in_use = PAGE * (args.num_pages ? min(*args.num_pages, args.pages) : args.pages);
    const int kept_first = ceil_to(columns, 16), last = kept_first + args.kept;
#else
    const int last = columns;
#endif

    float top = NO_TOKEN, total = 0.0f, sums[8 * CHUNKS][2] = {};
    for (int tile = 16 * (part * WARPS + warp); tile < last; tile += 16 * WARPS * args.num_residual_splits) {
        const Byte *tile_keys = keys, *tile_values = values;
        auto key_bytes = args.residual_keys.page, value_bytes = args.residual_values.page;
        int first = tile, end = columns;
#if RESIDUAL_KEPT
        const bool of_kept = tile >= kept_first;
        if (of_kept) {
            tile_keys = kept_keys, tile_values = kept_values, first = tile - kept_first, end = args.kept;
            key_bytes = args.kept_keys.page, value_bytes = args.kept_values.page;
        }
#endif
#pragma unroll
        for (int i = 0; i < RESIDUAL_VALUE_DIM * 2; i += 256) {  // two lanes a column, a cache line each
            const int column = first + lane / 2, byte = i + lane % 2 * 128;
            if (column < end && byte < RESIDUAL_VALUE_DIM * 2)
                prefetch(tile_values - 16 * g + column * value_bytes + byte);
        }
        float x[2][4] = {};
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int column = first + 8 * j + g;
                const bool there = column < end && 32 * i + 8 * t < RESIDUAL_KEY_DIM;
                const uint4 key = load_16(tile_keys + column * key_bytes + 64 * i, there);
                mma_dense(x[j], query[i].x, 0, query[i].y, 0, key.x, key.y);
                mma_dense(x[j], query[i].z, 0, query[i].w, 0, key.z, key.w);
            }
        }
        float largest = NO_TOKEN;
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = first + 8 * j + 2 * t + i;
                float y = -infinity();
                if (column < end) {
                    y = x[j][i] * args.residual_scaling;
#if RESIDUAL_KEPT
                    if (of_kept) {
                        const int slot = kept_slots[column];  // behind the pages in use there is no token
                        y = slot < slots_in_use ? fmaf(page_bias ? page_bias[slot] : 0.0f, LOG2_E, y) : -infinity();
                    } else
#endif
                    if (bias) y = fmaf(bias[column], LOG2_E, y);
                }
                x[j][i] = y, largest = fmaxf(largest, y);
            }
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        const float new_top = fmaxf(top, largest), decay = exp2_approx(top - new_top);
        top = new_top, total *= decay;
        unsigned high[2], low[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float2 p = make_float2(exp2_approx(x[j][0] - top), exp2_approx(x[j][1] - top));
            total += p.x + p.y;
            high[j] = to_dense(p.x, p.y);
            const float2 rounded = from_dense(high[j]);
            low[j] = to_dense(p.x - rounded.x, p.y - rounded.y);
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            uint4 value[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int column = first + k / 2 * 8 + 2 * t + k % 2;
                const bool there = column < end && 64 * i + 8 * g < RESIDUAL_VALUE_DIM;
                value[k] = load_16(tile_values + column * value_bytes + 128 * i, there);
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {  // channel 64 i + 8 g + j: half j % 2 of word j / 2
                auto word = [&](const uint4& x) { return j < 2 ? x.x : j < 4 ? x.y : j < 6 ? x.z : x.w; };
                const unsigned half = j % 2 ? 0x7632 : 0x5410;
                float product[4] = {};
                mma_dense(product, high[0], low[0], high[1], low[1], __byte_perm(word(value[0]), word(value[1]), half),
                          __byte_perm(word(value[2]), word(value[3]), half));
                float* const sum = sums[8 * i + j];
                sum[0] = fmaf(sum[0], decay, product[0] + product[2]);
                sum[1] = fmaf(sum[1], decay, product[1] + product[3]);
            }
        }
    }
    total += __shfl_xor_sync(0xffffffffu, total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);

    // the block's warps become one split
    float* const shared_top = (float*)(shared + FOUND_AT);
    float* const shared_total = shared_top + WARPS * ROWS;
    if (t == 0 && g < ROWS) shared_top[warp * ROWS + g] = top, shared_total[warp * ROWS + g] = total;
    __syncthreads();
    float block_top = NO_TOKEN;
    for (int i = 0; i < WARPS; i++) block_top = fmaxf(block_top, shared_top[i * ROWS + g % ROWS]);
    const float share = exp2_approx(top - block_top);
    const int rows = min(args.rows - first_row, ROWS);
    const long long out_row = (unit * args.num_residual_splits + part) * args.rows + first_row;
    if (threadIdx.x < rows) {
        float most = NO_TOKEN, sum = 0.0f;
        for (int i = 0; i < WARPS; i++) most = fmaxf(most, shared_top[i * ROWS + threadIdx.x]);
        for (int i = 0; i < WARPS; i++)
            sum = fmaf(shared_total[i * ROWS + threadIdx.x],
                       exp2_approx(shared_top[i * ROWS + threadIdx.x] - most), sum);
        args.residual_m[out_row + threadIdx.x] = sum > 0.0f ? most : -infinity();
        args.residual_l[out_row + threadIdx.x] = sum;
    }
    float* const mine = (float*)(shared + warp * WARP_BYTES + P_AT) + g * RESIDUAL_STRIDE;
#pragma unroll
    for (int pass = 0; pass * RESIDUAL_AT_ONCE < RESIDUAL_VALUE_DIM; pass++) {
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            const int channel = 64 * i + 16 * t - pass * RESIDUAL_AT_ONCE;
            if (g < ROWS && channel >= 0 && channel < RESIDUAL_AT_ONCE) {
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    mine[channel + j] = sums[8 * i + j][0] * share;
                    mine[channel + 8 + j] = sums[8 * i + j][1] * share;
                }
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < rows * RESIDUAL_AT_ONCE; i += THREADS) {
            const int r = i / RESIDUAL_AT_ONCE, c = i % RESIDUAL_AT_ONCE;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                sum += ((const float*)(shared + w * WARP_BYTES + P_AT))[r * RESIDUAL_STRIDE + c];
            const int channel = pass * RESIDUAL_AT_ONCE + c;
            if (channel < RESIDUAL_VALUE_DIM) args.residual_acc[(out_row + r) * RESIDUAL_WIDTH + channel] = sum;
        }
        __syncthreads();
    }
}
