// Attention of new tokens to a cache, in which their keys and values are kept; for GPUs. A work-group
// has ROWS queries of a group and a piece of the keys that the last of them sees; it goes through
// these ITEMS at a time. Sums are relative to the largest score so far, and are scaled where a later
// one is larger (Milakov and Gimelshein 2018). Where there are several pieces, a second kernel merges
// what they leave.
//
// Nobody reads what is written: new keys and values are read where they come from.
//
// FEATURES   of a query and a key, VALUES of a value: whole vectors
// KEY_PARTS, VALUE_PARTS   vectors of either
// HEADS      of queries in a group, which has keys and values of its own
// ROWS       queries of a work-group: those of tokens one after the other, head by head
// ITEMS      work-items of a work-group, a power of two; VALUES / V at least
// SPLIT      defined where there are several pieces
// parts      sums, [group][query][piece][VALUES]; `ends` their largest score and their odds' sum
// tokens     that are new; `count` came before them, and `capacity` go into a cache

// Work-items that share a key, so that neighbours read neighbours; and a vector of values.
#define TEAM 4
#define SLICES (ITEMS / VALUE_PARTS)
#define SUM(a, b) ((a) + (b))
#define EACH_ROW(body) UNROLLED(r, ROWS, body)

// The place of the first new token: whatever the count is, what is written stays inside the cache.
#define FIRST clamp((int)count[count_offset], 0, capacity - tokens)
// A vector of a key or a value by its place: those of new tokens are not in the cache yet.
#define FROM(kept, new, place, size)                                                               \
    ((place) < first ? (kept) + (ADDRESS)(place) * (size)                                           \
                     : (new) + (ADDRESS)((place) - first) * groups * (size))

// Row of the queries, and of the output, of query n.
#define ROW_OF(n) (((ADDRESS)((n) / HEADS) * groups + group) * HEADS + (n) % HEADS)
// What becomes of the sum of a vector of query n's values, over the sum of its odds.
#ifdef SPLIT
#define LEAVE(sum, all, high)                                                                      \
    const ADDRESS at = ((ADDRESS)group * rows + n) * pieces + piece;                               \
    FSTORE(sum, parts + at * VALUES + part * V);                                                   \
    if (part == 0) {                                                                               \
        ends[2 * at] = high;                                                                       \
        ends[2 * at + 1] = all;                                                                    \
    }
