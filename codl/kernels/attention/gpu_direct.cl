// Attention in registers, without a matrix of scores: a work-item has `strip` queries of a head and
// goes through the keys by blocks of KEYS. It packs a block's keys and values, and for each tile of
// ROWS queries makes the scores of the block, their exponentials, and the sums of values that these
// weigh. Sums lie in the output meanwhile, relative to the largest score so far: they are scaled
// where a later block has a larger one (Milakov and Gimelshein 2018). An output of halves would round
// them.
//
// KEYS           of a block: whole panels
// STRIP_SIZE     queries of a work-item at most, in whole tiles
// LOCAL_SIZE     elements of a block's keys and values at most, packed
// CAUSAL         defined where query i sees the keys up to `first + i` alone
// BIAS           defined where one is added to the scores; an index of each axis moves on by a step
// ZEROS          defined where a query that sees no key has zeros, and not NaN
// PARTIAL        defined where sums lie in `kept` meanwhile, in rows of whole panels

#define PANEL (2 * V)
#define APART __attribute__((noinline))
#define EACH(WIDE, what)                                                                           \
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < WIDE; c++) what

#define INTS CAT(int, V)
#if V == 4
#define LANES ((INTS)(0, 1, 2, 3))
#elif V == 8
#define LANES ((INTS)(0, 1, 2, 3, 4, 5, 6, 7))
#else
#define LANES ((INTS)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#endif
#define ADD(a, b) ((a) + (b))
// The sum of a query that sees no key is 0, as are those of its values.
#ifdef ZEROS
#define PARTS_OF(sum) ((sum) == 0.0f ? 1.0f : (sum))
#else
#define PARTS_OF(sum) (sum)
#endif
// Rows of a tile, and as many more as fill vectors.
#define SLOTS ((ROWS + V - 1) / V * V)

// Rows of keys become panels, [panel][feature][PANEL]. Keys beyond the last repeat it.
APART void pack_keys(__global const ELEMENT *in, __local float *out, int count, int features)
{
    for (int key = 0; key < count; key += V) {
        __global const ELEMENT *from[V];
        UNROLL for (int j = 0; j < V; j++)
            from[j] = in + (size_t)min(key + j, count - 1) * features;
        __local float *to = out + key / PANEL * PANEL * features + key % PANEL;
        int i = 0;
        for (; i + V <= features; i += V) {
            VEC m[V], t[V];
            UNROLL for (int j = 0; j < V; j++) m[j] = PLOAD(from[j] + i);
            TRANSPOSE
            UNROLL for (int j = 0; j < V; j++) FSTORE(m[j], to + (i + j) * PANEL);
        }
        for (; i < features; i++)
            for (int j = 0; j < V; j++) to[i * PANEL + j] = GET(from[j], i);
    }
}

// Rows of values become panels of PANEL features, [panel][key][PANEL], with zeros beyond the last.
APART void pack_values(__global const ELEMENT *in, __local float *out, int count, int features)
{
    for (int i = 0; i < features; i += V) {
        __local float *to = out + i / PANEL * PANEL * KEYS + i % PANEL;
        if (i + V <= features) {
            for (int j = 0; j < count; j++)
                FSTORE(PLOAD(in + (size_t)j * features + i), to + j * PANEL);
        } else {
            for (int j = 0; j < count; j++)
                for (int lane = 0; lane < V; lane++)
                    to[j * PANEL + lane] =
                        i + lane < features ? GET(in, (size_t)j * features + i + lane) : 0.0f;
        }
    }
}

// A vector of which `count` lanes are there; the others are zeros, or stay as they are.
APART VEC load_lanes(__global const ELEMENT *from, int count)
{
    if (count >= V) return PLOAD(from);
    float lanes[V];
    for (int j = 0; j < V; j++) lanes[j] = j < count ? GET(from, j) : 0.0f;
    return FLOAD(lanes);
}

APART void store_lanes(VEC value, __global ELEMENT *to, int count)
{
    if (count >= V) {
        PSTORE(value, to);
        return;
    }
    float lanes[V];
    FSTORE(value, lanes);
    for (int j = 0; j < count; j++) SET(lanes[j], to, j);
}

// Scores of keys from `seen` on, and of others by a bias, are not what they would be.
APART void mask_row(float *odds, __global const ELEMENT *bias, int count, int seen)
{
    for (int at = 0; at < count; at += V) {
        VEC score = FLOAD(odds + at);
#ifdef BIAS
        score += load_lanes(bias + at, count - at);
#endif
        FSTORE(select((VEC)(-INFINITY), score, LANES < (INTS)(seen - at)), odds + at);
    }
}

