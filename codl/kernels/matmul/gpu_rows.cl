// Products of ROWS rows with a constant matrix, for GPUs: a work-group has PANELS times V columns, and
// its work-items read their words side by side, which is what it takes to stream them at the speed of
// the memory. A word is one number of each of V columns.
//
// ROWS           of a and of the output
// PANELS         of V columns of a work-group
// ITEMS          work-items of a work-group, a power of two
// weight         [V columns][k][V]
// ADDED          defined where there is a second input, shaped like the output, that is added before the
//                activation or, where MULTIPLIED is defined too, multiplied by behind it

#ifndef ADDED
#define ADDED_ARGS
#define FINISHED(value, i) ACTIVATE(value)
#else
#define ADDED_ARGS , __global const ELEMENT *added, int added_offset, int added_stride
#ifdef MULTIPLIED
#define FINISHED(value, i) (ACTIVATE(value) * GET(added, added_offset + (i)))
#else
#define FINISHED(value, i) ACTIVATE((value) + GET(added, added_offset + (i)))
#endif
#endif

#define EACH_PANEL(body) UNROLLED(p, PANELS, body)
#define EACH_ROW(body) UNROLLED(r, ROWS, body)
// Words that are on their way at once.
#define TOGETHER 4
#define ADD_WORDS(at, count)                                                                       \
    {                                                                                              \
        VEC words[count][PANELS];                                                                  \
        float x[count][ROWS];                                                                      \
        UNROLLED(i, count, {                                                   \
            const ADDRESS word = (at) + i * ITEMS;                                                  \
            EACH_PANEL({ words[i][p] = WLOAD(AT(weight, (from[p] + word) * V)); })                         \
            EACH_ROW({ x[i][r] = GET(a, a_offset + (ADDRESS)r * k + word); })                            \
        })                                                                                          \
        UNROLLED(i, count, {                                                     \
            EACH_PANEL({ EACH_ROW({ sums[p][r] += x[i][r] * words[i][p]; }) }) })                               \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void matmul_rows(
    __global const ELEMENT *restrict a, int a_offset, int a_stride,
    __global ELEMENT *restrict output, int output_offset, int output_stride,
    __global const WEIGHT *restrict weight, __global const float *restrict bias, int n,
    int k ADDED_ARGS)
{
    __local VEC parts[PANELS * ROWS][ITEMS];
    const int item = LOCAL_ID(0), first = GROUP_ID(0) * PANELS, panels = (n + V - 1) / V;
    VEC sums[PANELS][ROWS];
    EACH_PANEL({ EACH_ROW({ sums[p][r] = (VEC)(0.0f); }) })
    // Panels beyond the last repeat it, and are not stored.
    ADDRESS from[PANELS];
    EACH_PANEL({ from[p] = (ADDRESS)min(first + p, panels - 1) * k; })
    int at = item;
    for (; at + (TOGETHER - 1) * ITEMS < k; at += TOGETHER * ITEMS) ADD_WORDS(at, TOGETHER)
    for (; at < k; at += ITEMS) ADD_WORDS(at, 1)
    EACH_PANEL({ EACH_ROW({ parts[p * ROWS + r][item] = sums[p][r]; }) })
    for (int left = ITEMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (int i = 0; i < PANELS * ROWS; i++)
            if (item < left) parts[i][item] += parts[i][item + left];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < PANELS * ROWS * V; i += ITEMS) {
        const int p = i / (ROWS * V), r = i / V % ROWS, column = (first + p) * V + i % V;
        __local const float *sum = (__local const float *)&parts[p * ROWS + r][0];
        const ADDRESS at = (ADDRESS)r * n + column;
        if (column < n)
            SET(FINISHED(sum[i % V] + bias[column], at), output, output_offset + at);
    }
}
