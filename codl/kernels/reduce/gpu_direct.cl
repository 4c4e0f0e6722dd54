// Reductions along the middle axis of (outer, size, inner).
//
// reduce_rows       inner is 1: work-items share a row, and have `strip` of them one after the other
// reduce_columns    a work-item has WIDE * V neighbours in the inner axis, or what is left of them
// MODE   0 sum, 1 mean, 2 max, 3 min, 4 prod, 5 l1, 6 l2, 7 sum_square, 8 log_sum, 9 log_sum_exp

#define ADD(a, b) ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define FIRST 0.0f
#define JOIN ADD
#define TAKE(x, largest) (x)
#define FINISH(value, largest) (value)
#if MODE == 1
#undef FINISH
#define FINISH(value, largest) ((value) * per_element)
#elif MODE == 2
#undef FIRST
#undef JOIN
#define FIRST (-INFINITY)
#define JOIN max
#elif MODE == 3
#undef FIRST
#undef JOIN
#define FIRST INFINITY
#define JOIN min
#elif MODE == 4
#undef FIRST
#undef JOIN
#define FIRST 1.0f
#define JOIN MULTIPLY
#elif MODE == 5
#undef TAKE
#define TAKE(x, largest) fabs(x)
#elif MODE == 6
#undef TAKE
#undef FINISH
#define TAKE(x, largest) ((x) * (x))
#define FINISH(value, largest) sqrt(value)
#elif MODE == 7
#undef TAKE
#define TAKE(x, largest) ((x) * (x))
#elif MODE == 8
#undef FINISH
#define FINISH(value, largest) log(value)
#elif MODE == 9
#define LARGEST_FIRST
#undef TAKE
#undef FINISH
#define TAKE(x, largest) exp((x) - (largest))
#define FINISH(value, largest) (log(value) + (largest))
#endif
// What an exponential is taken of stays finite, also where all inputs are infinite.
#define FINITE(x) clamp((x), -FLT_MAX, FLT_MAX)

KERNEL void reduce_rows(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int rows, int size, float per_element)
{
    PARTS
    const int whole = size / V * V;
    for (int i = 0; i < strip; i++) {
        const int row = GLOBAL_ID(1) * strip + i;
        if (SHARERS == 1 && row >= rows) break;
        // Every work-item of a group comes to every barrier; those without a row repeat the last.
        __global const ELEMENT *in = input + input_offset + (ADDRESS)min(row, rows - 1) * size;
        float largest = 0.0f;
#ifdef LARGEST_FIRST
        VEC high = (VEC)(-INFINITY);
        for (int j = SHARER * V; j < whole; j += SHARERS * V) high = max(high, PLOAD(in + j));
        largest = FOLD(max, high);
        for (int j = whole + SHARER; j < size; j += SHARERS) largest = max(largest, GET(in, j));
        SHARE(max, largest)
        largest = FINITE(largest);
#endif
        // Two sums that do not wait for each other.
        VEC even = (VEC)(FIRST), odd = even;
        int j = SHARER * V;
        for (; j + SHARERS * V < whole; j += 2 * SHARERS * V) {
            even = JOIN(even, TAKE(PLOAD(in + j), largest));
            odd = JOIN(odd, TAKE(PLOAD(in + j + SHARERS * V), largest));
        }
        if (j < whole) even = JOIN(even, TAKE(PLOAD(in + j), largest));
        even = JOIN(even, odd);
        float value = FOLD(JOIN, even);
        for (j = whole + SHARER; j < size; j += SHARERS) value = JOIN(value, TAKE(GET(in, j), largest));
        SHARE(JOIN, value)
        if (row < rows && SHARER == 0)
            SET(ACTIVATE(FINISH(value, largest)), output, output_offset + row);
    }
}

#include "columns.cl"
#ifdef LARGEST_FIRST
#define FIND_LARGEST(LOAD_, COUNT, STEP)                                                           \
    EACH(COUNT, { largest[w] -= INFINITY; })                                                            \
    DOWN EACH(COUNT, { largest[w] = max(largest[w], LOAD_(in + j + w * STEP)); })                       \
    EACH(COUNT, { largest[w] = FINITE(largest[w]); })
#else
#define FIND_LARGEST(LOAD_, COUNT, STEP)
#endif

// Each of COUNT values of type T, STEP elements apart, of all rows.
#define COLUMNS(T, LOAD_, STORE_, COUNT, STEP)                                                     \
    {                                                                                              \
        T value[COUNT], largest[COUNT];                                                            \
        EACH(COUNT, { value[w] = (T)(FIRST); largest[w] = (T)(0.0f); })                                 \
        FIND_LARGEST(LOAD_, COUNT, STEP)                                                           \
        DOWN EACH(COUNT, {                                                                         \
            const T x = LOAD_(in + j + w * STEP);                                                  \
            value[w] = JOIN(value[w], TAKE(x, largest[w]));                                        \
        })                                                                                          \
        EACH(COUNT, { STORE_(ACTIVATE(FINISH(value[w], largest[w])), out + w * STEP); })                \
    }

KERNEL void reduce_columns(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int size, int inner, float per_element)
{
    const int outer = GLOBAL_ID(1);
    int column = GLOBAL_ID(0) * WIDE * V;
    __global const ELEMENT *in = input + input_offset + (ADDRESS)outer * size * inner + column;
    __global ELEMENT *out = output + output_offset + (ADDRESS)outer * inner + column;
    ALL_COLUMNS
}
