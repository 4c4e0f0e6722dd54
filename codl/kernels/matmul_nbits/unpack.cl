// A packed matrix of k x n: every V columns of it lie apart, as words of all of k, each with some
// numbers for each of the columns.
//
// BITS           of a number; number i of a word lies at its bits from BITS * i on
// LENGTH         numbers of a block, which have a scale and a zero point in common
// ZERO_POINTS    defined where blocks have some, packed as the numbers are; the middle without
// weight         [V columns][word][V]
// scales         [V columns][block][V]
// zero_points    [V columns][word of blocks][V]

#define PER_WORD (32 / BITS)
#define BLOCKS(k) (((k) + LENGTH - 1) / LENGTH)
#define WORDS(k) (BLOCKS(k) * (LENGTH / PER_WORD))
#define ZERO_WORDS(k) ((BLOCKS(k) + PER_WORD - 1) / PER_WORD)
#define MOST ((1u << BITS) - 1)
#define MIDDLE ((float)(1 << (BITS - 1)))
#define UVEC CAT(uint, V)
#define NUMBERS(words, i) CAT(convert_float, V)((words) >> (BITS * (i)) & MOST)
#define WORDS_AT(p) CAT(vload, V)(0, (p))

#ifdef ZERO_POINTS
#define MATRIX                                                                                     \
    __global const uint *weight, __global const float *scales, __global const uint *zero_points
#define MATRIX_ARGS weight, scales, zero_points
// The zero points of block `b` of the V columns `panel`.
#define ZEROS(panel, b, k)                                                                         \
    CAT(convert_float, V)                                                                          \
    (WORDS_AT(zero_points + ((size_t)(panel) * ZERO_WORDS(k) + (b) / PER_WORD) * V) >>             \
         (uint)(BITS * ((b) % PER_WORD)) &                                                         \
     MOST)
#else
#define MATRIX __global const uint *weight, __global const float *scales
#define MATRIX_ARGS weight, scales
#define ZEROS(panel, b, k) ((VEC)(MIDDLE))
#endif
#define SCALES(panel, b, k) PLOAD(scales + ((size_t)(panel) * BLOCKS(k) + (b)) * V)
