// Products of ROWS rows with a packed matrix, on CPUs: every word is read once, and its numbers go
// from registers into the sums of the V columns that they are of. A work-item has `strip` times PANELS
// such panels of V columns. The scale of a block comes once for all of it.
//
// ROWS           of a and of the output
// PANELS         of V columns that are gone through side by side

#include "matmul_nbits/unpack.cl"
#include "tails.cl"

KERNEL void matmul_vector(
    __global const ELEMENT *a, int a_offset, int a_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    MATRIX, __global const float *bias, int strip, int n, int k)
{
    const int panels = (n + V - 1) / V;
    __global ELEMENT *out = output + output_offset;
    const int stop = min((int)(get_global_id(0) + 1) * strip * PANELS, panels);
    for (int first = get_global_id(0) * strip * PANELS; first < stop; first += PANELS) {
        // Panels beyond the last repeat it, and are not stored.
        __global const uint *from[PANELS];
        EACH_PANEL({ from[p] = weight + (size_t)min(first + p, panels - 1) * WORDS(k) * V; })
        VEC sums[PANELS][ROWS];
        EACH_PANEL({ EACH_ROW({ sums[p][r] = (VEC)(0.0f); }) })
        for (int at = 0; at < k; at += LENGTH) {
            __global const ELEMENT *left = a + a_offset + at;
            const int length = min(LENGTH, k - at);
            VEC own[PANELS][ROWS], bases[PANELS][LOW];
            EACH_PANEL({
                BASES(VEC, made, ZEROS(min(first + p, panels - 1), at / LENGTH, k))
                UNROLLED(i, LOW, { bases[p][i] = made[i]; })
                EACH_ROW({ own[p][r] = (VEC)(0.0f); })
            })
            int i = 0;
            NO_UNROLL for (; i + PER_WORD <= length; i += PER_WORD) {
                UVEC words[PANELS];
                EACH_PANEL({ words[p] = WORDS_AT(from[p] + i / PER_WORD * V); })
                UNROLLED(j, PER_WORD, { EACH_PANEL({
                    const VEC numbers = NUMBERS(words[p], j, bases[p]);
                    EACH_ROW({ own[p][r] += GET(left, (size_t)r * k + i + j) * numbers; })
                }) })
            }
            if (i < length) {
                UNROLLED(j, PER_WORD, { if (i + j < length) EACH_PANEL({
                    const UVEC words = WORDS_AT(from[p] + i / PER_WORD * V);
                    const VEC numbers = NUMBERS(words, j, bases[p]);
                    EACH_ROW({ own[p][r] += GET(left, (size_t)r * k + i + j) * numbers; })
                }) })
            }
            EACH_PANEL({
                const VEC scale = SCALES(min(first + p, panels - 1), at / LENGTH, k);
                EACH_ROW({ sums[p][r] += scale * own[p][r]; })
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
