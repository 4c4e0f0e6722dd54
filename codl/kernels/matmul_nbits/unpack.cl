// A packed matrix of k x n: every V columns of it lie apart, as words of all of k, each with some
// numbers for each of the columns.
//
// BITS           of a number; number i of a word lies at its bits from BITS * i on
// LENGTH         numbers of a block, which have a scale and a zero point in common
// ZERO_POINTS    defined where blocks have some, packed as the numbers are; the middle without
// weight         [V columns][word][V]
// scales         [V columns][block][V]
// zero_points    [V columns][word of blocks][V]

#if BITS == 4
#define PER_WORD 8
#else
#define PER_WORD 4
#endif
#define BLOCKS(k) (((k) + LENGTH - 1) / LENGTH)
#define WORDS(k) (BLOCKS(k) * (LENGTH / PER_WORD))
#define ZERO_WORDS(k) ((BLOCKS(k) + PER_WORD - 1) / PER_WORD)
#define BLOCK_WORDS (LENGTH / PER_WORD)
#define MOST ((1u << BITS) - 1)
#define MIDDLE ((float)(1 << (BITS - 1)))
#define UVEC CAT(uint, V)
#define WORDS_AT(p) CAT(vload, V)(0, (p))

#ifdef ZERO_POINTS
#define MATRIX                                                                                     \
    __global const uint *weight, __global const float *scales, __global const uint *zero_points
#define MATRIX_ARGS weight, scales, zero_points
// The zero points of block `b` of the V columns `panel`.
#define ZEROS(panel, b, k)                                                                         \
    CAT(convert_float, V)                                                                          \
    (WORDS_AT(zero_points + ((ADDRESS)(panel) * ZERO_WORDS(k) + (b) / PER_WORD) * V) >>             \
         (uint)(BITS * ((b) % PER_WORD)) &                                                         \
     MOST)
#else
#define MATRIX __global const uint *weight, __global const float *scales
#define MATRIX_ARGS weight, scales
#define ZEROS(panel, b, k) ((VEC)(MIDDLE))
#endif

// Numbers become floats without a conversion: in the place of the lower bits of a float that is a
// power of two, at place p of 2 ^ (23 - BITS * p), they add to it what they are. Taking away that power
// and the zero point is exact. The places are LOW; numbers higher up in a word are moved down to them.
#if BITS == 4
#define LOW 5
#else
#define LOW 2
#endif
#define POWER(p) ((150u - BITS * (p)) << 23)
#define LOWERED(words, i) ((i) < LOW ? (words) : (words) >> (BITS * LOW))
#define PLACED(words, i) ((LOWERED(words, i) & MOST << BITS * ((i) % LOW)) | POWER((i) % LOW))
// What is to be taken away at each place, of some zero points.
#define BASES(TYPE, name, zeros)                                                                   \
    TYPE name[LOW];                                                                                \
    UNROLLED(place, LOW, { name[place] = as_float(POWER(place)) + (zeros); })
// Number i of words, less its zero point; `i` is known to the compiler.
#define NUMBERS(words, i, bases) (CAT(as_float, V)(PLACED(words, i)) - bases[(i) % LOW])

#define SCALES(panel, b, k) FLOAD(scales + ((ADDRESS)(panel) * BLOCKS(k) + (b)) * V)

// The panels of V columns that go side by side, and the rows of a, where a kernel has PANELS and ROWS.
#define EACH_PANEL(body) UNROLLED(p, PANELS, body)
#define EACH_ROW(body) UNROLLED(r, ROWS, body)