#else
#define LEAVE(sum, all, high)                                                                      \
    STORE(ACTIVATE(sum / all), output + output_offset + ROW_OF(n) * VALUES + part * V);
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void split_attention(
    __global const ELEMENT *queries, int queries_offset, int queries_stride,
    __global const ELEMENT *k, int k_offset, int k_stride,
    __global const ELEMENT *v, int v_offset, int v_stride,
    __global const float *count, int count_offset, int count_stride,
    __global ELEMENT *keys, int keys_offset, int keys_stride,
    __global ELEMENT *values, int values_offset, int values_stride,
#ifdef SPLIT
    __global float *parts, __global float *ends,
#else
    __global ELEMENT *output, int output_offset, int output_stride,
#endif
    int tokens, int groups, int capacity, float scale)
{
    __local VEC asked[ROWS * KEY_PARTS], sums[ITEMS];
    __local float partial[ROWS][ITEMS * TEAM], odds[ROWS][ITEMS], totals[ITEMS];
    const int item = LOCAL_ID(0), piece = GROUP_ID(0), pieces = GROUPS(0);
    const int begin = GROUP_ID(1) * ROWS, group = GROUP_ID(2);
    const int rows = tokens * HEADS, size = min(ROWS, rows - begin), first = FIRST;
    const int seen = first + (begin + size - 1) / HEADS + 1, length = (seen + pieces - 1) / pieces;
    const int start = piece * length, stop = min(start + length, seen);

    __global ELEMENT *kept_keys = keys + keys_offset + (ADDRESS)group * capacity * FEATURES;
    __global ELEMENT *kept_values = values + values_offset + (ADDRESS)group * capacity * VALUES;
    __global const ELEMENT *new_keys = k + k_offset + (ADDRESS)group * FEATURES;
    __global const ELEMENT *new_values = v + v_offset + (ADDRESS)group * VALUES;
    for (int i = item; i < ROWS * KEY_PARTS; i += ITEMS) {
        const int n = begin + min(i / KEY_PARTS, size - 1);
        asked[i] = scale * LOAD(queries + queries_offset + ROW_OF(n) * FEATURES + i % KEY_PARTS * V);
    }
    if (piece == 0)  // tokens whose first head is here
        for (int token = (begin + HEADS - 1) / HEADS; token * HEADS < begin + size; token++) {
            const ADDRESS from = (ADDRESS)token * groups, to = first + token;
            for (int i = V * item; i < FEATURES; i += V * ITEMS)
                STORE(LOAD(new_keys + from * FEATURES + i), kept_keys + to * FEATURES + i);
            for (int i = V * item; i < VALUES; i += V * ITEMS)
                STORE(LOAD(new_values + from * VALUES + i), kept_values + to * VALUES + i);
        }

    const int part = item % VALUE_PARTS, slice = item / VALUE_PARTS;
    VEC acc[ROWS];
    float highest[ROWS], total[ROWS];
    EACH_ROW({ acc[r] = (VEC)(0.0f); highest[r] = -FLT_MAX; total[r] = 0.0f; })
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int block = start; block < stop; block += ITEMS) {
        UNROLLED(turn, TEAM, {
            const int at = turn * ITEMS + item;
            const int place = min(block + at / TEAM, stop - 1);
            __global const ELEMENT *key = FROM(kept_keys, new_keys, place, FEATURES);
            VEC dots[ROWS];
            EACH_ROW({ dots[r] = (VEC)(0.0f); })
            UNROLL for (int i = 0; i < KEY_PARTS; i += TEAM) {
                const int mine = i + item % TEAM;
                if (KEY_PARTS % TEAM && mine >= KEY_PARTS) break;
                const VEC x = LOAD(key + mine * V);
                EACH_ROW({ dots[r] += asked[r * KEY_PARTS + mine] * x; })
            }
            EACH_ROW({ partial[r][at] = FOLD(SUM, dots[r]); })
        })
        barrier(CLK_LOCAL_MEM_FENCE);
        float scores[ROWS];
        EACH_ROW({
            const int last = min(stop - 1, first + (begin + r) / HEADS);
            const float score = FOLD4(SUM, vload4(item, partial[r]));
            scores[r] = odds[r][item] = block + item <= last ? score : -INFINITY;
        })
        for (int left = ITEMS / 2; left > 0; left /= 2) {
            barrier(CLK_LOCAL_MEM_FENCE);
            if (item < left) EACH_ROW({ odds[r][item] = max(odds[r][item], odds[r][item + left]); })
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_ROW({
            const float high = max(highest[r], odds[r][0]);
            const float fade = exp(highest[r] - high);
            highest[r] = high;
            acc[r] *= fade;
            total[r] *= fade;
        })
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_ROW({ odds[r][item] = exp(scores[r] - highest[r]); })
        barrier(CLK_LOCAL_MEM_FENCE);
        const int many = min(ITEMS, stop - block);
        for (int j = slice; slice < SLICES && j < many; j += SLICES) {
            const VEC x = LOAD(FROM(kept_values, new_values, block + j, VALUES) + part * V);
            EACH_ROW({ acc[r] += odds[r][j] * x; total[r] += odds[r][j]; })
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    EACH_ROW({
        sums[item] = acc[r];
        totals[item] = total[r];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (slice == 0 && r < size) {
            VEC sum = sums[part];
            float all = totals[part];
            for (int i = 1; i < SLICES; i++) {
                sum += sums[i * VALUE_PARTS + part];
                all += totals[i * VALUE_PARTS + part];
            }
            const int n = begin + r;
            LEAVE(sum, all, highest[r])
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    })
}

// Every work-item has a vector of a query's sums.
KERNEL void merge_attention(
    __global const float *parts, __global const float *ends,
    __global ELEMENT *output, int output_offset, int output_stride,
    int rows, int groups, int pieces)
{
    const int part = GLOBAL_ID(0) % VALUE_PARTS, n = GLOBAL_ID(0) / VALUE_PARTS;
    const int group = GLOBAL_ID(1);
    if (n >= rows) return;
    const ADDRESS first = ((ADDRESS)group * rows + n) * pieces;
    float high = -FLT_MAX, total = 0.0f;
    for (int i = 0; i < pieces; i++) high = max(high, ends[2 * (first + i)]);
    VEC sum = (VEC)(0.0f);
    for (int i = 0; i < pieces; i++) {
        const float weight = exp(ends[2 * (first + i)] - high);
        total += weight * ends[2 * (first + i) + 1];
        sum += weight * FLOAD(parts + (first + i) * VALUES + part * V);
    }
    STORE(ACTIVATE(sum / total), output + output_offset + ROW_OF(n) * VALUES + part * V);
}
