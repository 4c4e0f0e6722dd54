// Products of rows of whole numbers with a matrix of 8 bits through local memory: a work-group has a
// tile of TILE x TILE of the output, each of its work-items 4 x 4 of that; the loop over k goes through
// slices of DEPTH words that all copy, and the four numbers of two words are multiplied at once.
//
// Work-items of a group are (TILE / 4) x (TILE / 4), the first along the columns.
//
// weight         [column][word], zeros beyond k
// column_sums    of the numbers of each column

#include "matmul_dynamic/round_rows.cl"

#define SIDE (TILE / 4)
#define PER_ITEM (TILE * DEPTH / (SIDE * SIDE))

#include "matmul_dynamic/add_dot.cl"

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void matmul_dynamic(
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const uint *rounded, __global const int4 *facts,
    __global const uint *weight, __global const float *scales,
    __global const uint *zero_points, __global const float *bias,
    __global const uint *column_sums, int m, int n, int words)
{
    // One vector more, so that work-items of a row write to different banks.
    __local uint rows[DEPTH][TILE + 4], columns[DEPTH][TILE + 4];
    const int x = LOCAL_ID(0), y = LOCAL_ID(1), item = y * SIDE + x;
    const int row0 = GROUP_ID(1) * TILE, column0 = GROUP_ID(0) * TILE;
    uint acc[4][4];
    UNROLLED(r, 4, { UNROLLED(c, 4, { acc[r][c] = 0; }) })
    for (int first = 0; first < words; first += DEPTH) {
        UNROLL for (int turn = 0; turn < PER_ITEM; turn++) {
            const int at = turn * SIDE * SIDE + item;
            const int d = at % DEPTH;
            const int t = at / DEPTH;
            const int word = first + d;
            const int row = row0 + t;
            const int column = column0 + t;
            rows[d][t] = row < m && word < words ? rounded[(ADDRESS)row * words + word] : 0;
            columns[d][t] =
                column < n && word < words ? weight[(ADDRESS)column * words + word] : 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLLED(d, DEPTH, {
            uint values[4];
            uint factors[4];
            vstore4(vload4(x, columns[d]), 0, values);
            vstore4(vload4(y, rows[d]), 0, factors);
            UNROLLED(r, 4, { UNROLLED(c, 4, {
                acc[r][c] = ADD_DOT(acc[r][c], factors[r], values[c]); }) })
        })
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int r = 0; r < 4; r++) {
        const int row = row0 + 4 * y + r;
        if (row >= m) break;
        const int4 fact = facts[row];
        for (int c = 0; c < 4; c++) {
            const int column = column0 + 4 * x + c;
            if (column >= n) break;
            const uint own = acc[r][c] - (uint)fact.s1 * column_sums[column];
            const int whole = (int)(own - zero_points[column] * (uint)fact.s2);
            const float value =
                convert_float(whole) * (as_float(fact.s0) * scales[column]) + bias[column];
            SET(ACTIVATE(value), output, output_offset + (ADDRESS)row * n + column);
        }
    }
}
