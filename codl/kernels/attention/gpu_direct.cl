// Attention in registers, without a matrix of scores: a work-item has `strip` queries of a head and
// goes through the keys by blocks of KEYS. It packs a block's keys and values, and for each tile of
// ROWS queries makes the scores of the block, their exponentials, and the sums of values that these
// weigh. Sums lie in the output meanwhile, relative to the largest score so far: they are scaled
// where a later block has a larger one (Milakov and Gimelshein 2018).
//
// KEYS           of a block: whole panels
// STRIP_SIZE     queries of a work-item at most, in whole tiles
// LOCAL_SIZE     elements of a block's keys and values at most, packed
// CAUSAL         defined where query i sees the keys up to `first + i` alone
// BIAS           defined where one is added to the scores; an index of each axis moves on by a step

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
// Rows of a tile, and as many more as fill vectors.
#define SLOTS ((ROWS + V - 1) / V * V)

// Rows of keys become panels, [panel][feature][PANEL]. Keys beyond the last repeat it.
APART void pack_keys(__global const float *in, __local float *out, int count, int features)
{
    for (int key = 0; key < count; key += V) {
        __global const float *from[V];
        UNROLL for (int j = 0; j < V; j++)
            from[j] = in + (size_t)min(key + j, count - 1) * features;
        __local float *to = out + key / PANEL * PANEL * features + key % PANEL;
        int i = 0;
        for (; i + V <= features; i += V) {
            VEC m[V], t[V];
            UNROLL for (int j = 0; j < V; j++) m[j] = PLOAD(from[j] + i);
            TRANSPOSE
            UNROLL for (int j = 0; j < V; j++) PSTORE(m[j], to + (i + j) * PANEL);
        }
        for (; i < features; i++)
            for (int j = 0; j < V; j++) to[i * PANEL + j] = from[j][i];
    }
}

// Rows of values become panels of PANEL features, [panel][key][PANEL], with zeros beyond the last.
APART void pack_values(__global const float *in, __local float *out, int count, int features)
{
    for (int i = 0; i < features; i += V) {
        __local float *to = out + i / PANEL * PANEL * KEYS + i % PANEL;
        if (i + V <= features) {
            for (int j = 0; j < count; j++)
                PSTORE(PLOAD(in + (size_t)j * features + i), to + j * PANEL);
        } else {
            for (int j = 0; j < count; j++)
                for (int lane = 0; lane < V; lane++)
                    to[j * PANEL + lane] =
                        i + lane < features ? in[(size_t)j * features + i + lane] : 0.0f;
        }
    }
}

// A vector of which `count` lanes are there; the others are zeros, or stay as they are.
APART VEC load_lanes(__global const float *from, int count)
{
    if (count >= V) return PLOAD(from);
    float lanes[V];
    for (int j = 0; j < V; j++) lanes[j] = j < count ? from[j] : 0.0f;
    return CAT(vload, V)(0, lanes);
}

APART void store_lanes(VEC value, __global float *to, int count)
{
    if (count >= V) {
        PSTORE(value, to);
        return;
    }
    float lanes[V];
    CAT(vstore, V)(value, 0, lanes);
    for (int j = 0; j < count; j++) to[j] = lanes[j];
}

