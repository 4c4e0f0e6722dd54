// Products of ROWS rows with a packed matrix, for GPUs: a work-group has PANELS times V columns, and
// its work-items read their words side by side, which is what it takes to stream them at the speed of
// the memory.
//
// ROWS           of a and of the output
// PANELS         of V columns of a work-group
// ITEMS          work-items of a work-group, a power of two

#include "matmul_nbits/unpack.cl"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void matmul_rows(
    __global const ELEMENT *restrict a, int a_offset, int a_stride,
    __global ELEMENT *restrict output, int output_offset, int output_stride,
    MATRIX, __global const float *restrict bias, int n, int k)
{
    __local VEC parts[PANELS * ROWS][ITEMS];
    const int item = get_local_id(0), first = get_group_id(0) * PANELS, panels = (n + V - 1) / V;
    VEC sums[PANELS][ROWS];
    EACH_PANEL EACH_ROW sums[p][r] = (VEC)(0.0f);
    for (int word = item; word * PER_WORD < k; word += ITEMS) {
        const int at = word * PER_WORD, block = at / LENGTH;
        // Beyond the last column there are zeros.
        float x[ROWS][PER_WORD];
        EACH_ROW UNROLL for (int j = 0; j < PER_WORD; j++)
            x[r][j] = at + j < k ? GET(a, a_offset + (size_t)r * k + at + j) : 0.0f;
        EACH_PANEL {
            // Panels beyond the last repeat it, and are not stored.
            const int panel = min(first + p, panels - 1);
            const UVEC words = WORDS_AT(weight + ((size_t)panel * WORDS(k) + word) * V);
            const VEC scale = SCALES(panel, block, k);
            BASES(VEC, bases, ZEROS(panel, block, k))
            VEC own[ROWS];
            EACH_ROW own[r] = (VEC)(0.0f);
            UNROLL for (int j = 0; j < PER_WORD; j++) {
                const VEC numbers = NUMBERS(words, j, bases);
                EACH_ROW own[r] += x[r][j] * numbers;
            }
            EACH_ROW sums[p][r] += scale * own[r];
        }
    }
    EACH_PANEL EACH_ROW parts[p * ROWS + r][item] = sums[p][r];
    for (int left = ITEMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (int i = 0; i < PANELS * ROWS; i++)
            if (item < left) parts[i][item] += parts[i][item + left];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = item; i < PANELS * ROWS * V; i += ITEMS) {
        const int p = i / (ROWS * V), r = i / V % ROWS, column = (first + p) * V + i % V;
        __local const float *sum = (__local const float *)&parts[p * ROWS + r][0];
        const size_t at = output_offset + (size_t)r * n + column;
        if (column < n) SET(ACTIVATE(sum[i % V] + bias[column]), output, at);
    }
}