// Scores of a tile become exponentials relative to the largest scores so far, `most`; `total` has
// their sums. Leaves in `factors` what sums of earlier blocks are multiplied by.
#define EACH_ROW UNROLL for (int r = 0; r < ROWS; r++)
APART void weigh(
    float *odds, __local float *most, __local float *total, float *factors, int vectors)
{
    float now[SLOTS];
    {
        VEC high[ROWS];
        EACH_ROW high[r] = FLOAD(odds + r * KEYS);
        NO_UNROLL for (int at = V; at < vectors * V; at += V)
            EACH_ROW high[r] = max(high[r], FLOAD(odds + r * KEYS + at));
        EACH_ROW now[r] = max(most[r], FOLD(max, high[r]));
    }
    UNROLL for (int r = 0; r < SLOTS; r += V)
        FSTORE(exp(FLOAD(most + r) - FLOAD(now + r)), factors + r);
    VEC sums[ROWS];
    EACH_ROW sums[r] = (VEC)(0.0f);
    NO_UNROLL for (int at = 0; at < vectors * V; at += V)
        EACH_ROW
        {
            const VEC power = exp(FLOAD(odds + r * KEYS + at) - now[r]);
            FSTORE(power, odds + r * KEYS + at);
            sums[r] += power;
        }
    EACH_ROW most[r] = now[r], total[r] = total[r] * factors[r] + FOLD(ADD, sums[r]);
}

#define TARGET(r) (out + (size_t)min(row + r, queries - 1) * value_features + column)
#define LEFT(c) (value_features - column - (c) * V)

// The sums of a tile's queries for WIDE vectors of features. Where sums live beside calls, a compiler
// keeps none of them in registers: so whole vectors have code of their own, without any.
#define SUM_VALUES(WIDE, LOAD_, STORE_)                                                            \
    {                                                                                              \
        VEC acc[ROWS][WIDE];                                                                       \
        if (start == 0) {                                                                          \
            EACH(WIDE, acc[r][c] = (VEC)(0.0f);)                                                   \
        } else {                                                                                   \
            EACH(WIDE, acc[r][c] = factors[r] * LOAD_SUM(LOAD_, r, c);)                            \
        }                                                                                          \
        __local const float *line = values + column * KEYS;                                        \
        NO_UNROLL for (int j = 0; j < seen; j++, line += PANEL) {                                  \
            VEC own[WIDE];                                                                         \
            UNROLL for (int c = 0; c < WIDE; c++) own[c] = FLOAD(line + c * V);                    \
            UNROLL for (int r = 0; r < ROWS; r++) {                                                \
                const float x = odds[r * KEYS + j];                                                \
                UNROLL for (int c = 0; c < WIDE; c++) acc[r][c] += x * own[c];                     \
            }                                                                                      \
        }                                                                                          \
        if (is_last) EACH(WIDE, acc[r][c] = ACTIVATE(acc[r][c] * parts[r]);)                       \
        KEEP_SUMS(WIDE)                                                                            \
        EACH(WIDE, STORE_(acc[r][c], TARGET(r) + c * V, LEFT(c));)                                 \
    }
#ifdef PARTIAL
#define LOAD_SUM(LOAD_, r, c) FLOAD(KEPT(r) + c * V)
#define KEEP_SUMS(WIDE)                                                                            \
    if (!is_last) {                                                                                \
        EACH(WIDE, FSTORE(acc[r][c], KEPT(r) + c * V);)                                            \
    } else
#define KEPT(r) (own_kept + (size_t)min(row + r, queries - 1) * kept_features + column)
#else
#define LOAD_SUM(LOAD_, r, c) LOAD_(TARGET(r) + c * V, LEFT(c))
#define KEEP_SUMS(WIDE)
#endif
#define LOAD_WHOLE(from, left) PLOAD(from)
#define STORE_WHOLE(value, to, left) PSTORE(value, to)

