// Attention of new tokens to a cache, in which their keys and values are kept.
//
// FEATURES   of a query and a key, VALUES of a value: whole vectors
// KEY_PARTS, VALUE_PARTS   vectors of either
// HEADS      of queries in a group, which has keys and values of its own
// QUERIES    that a work-item has at most: those of tokens one after the other, head by head
// tokens     that are new; `count` came before them, and `capacity` go into a cache

// Sums that do not wait for each other.
#define CHAINS 4
#define SUM(a, b) ((a) + (b))

// The place of the first new token: whatever the count is, what is written stays inside the cache.
#define FIRST clamp((int)count[count_offset], 0, capacity - tokens)

KERNEL void cache_append(
    __global const ELEMENT *k, int k_offset, int k_stride,
    __global const ELEMENT *v, int v_offset, int v_stride,
    __global const float *count, int count_offset, int count_stride,
    __global ELEMENT *keys, int keys_offset, int keys_stride,
    __global ELEMENT *values, int values_offset, int values_stride,
    int tokens, int groups, int capacity)
{
    const int group = GLOBAL_ID(0), token = GLOBAL_ID(1);
    const ADDRESS from = (ADDRESS)token * groups + group;
    const ADDRESS to = (ADDRESS)group * capacity + FIRST + token;
    for (int i = 0; i < FEATURES; i += V)
        PSTORE(PLOAD(k + k_offset + from * FEATURES + i), keys + keys_offset + to * FEATURES + i);
    for (int i = 0; i < VALUES; i += V)
        PSTORE(PLOAD(v + v_offset + from * VALUES + i), values + values_offset + to * VALUES + i);
}

KERNEL void cached_attention(
    __global const ELEMENT *queries, int queries_offset, int queries_stride,
    __global const float *count, int count_offset, int count_stride,
    __global const ELEMENT *keys, int keys_offset, int keys_stride,
    __global const ELEMENT *values, int values_offset, int values_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int tokens, int groups, int capacity, float scale)
{
    const int group = GLOBAL_ID(1), begin = GLOBAL_ID(0) * QUERIES;
    const int size = min(QUERIES, tokens * HEADS - begin);
    const int first = FIRST, last = first + (begin + size - 1) / HEADS;
    __global const ELEMENT *key = keys + keys_offset + (ADDRESS)group * capacity * FEATURES;
    __global const ELEMENT *value = values + values_offset + (ADDRESS)group * capacity * VALUES;

    VEC sums[QUERIES][VALUE_PARTS];
    float highest[QUERIES], totals[QUERIES];
    for (int n = 0; n < size; n++) {
        highest[n] = -INFINITY, totals[n] = 0.0f;
        for (int i = 0; i < VALUE_PARTS; i++) sums[n][i] = (VEC)(0.0f);
    }
    for (int block = 0; block <= last; block += V) {
        // V keys side by side: one feature of all of them is a vector. Behind the last one it is
        // repeated, and counts nothing.
        VEC turned[FEATURES];
        for (int part = 0; part < KEY_PARTS; part++) {
            VEC m[V], t[V];
            UNROLLED(j, V, {
                m[j] = PLOAD(key + (ADDRESS)min(block + j, last) * FEATURES + part * V); })
            TRANSPOSE
            UNROLLED(j, V, { turned[part * V + j] = m[j]; })
        }
        for (int n = 0; n < size; n++) {
            const int token = (begin + n) / HEADS, head = (begin + n) % HEADS;
            __global const ELEMENT *query = queries + queries_offset +
                (((ADDRESS)token * groups + group) * HEADS + head) * FEATURES;
            VEC scores[CHAINS];
            UNROLLED(i, CHAINS, { scores[i] = (VEC)(0.0f); })
            for (int f = 0; f < FEATURES; f += CHAINS)
                UNROLLED(i, CHAINS, {
                    scores[i] = FMA((VEC)(GET(query, f + i)), turned[f + i], scores[i]); })
            VEC score = scale * ((scores[0] + scores[1]) + (scores[2] + scores[3]));
            float odds[V];
            FSTORE(score, odds);
            for (int j = 0; j < V; j++)
                odds[j] = block + j > first + token ? -INFINITY : odds[j];
            score = FLOAD(odds);
            const float high = max(highest[n], FOLD(max, score));
            score = exp(score - high);
            const float fade = exp(highest[n] - high);
            highest[n] = high;
            totals[n] = totals[n] * fade + FOLD(SUM, score);
            FSTORE(score, odds);
            VEC own[VALUE_PARTS];
            UNROLLED(i, VALUE_PARTS, { own[i] = sums[n][i] * fade; })
            for (int j = 0; j < V; j++) {
                __global const ELEMENT *at = value + (ADDRESS)min(block + j, last) * VALUES;
                UNROLLED(i, VALUE_PARTS, {
                    own[i] = FMA((VEC)(odds[j]), PLOAD(at + i * V), own[i]); })
            }
            UNROLLED(i, VALUE_PARTS, { sums[n][i] = own[i]; })
        }
    }
    for (int n = 0; n < size; n++) {
        const int token = (begin + n) / HEADS, head = (begin + n) % HEADS;
        __global ELEMENT *out = output + output_offset +
            (((ADDRESS)token * groups + group) * HEADS + head) * VALUES;
        for (int i = 0; i < VALUE_PARTS; i++)
            PSTORE(ACTIVATE(sums[n][i] / totals[n]), out + i * V);
    }
}