// Scores of keys from `seen` on, and of others by a bias, are not what they would be.
APART void mask_row(float *odds, __global const float *bias, int count, int seen)
{
    for (int at = 0; at < count; at += V) {
        VEC score = PLOAD(odds + at);
#ifdef BIAS
        score += load_lanes(bias + at, count - at);
#endif
        PSTORE(select((VEC)(-INFINITY), score, LANES < (INTS)(seen - at)), odds + at);
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
        EACH_ROW high[r] = PLOAD(odds + r * KEYS);
        NO_UNROLL for (int at = V; at < vectors * V; at += V)
            EACH_ROW high[r] = max(high[r], PLOAD(odds + r * KEYS + at));
        EACH_ROW now[r] = max(most[r], FOLD(max, high[r]));
    }
    UNROLL for (int r = 0; r < SLOTS; r += V)
        PSTORE(exp(PLOAD(most + r) - PLOAD(now + r)), factors + r);
    VEC sums[ROWS];
    EACH_ROW sums[r] = (VEC)(0.0f);
    NO_UNROLL for (int at = 0; at < vectors * V; at += V)
        EACH_ROW
        {
            const VEC power = exp(PLOAD(odds + r * KEYS + at) - now[r]);
            PSTORE(power, odds + r * KEYS + at);
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
            EACH(WIDE, acc[r][c] = factors[r] * LOAD_(TARGET(r) + c * V, LEFT(c));)                \
        }                                                                                          \
        __local const float *line = values + column * KEYS;                                        \
        NO_UNROLL for (int j = 0; j < seen; j++, line += PANEL) {                                  \
            VEC own[WIDE];                                                                         \
            UNROLL for (int c = 0; c < WIDE; c++) own[c] = PLOAD(line + c * V);                    \
            UNROLL for (int r = 0; r < ROWS; r++) {                                                \
                const float x = odds[r * KEYS + j];                                                \
                UNROLL for (int c = 0; c < WIDE; c++) acc[r][c] += x * own[c];                     \
            }                                                                                      \
        }                                                                                          \
        if (is_last) EACH(WIDE, acc[r][c] = ACTIVATE(acc[r][c] * parts[r]);)                       \
        EACH(WIDE, STORE_(acc[r][c], TARGET(r) + c * V, LEFT(c));)                                 \
    }
#define LOAD_WHOLE(from, left) PLOAD(from)
#define STORE_WHOLE(value, to, left) PSTORE(value, to)

KERNEL void attention_direct(
    __global const float *q, int q_offset, int q_stride,
    __global const float *k, int k_offset, int k_stride,
    __global const float *v, int v_offset, int v_stride,
#ifdef BIAS
    __global const float *bias, int bias_offset, int bias_stride,
#endif
    __global float *output, int output_offset, int output_stride,
    int strip, int heads, int sharing, int queries, int keys, int features, int value_features,
    int first, int image_step, int head_step, int row_step, float scale)
{
    // Keys, then values; panels of features are whole.
    __local float packed[LOCAL_SIZE], most[STRIP_SIZE + SLOTS], total[STRIP_SIZE];
    const int head = get_global_id(1), from = get_global_id(0) * strip;
    const int stop = min(from + strip, queries);
    __global const float *asked = q + q_offset + (size_t)head * queries * features;
    __global const float *known = k + k_offset + (size_t)(head / sharing) * keys * features;
    __global const float *held = v + v_offset + (size_t)(head / sharing) * keys * value_features;
    __global float *out = output + output_offset + (size_t)head * queries * value_features;
#ifdef BIAS
    __global const float *added = bias + bias_offset + (size_t)(head / heads) * image_step +
        (size_t)(head % heads) * head_step;
#else
    __global const float *added = q;
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
                __global const float *source[ROWS];
                UNROLL for (int r = 0; r < ROWS; r++)
                    source[r] = asked + (size_t)min(row + r, queries - 1) * features;
                for (int key = 0; key < seen; key += PANEL) {
                    VEC acc[ROWS][2];
                    EACH(2, acc[r][c] = (VEC)(0.0f);)
                    __local const float *line = packed + key * features;
                    NO_UNROLL for (int i = 0; i < features; i++, line += PANEL) {
                        const VEC one = PLOAD(line), two = PLOAD(line + V);
                        UNROLL for (int r = 0; r < ROWS; r++) {
                            const float x = source[r][i];
                            acc[r][0] += x * one;
                            acc[r][1] += x * two;
                        }
                    }
                    EACH(2, PSTORE(scale * acc[r][c], odds + r * KEYS + key + c * V);)
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
            if (is_last) EACH_ROW parts[r] = 1.0f / total[slot + r];
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