KERNEL void attention_direct(
    __global const ELEMENT *q, int q_offset, int q_stride,
    __global const ELEMENT *k, int k_offset, int k_stride,
    __global const ELEMENT *v, int v_offset, int v_stride,
#ifdef BIAS
    __global const ELEMENT *bias, int bias_offset, int bias_stride,
#endif
    __global ELEMENT *output, int output_offset, int output_stride,
#ifdef PARTIAL
    __global float *kept,
#endif
    int strip, int heads, int sharing, int queries, int keys, int features, int value_features,
    int first, int image_step, int head_step, int row_step, float scale)
{
    // Keys, then values; panels of features are whole.
    __local float packed[LOCAL_SIZE], most[STRIP_SIZE + SLOTS], total[STRIP_SIZE];
    const int head = get_global_id(1), from = get_global_id(0) * strip;
    const int stop = min(from + strip, queries);
    __global const ELEMENT *asked = q + q_offset + (size_t)head * queries * features;
    __global const ELEMENT *known = k + k_offset + (size_t)(head / sharing) * keys * features;
    __global const ELEMENT *held = v + v_offset + (size_t)(head / sharing) * keys * value_features;
    __global ELEMENT *out = output + output_offset + (size_t)head * queries * value_features;
#ifdef BIAS
    __global const ELEMENT *added = bias + bias_offset + (size_t)(head / heads) * image_step +
        (size_t)(head % heads) * head_step;
#else
    __global const ELEMENT *added = q;
#endif
#ifdef PARTIAL
    const int kept_features = (value_features + PANEL - 1) / PANEL * PANEL;
    __global float *own_kept = kept + (size_t)head * queries * kept_features;
#endif
    __local float *values = packed + KEYS * features;
    for (int slot = 0; slot < STRIP_SIZE; slot++) most[slot] = -FLT_MAX, total[slot] = 0.0f;
    for (int slot = STRIP_SIZE; slot < STRIP_SIZE + SLOTS; slot++) most[slot] = 0.0f;
#ifdef CAUSAL
    const int last_key = min(keys, first + stop);
#else
    const int last_key = keys;
#endif
    for (int start = 0; start < last_key; start += KEYS) {
        const int count = min(KEYS, keys - start);
        pack_keys(known + (size_t)start * features, packed, count, features);
        pack_values(held + (size_t)start * value_features, values, count, value_features);
        for (int row = from; row < stop; row += ROWS) {
            const int slot = row - from;
#ifdef CAUSAL
            const int visible = first + min(row + ROWS, queries);
#else
            const int visible = keys;
#endif
            if (visible <= start) continue;
            const int seen = min(count, visible - start);
            const int is_last = start + KEYS >= min(visible, keys);
            float odds[ROWS * KEYS], factors[SLOTS], parts[ROWS];
            {
                __global const ELEMENT *source[ROWS];
                UNROLL for (int r = 0; r < ROWS; r++)
                    source[r] = asked + (size_t)min(row + r, queries - 1) * features;
                for (int key = 0; key < seen; key += PANEL) {
                    VEC acc[ROWS][2];
                    EACH(2, acc[r][c] = (VEC)(0.0f);)
                    __local const float *line = packed + key * features;
                    NO_UNROLL for (int i = 0; i < features; i++, line += PANEL) {
                        const VEC one = FLOAD(line), two = FLOAD(line + V);
                        UNROLL for (int r = 0; r < ROWS; r++) {
                            const float x = GET(source[r], i);
                            acc[r][0] += x * one;
                            acc[r][1] += x * two;
                        }
                    }
                    EACH(2, FSTORE(scale * acc[r][c], odds + r * KEYS + key + c * V);)
                }
            }
            for (int r = 0; r < ROWS; r++) {
                const int query = min(row + r, queries - 1);
#ifdef CAUSAL
                const int own = clamp(first + query + 1 - start, 0, seen);
#else
                const int own = seen;
#endif
#ifndef BIAS
                if (own == seen && seen % V == 0) continue;
#endif
                mask_row(odds + r * KEYS, added + (size_t)query * row_step + start, seen, own);
            }
            weigh(odds, most + slot, total + slot, factors, (seen + V - 1) / V);
            if (is_last) EACH_ROW parts[r] = 1.0f / PARTS_OF(total[slot + r]);
            for (int column = 0; column < value_features; column += PANEL) {
                const int left = value_features - column;
                if (left >= PANEL) {
                    SUM_VALUES(2, LOAD_WHOLE, STORE_WHOLE)
                } else if (left == V) {
                    SUM_VALUES(1, LOAD_WHOLE, STORE_WHOLE)
                } else {
                    SUM_VALUES(2, load_lanes, store_lanes)
                }
            }
        }
    }
}
