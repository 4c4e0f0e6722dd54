// Products with a packed matrix through local memory: those of matmul/gpu_tiled.cl, where each
// work-item unpacks words of the slice. DEPTH is a multiple of PER_WORD.

#include "matmul_nbits/unpack.cl"

// The numbers of one column in the word that has those at `at` of k.
void unpack_word(MATRIX, float *out, int column, int at, int k)
{
    const int panel = column / V, lane = column % V, block = at / LENGTH;
    const uint word = weight[((ADDRESS)panel * WORDS(k) + at / PER_WORD) * V + lane];
    const float scale = scales[((ADDRESS)panel * BLOCKS(k) + block) * V + lane];
#ifdef ZERO_POINTS
    const uint zeros =
        zero_points[((ADDRESS)panel * ZERO_WORDS(k) + block / PER_WORD) * V + lane];
    BASES(float, bases, convert_float(zeros >> (BITS * (block % PER_WORD)) & MOST))
#else
    BASES(float, bases, MIDDLE)
#endif
    UNROLLED(j, PER_WORD, {
        out[j] = scale * (as_float(PLACED(word, j)) - bases[j % LOW]); })
}

#include "matmul/gpu_tiled.cl"
