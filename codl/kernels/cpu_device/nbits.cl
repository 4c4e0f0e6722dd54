// Products of many rows with a packed matrix: the tiles of cpu_device/matmul.cl, whose panels each
// work-item unpacks, block by block.

#include "matmul_nbits/unpack.cl"

// Unpacks `length` of k from `first` on of V columns, to rows of COLUMNS * V elements. `first` is a
// multiple of PER_WORD.
__attribute__((noinline)) void unpack_columns(
    MATRIX, __local float *out, int panel, int first, int length, int k)
{
    __global const uint *from = weight + ((size_t)panel * WORDS(k) + first / PER_WORD) * V;
    for (int i = 0; i < length; i += PER_WORD, from += V) {
        const int block = (first + i) / LENGTH;
        const UVEC words = WORDS_AT(from);
        const VEC scale = SCALES(panel, block, k);
        BASES(VEC, bases, ZEROS(panel, block, k))
        UNROLL for (int j = 0; j < PER_WORD; j++)
            if (i + j < length) FSTORE(scale * NUMBERS(words, j, bases), out + (i + j) * COLUMNS * V);
    }
}

#include "cpu_device/matmul.cl"
