// Attention through local memory, without a matrix of scores: a work-group has TILE queries of a
// head and goes through the keys by blocks of KEYS. Keys and values of a block take turns in one
// place; sums stay in registers, relative to the largest score so far, and are scaled where a later
// block has a larger one (Milakov and Gimelshein 2018).
//
// Work-items of a group are SHARING x (TILE / ROWS): each has ROWS queries, and of these every
// SHARING-th key and every SHARING-th four features of the sums.
//
// FEATURES, VALUES   of a query and a key, and of a value
// KEYS_EACH          keys of a block, and PARTS_EACH fours of the sums, of a work-item
// CAUSAL, BIAS,
// ZEROS              as in gpu_direct.cl

#define SHARING 16
#define ITEMS (SHARING * TILE / ROWS)
#define FOURS(size) (((size) + 3) / 4)
// Rows in local memory begin in different banks.
#define ROW_OF(size) (4 * FOURS(size) + 4)
#define LARGER_ROW (FEATURES > VALUES ? ROW_OF(FEATURES) : ROW_OF(VALUES))
#define ODDS_ROW (KEYS + 4)
#define EACH_ROW(body) UNROLLED(r, ROWS, body)

// The keys that a query sees, and what is added to its score of one.
#ifdef CAUSAL
#define SEEN(query) min(keys, first + (query) + 1)
#else
#define SEEN(query) keys
#endif
#ifdef BIAS
#define PLUS_BIAS(query, key) +GET(added, (ADDRESS)(query) * row_step + min((key), keys - 1))
#else
#define PLUS_BIAS(query, key)
#endif

#ifdef HALF
#define FOUR(p) FOUR_HALVES(p)
#else
#define FOUR(p) (*(__global const float4 *)(p))
#endif

// `most` rows of `size` elements, of which `count` are there; the others are zeros. Rows of whole
// fours begin at multiples of four.
#define COPY_ROWS(in, out, most, count, size)                                                      \
    for (int at = item; at < (most) * FOURS(size); at += ITEMS) {                                  \
        const int row = at / FOURS(size), i = 4 * (at % FOURS(size));                              \
        float4 value = (float4)(0.0f);                                                             \
        if (row < (count)) {                                                                       \
            __global const ELEMENT *from = (in) + (ADDRESS)row * (size) + i;                          \
            if ((size) % 4 == 0) {                                                                 \
                value = FOUR(from);                                                                \
            } else {                                                                               \
                value.s0 = GET(from, 0);                                                           \
                if (i + 1 < (size)) value.s1 = GET(from, 1);                                       \
                if (i + 2 < (size)) value.s2 = GET(from, 2);                                       \
                if (i + 3 < (size)) value.s3 = GET(from, 3);                                       \
            }                                                                                      \
        }                                                                                          \
        vstore4(value, 0, (out) + row * ROW_OF(size) + i);                                         \
    }

// A function of two over what the work-items of a row have written to `mine`.
#define OF_ROW(F, mine)                                                                            \
    F(F(FOLD4(F, vload4(0, mine)), FOLD4(F, vload4(1, mine))),                                     \
      F(FOLD4(F, vload4(2, mine)), FOLD4(F, vload4(3, mine))))
#define ADD(a, b) ((a) + (b))
// The sum of a query that sees no key is 0, as are those of its values.
#ifdef ZEROS
#define PARTS_OF(sum) ((sum) == 0.0f ? 1.0f : (sum))
#else
#define PARTS_OF(sum) (sum)
#endif

