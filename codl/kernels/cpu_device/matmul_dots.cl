// Products of ROWS rows by a b that is stored as (n, k): each element is the dot product of two rows,
// which are read as they lie, b's once. A work-item has `strip` blocks of V columns: the sums of a
// block's products stay apart, a vector for each column, until k has come to its end.
//
// ROWS           of a and of the output

#include "tails.cl"
#include "matmul/batches.cl"

// Two vectors become one: neighbours are added, those of x in front. After log2(V) such rounds V
// vectors are one, of their sums.
#if V == 4
#define EVEN ((uint4)(0, 2, 4, 6))
#elif V == 8
#define EVEN ((uint8)(0, 2, 4, 6, 8, 10, 12, 14))
#else
#define EVEN ((uint16)(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30))
#endif
#define ADD_PAIRS(x, y) (shuffle2((x), (y), EVEN) + shuffle2((x), (y), EVEN + 1))
#define ROUND(sums, many)                                                                          \
    UNROLL for (int j = 0; j < (many); j++) sums[j] = ADD_PAIRS(sums[2 * j], sums[2 * j + 1]);

KERNEL void matmul_dots(
    __global const ELEMENT *a, int a_offset, int a_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const ELEMENT *b, int b_offset, int b_stride,
    int strip, int n, int k, int inner2, int inner1, int a_step0, int a_step1, int a_step2,
    int b_step0, int b_step1, int b_step2, float alpha)
{
    const int batch = get_global_id(1);
    __global const ELEMENT *left = a + a_offset + BATCH_STEP(batch, a_step0, a_step1, a_step2);
    __global const ELEMENT *right =
        b + b_offset + BATCH_STEP(batch, b_step0, b_step1, b_step2);
    __global ELEMENT *out = output + output_offset + (size_t)batch * ROWS * n;
    const int whole = k / V * V, stop = min((int)(get_global_id(0) + 1) * strip * V, n);
    for (int column = get_global_id(0) * strip * V; column < stop; column += V) {
        // Columns beyond the last repeat it, and are not stored.
        __global const ELEMENT *from[V];
        UNROLL for (int j = 0; j < V; j++) from[j] = right + (size_t)min(column + j, n - 1) * k;
        for (int row = 0; row < ROWS; row++) {
            __global const ELEMENT *x = left + (size_t)row * k;
            VEC sums[V];
            UNROLL for (int j = 0; j < V; j++) sums[j] = (VEC)(0.0f);
            NO_UNROLL for (int i = 0; i < whole; i += V) {
                const VEC own = PLOAD(x + i);
                UNROLL for (int j = 0; j < V; j++) sums[j] += own * PLOAD(from[j] + i);
            }
#if V == 16
            ROUND(sums, 8)
#endif
#if V >= 8
            ROUND(sums, 4)
#endif
            ROUND(sums, 2)
            ROUND(sums, 1)
            for (int i = whole; i < k; i++) {
                float lanes[V];
                UNROLL for (int j = 0; j < V; j++) lanes[j] = GET(from[j], i);
                sums[0] += GET(x, i) * FLOAD(lanes);
            }
            const VEC value = alpha * sums[0];
            __global ELEMENT *to = out + (size_t)row * n + column;
            STORE_LANES(ACTIVATE(value), to, n - column)
        }
    }
}
