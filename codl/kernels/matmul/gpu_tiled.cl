// Matrix products through local memory: a work-group has a tile of TILE x TILE of the output, each
// of its work-items 4 x 4 of that; the loop over k goes through slices of DEPTH that all copy.
//
// Work-items of a group are (TILE / 4) x (TILE / 4), the first along the columns.
//
// TRANS_A, TRANS_B   defined where a is stored as (k, m), b as (n, k)
// BIAS               defined where there is one for each column

#define SIDE (TILE / 4)
#define PER_ITEM (TILE * DEPTH / (SIDE * SIDE))
#include "matmul/batches.cl"

// What lies beside a factor is loaded too, and left out: work-items in lockstep go both ways of a branch.
// Which of a slice's TILE x DEPTH elements the work-item copies at turn `turn`, so that neighbours
// read neighbours: along k where rows are stored along k, along the tile otherwise.
#define ALONG_K(turn) const int at = turn * SIDE * SIDE + item, d = at % DEPTH, t = at / DEPTH
#define ALONG_TILE(turn) const int at = turn * SIDE * SIDE + item, t = at % TILE, d = at / TILE

__kernel __attribute__((reqd_work_group_size(SIDE, SIDE, 1))) void matmul_tiled(
    __global const ELEMENT *a, int a_offset, int a_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const ELEMENT *b,
#ifdef BIAS
    __global const float *bias,
#else
    int b_offset, int b_stride,
#endif
    int m, int n, int k, int inner2, int inner1,
    int a_step0, int a_step1, int a_step2, int b_step0, int b_step1, int b_step2, float alpha)
{
    // One column more, so that work-items of a row write to different banks.
    __local float rows[DEPTH][TILE + 4], columns[DEPTH][TILE + 4];
    const int x = LOCAL_ID(0), y = LOCAL_ID(1), item = y * SIDE + x;
    const int batch = GLOBAL_ID(2);
    const int row0 = GROUP_ID(1) * TILE, column0 = GROUP_ID(0) * TILE;
    __global const ELEMENT *left = a + a_offset + BATCH_STEP(batch, a_step0, a_step1, a_step2);
    __global const ELEMENT *right = b + BATCH_STEP(batch, b_step0, b_step1, b_step2);
#ifndef BIAS
    right += b_offset;
#endif

    float4 acc[4];
    UNROLLED(r, 4, { acc[r] = (float4)(0.0f); })
    for (int first = 0; first < k; first += DEPTH) {
        UNROLL for (int turn = 0; turn < PER_ITEM; turn++) {
            {
#ifdef TRANS_A
                ALONG_TILE(turn);
#define AT_A(r, i) GET(left, (ADDRESS)(i) * m + (r))
#else
                ALONG_K(turn);
#define AT_A(r, i) GET(left, (ADDRESS)(r) * k + (i))
#endif
                const float read = AT_A(min(row0 + t, m - 1), min(first + d, k - 1));
                rows[d][t] = (row0 + t < m) & (first + d < k) ? read : 0.0f;
            }
            {
#ifdef TRANS_B
                ALONG_K(turn);
#define AT_B(i, c) GET(right, (ADDRESS)(c) * k + (i))
#else
                ALONG_TILE(turn);
#define AT_B(i, c) GET(right, (ADDRESS)(i) * n + (c))
#endif
                const float read = AT_B(min(first + d, k - 1), min(column0 + t, n - 1));
                columns[d][t] = (column0 + t < n) & (first + d < k) ? read : 0.0f;
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLLED(d, DEPTH, {
            const float4 values = vload4(x, columns[d]);
            const float4 factors = vload4(y, rows[d]);
            acc[0] += factors.s0 * values;
            acc[1] += factors.s1 * values;
            acc[2] += factors.s2 * values;
            acc[3] += factors.s3 * values;
        })
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    __global ELEMENT *out = output + output_offset + (ADDRESS)batch * m * n;
    const int left_column = column0 + 4 * x;
#ifdef BIAS
#define BIAS_OF(c) bias[min(left_column + (c), n - 1)]
    const float4 start = (float4)(BIAS_OF(0), BIAS_OF(1), BIAS_OF(2), BIAS_OF(3));
#else
    const float4 start = (float4)(0.0f);
#endif
    UNROLLED(r, 4, {
        const int row = row0 + 4 * y + r;
        const float4 values = ACTIVATE(alpha * acc[r] + start);
        UNROLLED(c, 4, {
            if ((row < m) & (left_column + c < n))
                SET(LANE_OF(values, c), out, (ADDRESS)row * n + left_column + c);
        })
    })
}
