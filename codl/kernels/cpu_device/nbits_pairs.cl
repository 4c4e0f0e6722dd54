// Products of ROWS rows with a packed matrix, on CPUs, in whole numbers: as nbits_vector.cl, but no
// number becomes a float. A mask leaves two of a word in the halves of each lane, and one instruction
// multiplies both by whole numbers of 16 bits and adds them up.
//
// For that each block of a row becomes whole numbers of 30 bits, of steps that the block's largest
// element gives, and these two of 15 bits, `upper` and `lower`: finer than a float is beside it.
//
// ROWS           of a and of the output
// PANELS         of V columns that are gone through side by side
// DEPTH          k, to whole blocks

#include "matmul_nbits/unpack.cl"
#include "tails.cl"

#define PAIRS (PER_WORD / 2)
#define PAIR_MASK (MOST << 16 | MOST)
// Elements of a row in the order in which a word has its numbers by pairs.
#if BITS == 4
#define PAIRED ((ushort8)(0, 4, 1, 5, 2, 6, 3, 7))
#else
#define PAIRED ((ushort8)(0, 2, 1, 3, 4, 6, 5, 7))
#endif
#define PART 15
#define STEPS 0x1p29f
// Blocks of nothing larger have the steps of such a one: the finest that a float can count.
#define LEAST 0x1p-97f

#include "cpu_device/pair_products.cl"
#ifdef HALF
#define EIGHT(p) vload_half8(0, (p))
#else
#define EIGHT(p) vload8(0, (p))
#endif

// Elements of a row from `at` on; zeros beyond the last.
float8 eight_of(__global const ELEMENT *row, int at, int k)
{
    if (at + 8 <= k) return EIGHT(row + at);
    float lanes[8];
    for (int i = 0; i < 8; i++) lanes[i] = at + i < k ? GET(row, at + i) : 0.0f;
    return vload8(0, lanes);
}

// A row as whole numbers; and of each block the size of a step, and the sum.
void round_row(
    __global const ELEMENT *row, int k, __local short *upper, __local short *lower,
    __local float *steps, __local float *totals)
{
    for (int at = 0, block = 0; at < DEPTH; at += LENGTH, block++) {
        float8 most = 0.0f, total = 0.0f;
        UNROLL for (int i = 0; i < LENGTH; i += 8) {
            const float8 x = eight_of(row, at + i, k);
            most = fmax(most, fabs(x));
            total += x;
        }
        const float4 most4 = fmax(most.lo, most.hi), total4 = total.lo + total.hi;
        const float2 most2 = fmax(most4.lo, most4.hi), total2 = total4.lo + total4.hi;
        const float largest = fmax(fmax(most2.x, most2.y), LEAST), many = STEPS / largest;
        steps[block] = largest * (1 / STEPS);
        totals[block] = total2.x + total2.y;
        UNROLL for (int i = 0; i < LENGTH; i += 8) {
            const int8 x = convert_int8_rte(many * eight_of(row, at + i, k));
            const int8 high = (x + (1 << (PART - 1))) >> PART, low = x - (high << PART);
            vstore8(shuffle(convert_short8(high), PAIRED), 0, upper + at + i);
            vstore8(shuffle(convert_short8(low), PAIRED), 0, lower + at + i);
        }
    }
}

KERNEL void matmul_pairs(
    __global const ELEMENT *a, int a_offset, int a_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    MATRIX, __global const float *bias, int strip, int n, int k)
{
    __local uint upper[ROWS][DEPTH / 2], lower[ROWS][DEPTH / 2];
    __local float steps[ROWS][DEPTH / LENGTH], totals[ROWS][DEPTH / LENGTH];
    for (int r = 0; r < ROWS; r++)
        round_row(a + a_offset + (size_t)r * k, k, (__local short *)upper[r],
                  (__local short *)lower[r], steps[r], totals[r]);
    const int panels = (n + V - 1) / V;
    __global ELEMENT *out = output + output_offset;
    const int stop = min((int)(get_global_id(0) + 1) * strip * PANELS, panels);
    for (int first = get_global_id(0) * strip * PANELS; first < stop; first += PANELS) {
        // Panels beyond the last repeat it, and are not stored.
        __global const uint *from[PANELS];
        EACH_PANEL({ from[p] = weight + (size_t)min(first + p, panels - 1) * WORDS(k) * V; })
        VEC sums[PANELS][ROWS];
        EACH_PANEL({ EACH_ROW({ sums[p][r] = (VEC)(0.0f); }) })
        for (int block = 0; block < DEPTH / LENGTH; block++) {
            IVEC highs[PANELS][ROWS], lows[PANELS][ROWS];
            EACH_PANEL({ EACH_ROW({ highs[p][r] = lows[p][r] = (IVEC)(0); }) })
            UNROLLED(word, BLOCK_WORDS, {
                UVEC words[PANELS];
                EACH_PANEL({ words[p] = WORDS_AT(from[p] + word * V); })
                UNROLLED(j, PAIRS, { EACH_PANEL({
                    const UVEC two = words[p] >> (uint)(BITS * j) & PAIR_MASK;
                    const int at = (block * BLOCK_WORDS + word) * PAIRS + j;
                    EACH_ROW({
                        highs[p][r] += pair_products(two, (UVEC)(upper[r][at]));
                        lows[p][r] += pair_products(two, (UVEC)(lower[r][at]));
                    })
                }) })
            })
            EACH_PANEL({
                const int panel = min(first + p, panels - 1);
                const VEC zeros = ZEROS(panel, block, k);
                const VEC scale = SCALES(panel, block, k);
                EACH_ROW({
                    const VEC whole = CAT(convert_float, V)(highs[p][r]) * (float)(1 << PART) +
                                      CAT(convert_float, V)(lows[p][r]);
                    sums[p][r] += scale * (steps[r][block] * whole - totals[r][block] * zeros);
                })
                from[p] += BLOCK_WORDS * V;
            })
        }
        for (int p = 0; p < PANELS; p++) {
            const int column = (first + p) * V;
            if (column >= n) break;
            for (int r = 0; r < ROWS; r++) {
                __global ELEMENT *to = out + (size_t)r * n + column;
                const VEC value = sums[p][r] + FLOAD(bias + column);
                STORE_LANES(ACTIVATE(value), to, n - column)
            }
        }
    }
}