__kernel __attribute__((reqd_work_group_size(SHARING, TILE / ROWS, 1))) void attention_tiled(
    __global const ELEMENT *q, int q_offset, int q_stride,
    __global const ELEMENT *k, int k_offset, int k_stride,
    __global const ELEMENT *v, int v_offset, int v_stride,
#ifdef BIAS
    __global const ELEMENT *bias, int bias_offset, int bias_stride,
#endif
    __global ELEMENT *output, int output_offset, int output_stride,
    int heads, int sharing, int queries, int keys, int first, int image_step, int head_step,
    int row_step, float scale)
{
    __local float asked[TILE * ROW_OF(FEATURES)], block[KEYS * LARGER_ROW];
    __local float odds[TILE * ODDS_ROW], shared[TILE * SHARING];
    const int x = LOCAL_ID(0), y = LOCAL_ID(1), item = y * SHARING + x;
    const int head = GLOBAL_ID(2), query0 = GROUP_ID(1) * TILE, row0 = y * ROWS;
    const ADDRESS own_keys = (ADDRESS)(head / sharing) * keys;
    __global const ELEMENT *known = k + k_offset + own_keys * FEATURES;
    __global const ELEMENT *held = v + v_offset + own_keys * VALUES;
    __global const ELEMENT *in =
        q + q_offset + ((ADDRESS)head * queries + query0) * FEATURES;
#ifdef BIAS
    __global const ELEMENT *added = bias + bias_offset + (ADDRESS)(head / heads) * image_step +
        (ADDRESS)(head % heads) * head_step;
#endif
    COPY_ROWS(in, asked, TILE, queries - query0, FEATURES)

    float4 acc[ROWS][PARTS_EACH];
    float most[ROWS], total[ROWS];
    EACH_ROW({
        most[r] = -FLT_MAX;
        total[r] = 0.0f;
        UNROLLED(p, PARTS_EACH, { acc[r][p] = (float4)(0.0f); })
    })
    const int last_key = SEEN(min(query0 + TILE, queries) - 1);
    for (int start = 0; start < last_key; start += KEYS) {
        COPY_ROWS(known + (ADDRESS)start * FEATURES, block, KEYS, keys - start, FEATURES)
        barrier(CLK_LOCAL_MEM_FENCE);
        float scores[ROWS][KEYS_EACH];
        EACH_ROW({ UNROLLED(c, KEYS_EACH, { scores[r][c] = 0.0f; }) })
        for (int i = 0; i < FOURS(FEATURES); i++) {
            float4 own[ROWS];
            EACH_ROW({ own[r] = vload4(i, asked + (row0 + r) * ROW_OF(FEATURES)); })
            UNROLLED(c, KEYS_EACH, {
                const float4 other = vload4(i, block + (x + c * SHARING) * ROW_OF(FEATURES));
                EACH_ROW({
                    scores[r][c] += own[r].s0 * other.s0;
                    scores[r][c] += own[r].s1 * other.s1;
                    scores[r][c] += own[r].s2 * other.s2;
                    scores[r][c] += own[r].s3 * other.s3;
                })
            })
        }
        EACH_ROW({
            const int query = min(query0 + row0 + r, queries - 1);
            const int seen = SEEN(query);
            float high = -FLT_MAX;
            UNROLLED(c, KEYS_EACH, {
                const int key = start + x + c * SHARING;
                const float score = scale * scores[r][c] PLUS_BIAS(query, key);
                scores[r][c] = key < seen ? score : -INFINITY;
                high = max(high, scores[r][c]);
            })
            shared[(row0 + r) * SHARING + x] = high;
        })
        barrier(CLK_LOCAL_MEM_FENCE);  // no keys are read any more, either
        EACH_ROW({
            __local const float *mine = shared + (row0 + r) * SHARING;
            const float now = max(most[r], OF_ROW(max, mine));
            const float factor = exp(most[r] - now);
            float sum = 0.0f;
            UNROLLED(c, KEYS_EACH, {
                const float power = exp(scores[r][c] - now);
                odds[(row0 + r) * ODDS_ROW + x + c * SHARING] = power;
                sum += power;
            })
            most[r] = now;
            total[r] = total[r] * factor + sum;
            UNROLLED(p, PARTS_EACH, { acc[r][p] *= factor; })
        })
        COPY_ROWS(held + (ADDRESS)start * VALUES, block, KEYS, keys - start, VALUES)
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = 0; j < KEYS / 4; j++) {
            float4 weights[ROWS];
            EACH_ROW({ weights[r] = vload4(j, odds + (row0 + r) * ODDS_ROW); })
            UNROLLED(p, PARTS_EACH, {
                __local const float *line = block + 4 * j * ROW_OF(VALUES) +
                    4 * min(x + p * SHARING, FOURS(VALUES) - 1);
                const float4 one = vload4(0, line);
                const float4 two = vload4(0, line + ROW_OF(VALUES));
                const float4 three = vload4(0, line + 2 * ROW_OF(VALUES));
                const float4 four = vload4(0, line + 3 * ROW_OF(VALUES));
                EACH_ROW({
                    acc[r][p] += weights[r].s0 * one;
                    acc[r][p] += weights[r].s1 * two;
                    acc[r][p] += weights[r].s2 * three;
                    acc[r][p] += weights[r].s3 * four;
                })
            })
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    EACH_ROW({ shared[(row0 + r) * SHARING + x] = total[r]; })
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_ROW({
        const int query = query0 + row0 + r;
        const float sum = OF_ROW(ADD, shared + (row0 + r) * SHARING);
        __global ELEMENT *out =
            output + output_offset + ((ADDRESS)head * queries + query) * VALUES;
        UNROLLED(p, PARTS_EACH, {
            const int feature = 4 * (x + p * SHARING);
            const float4 values = ACTIVATE(acc[r][p] / PARTS_OF(sum));
            UNROLLED(i, 4, {
                if ((query < queries) & (feature + i < VALUES))
                    SET(LANE_OF(values, i), out, feature + i);
            })
        })
    })
}
