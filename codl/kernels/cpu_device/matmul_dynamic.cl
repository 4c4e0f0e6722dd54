// Products of rows of whole numbers with a matrix of 8 bits in registers, on CPUs: a tile of ROWS x
// COLUMNS vectors of sums stays in registers while a loop runs over k. A mask leaves two numbers of a
// word in the halves of each lane, and one instruction multiplies both and adds them up. A work-item
// has `strip` consecutive tiles of COLUMNS vectors of columns, which a near cache holds.
//
// weight         [V columns][word][V]: in a word the numbers 0, 2, 1 and 3, so that neighbours of a row
//                meet in a lane; zeros beyond k and beyond the last column
// depth          k to whole words

#define PAIRS
#include "matmul_dynamic/round_rows.cl"

#define UVEC CAT(uint, V)
#define WORDS_AT(p) CAT(vload, V)(0, (p))
#include "cpu_device/pair_products.cl"
#include "tails.cl"

#define BYTES 0x00ff00ffu
#define EACH_ROW UNROLL for (int r = 0; r < ROWS; r++)
#define EACH_COLUMN UNROLL for (int c = 0; c < COLUMNS; c++)

KERNEL void matmul_dynamic(
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const uint *rounded, __global const int4 *facts,
    __global const uint *weight, __global const float *scales,
    __global const uint *zero_points, __global const float *bias,
    int strip, int m, int n, int depth)
{
    const int vectors = (n + V - 1) / V, first = get_global_id(0) * COLUMNS, words = depth / 4;
    const int stop = min((int)(get_global_id(1) + 1) * strip * ROWS, m);
    __global const uint *from[COLUMNS];
    // Vectors and rows beyond the last repeat it; the vectors are not stored.
    EACH_COLUMN from[c] = weight + (size_t)min(first + c, vectors - 1) * words * V;
    for (int row = get_global_id(1) * strip * ROWS; row < stop; row += ROWS) {
        __global const uint *source[ROWS];
        EACH_ROW source[r] = rounded + (size_t)min(row + r, m - 1) * (depth / 2);
        IVEC sums[ROWS][COLUMNS];
        EACH_ROW EACH_COLUMN sums[r][c] = (IVEC)(0);
        NO_UNROLL for (int i = 0; i < words; i++) {
            UVEC own[COLUMNS];
            EACH_COLUMN own[c] = WORDS_AT(from[c] + (size_t)i * V);
            UNROLL for (int side = 0; side < 2; side++) {
                UVEC two[COLUMNS];
                EACH_COLUMN two[c] = own[c] >> (uint)(8 * side) & BYTES;
                EACH_ROW {
                    const UVEC x = (UVEC)(source[r][2 * i + side]);
                    EACH_COLUMN sums[r][c] += pair_products(two[c], x);
                }
            }
        }
        for (int c = 0; c < COLUMNS; c++) {
            const int column = (first + c) * V;
            if (column >= n) break;
            const IVEC zeros = CAT(as_int, V)(WORDS_AT(zero_points + column));
            const VEC scale = FLOAD(scales + column), added = FLOAD(bias + column);
            for (int r = 0; r < ROWS; r++) {
                const int at = min(row + r, m - 1);
                const int4 fact = facts[at];
                const VEC whole = CAT(convert_float, V)(sums[r][c] - zeros * fact.s2);
                const VEC value = ACTIVATE(whole * (as_float(fact.s0) * scale) + added);
                __global ELEMENT *to = output + output_offset + (size_t)at * n + column;
                STORE_LANES(value, to, n - column)
            }
        }
    }
}
