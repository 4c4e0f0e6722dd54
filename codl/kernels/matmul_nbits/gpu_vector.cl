// Products of ROWS rows with a packed matrix, on CPUs: every word is read once, and its numbers go
// from registers into the sums of the V columns that they are of. A work-item has `strip` times PANELS
// such panels of V columns.
//
// The sum of a block is taken of the numbers as they are; its scale, and its zero point times the sum
// of what the numbers were multiplied by, come once for all of it.
//
// ROWS           of a and of the output
// PANELS         of V columns that are gone through side by side

#include "matmul_nbits/unpack.cl"

#define ADD(x, y) ((x) + (y))
#define BLOCK_WORDS (LENGTH / PER_WORD)
#define EACH UNROLL for (int p = 0; p < PANELS; p++) UNROLL for (int r = 0; r < ROWS; r++)

// The sum of `length` numbers of a row.
float row_sum(__global const float *x, int length)
{
    VEC sums = (VEC)(0.0f);
    int i = 0;
    for (; i + V <= length; i += V) sums += PLOAD(x + i);
    float sum = FOLD(ADD, sums);
    for (; i < length; i++) sum += x[i];
    return sum;
}

KERNEL void matmul_vector(
    __global const float *a, int a_offset, int a_stride,
    __global float *output, int output_offset, int output_stride,
    MATRIX, __global const float *bias, int strip, int n, int k)
{
    const int blocks = BLOCKS(k), panels = (n + V - 1) / V;
    __global const float *left = a + a_offset;
    __global float *out = output + output_offset;
    const int stop = min((int)(get_global_id(0) + 1) * strip * PANELS, panels);
    for (int first = get_global_id(0) * strip * PANELS; first < stop; first += PANELS) {
        // Panels beyond the last repeat it, and are not stored.
        __global const uint *from[PANELS];
        UNROLL for (int p = 0; p < PANELS; p++)
            from[p] = weight + (size_t)min(first + p, panels - 1) * WORDS(k) * V;
        VEC sums[ROWS][PANELS];
        EACH sums[r][p] = (VEC)(0.0f);
        for (int block = 0; block < blocks; block++) {
            const int at = block * LENGTH, length = min(LENGTH, k - at);
            VEC own[ROWS][PANELS];
            EACH own[r][p] = (VEC)(0.0f);
            if (length == LENGTH) {
                NO_UNROLL for (int i = 0; i < BLOCK_WORDS; i++) {
                    UVEC words[PANELS];
                    UNROLL for (int p = 0; p < PANELS; p++) {
                        words[p] = WORDS_AT(from[p]);
                        from[p] += V;
                    }
                    UNROLL for (int j = 0; j < PER_WORD; j++) {
                        UNROLL for (int p = 0; p < PANELS; p++) {
                            const VEC numbers = NUMBERS(words[p], j);
                            UNROLL for (int r = 0; r < ROWS; r++)
                                own[r][p] += left[(size_t)r * k + at + i * PER_WORD + j] * numbers;
                        }
                    }
                }
            } else {
                for (int i = 0; i < length; i++) {
                    UNROLL for (int p = 0; p < PANELS; p++) {
                        const UVEC words = WORDS_AT(from[p] + i / PER_WORD * V);
                        const VEC numbers = NUMBERS(words, (uint)(i % PER_WORD));
                        UNROLL for (int r = 0; r < ROWS; r++)
                            own[r][p] += left[(size_t)r * k + at + i] * numbers;
                    }
                }
            }
            float of_rows[ROWS];
            UNROLL for (int r = 0; r < ROWS; r++) of_rows[r] = row_sum(left + (size_t)r * k + at, length);
            UNROLL for (int p = 0; p < PANELS; p++) {
                const int panel = min(first + p, panels - 1);
                const VEC scale = SCALES(panel, block, k), zeros = ZEROS(panel, block, k);
                UNROLL for (int r = 0; r < ROWS; r++)
                    sums[r][p] += scale * (own[r][p] - of_rows[r] * zeros);
            }
        }
        for (int p = 0; p < PANELS; p++) {
            const int column = (first + p) * V;
            if (column >= n) break;
            for (int r = 0; r < ROWS; r++) {
                __global float *to = out + (size_t)r * n + column;
                const VEC value = sums[r][p] + PLOAD(bias + column);
                if (column + V <= n) {
                    PSTORE(ACTIVATE(value), to);
                } else {
                    float lanes[V];
                    CAT(vstore, V)(ACTIVATE(value), 0, lanes);
                    for (int j = 0; j < n - column; j++) to[j] = lanes[j];
                }
            }
        }
    }
}
