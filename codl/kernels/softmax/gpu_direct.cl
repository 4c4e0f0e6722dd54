// Softmax along the middle axis of (outer, size, inner).
//
// softmax_rows      inner is 1: work-items share a row, and have `strip` of them one after the other
// softmax_columns   a work-item has WIDE * V neighbours in the inner axis, or what is left of them
// LOG               defined where the logarithm is wanted
// An input of -infinity counts as nothing; a row of nothing else is NaN.

#include "columns.cl"

#define ADD(a, b) ((a) + (b))
// KEEP is what the output holds until the sum is known: exponentials, so that each is taken once.
#ifdef LOG
#define REST(total) log(total)
#define KEEP(STORE_, x, power, p) STORE_(x, p)
#define RESULT(kept, rest) ((kept) - (rest))
#else
#define REST(total) (1.0f / (total))
#define KEEP(STORE_, x, power, p) STORE_(power, p)
#define RESULT(kept, rest) ((kept) * (rest))
#endif

KERNEL void softmax_rows(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride, int strip, int rows, int size)
{
    PARTS
    const int whole = size / V * V;
    for (int i = 0; i < strip; i++) {
        const int row = GLOBAL_ID(1) * strip + i;
        if (SHARERS == 1 && row >= rows) break;
        // Every work-item of a group comes to every barrier; those without a row repeat the last.
        const ADDRESS at = (ADDRESS)min(row, rows - 1) * size;
        __global const ELEMENT *in = input + input_offset + at;
        __global ELEMENT *out = output + output_offset + at;

        VEC high = (VEC)(-INFINITY);
        for (int j = SHARER * V; j < whole; j += SHARERS * V) high = max(high, PLOAD(in + j));
        float largest = FOLD(max, high);
        for (int j = whole + SHARER; j < size; j += SHARERS) largest = max(largest, GET(in, j));
        SHARE(max, largest)

        VEC sums = (VEC)(0.0f);
        float total = 0.0f;
        if (row < rows) {
            for (int j = SHARER * V; j < whole; j += SHARERS * V) {
                const VEC x = PLOAD(in + j) - largest, power = exp(x);
                sums += power;
                KEEP(PSTORE, x, power, out + j);
            }
            for (int j = whole + SHARER; j < size; j += SHARERS) {
                const float x = GET(in, j) - largest, power = exp(x);
                total += power;
                KEEP(WRITE_ONE, x, power, out + j);
            }
        }
        total += FOLD(ADD, sums);
        SHARE(ADD, total)

        // Every work-item goes on with what it wrote itself.
        const float rest = REST(total);
        if (row < rows) {
            for (int j = SHARER * V; j < whole; j += SHARERS * V)
                PSTORE(ACTIVATE(RESULT(PLOAD(out + j), rest)), out + j);
            for (int j = whole + SHARER; j < size; j += SHARERS)
                SET(ACTIVATE(RESULT(GET(out, j), rest)), out, j);
        }
    }
}

// A softmax in each of COUNT values of type T, STEP elements apart, of all rows.
#define COLUMNS(T, LOAD_, STORE_, COUNT, STEP)                                                     \
    {                                                                                              \
        T largest[COUNT], rest[COUNT];                                                             \
        EACH(COUNT, { largest[w] = (T)(-INFINITY); rest[w] = (T)(0.0f); })                              \
        DOWN EACH(COUNT, { largest[w] = max(largest[w], LOAD_(in + j + w * STEP)); })                   \
        DOWN EACH(COUNT, {                                                                         \
            const T x = LOAD_(in + j + w * STEP) - largest[w];                                    \
            const T power = exp(x);                                                                \
            rest[w] += power;                                                                      \
            KEEP(STORE_, x, power, out + j + w * STEP);                                            \
        })                                                                                          \
        EACH(COUNT, { rest[w] = REST(rest[w]); })                                                       \
        DOWN EACH(COUNT, {                                                                         \
            const T kept = LOAD_(out + j + w * STEP);                                              \
            STORE_(ACTIVATE(RESULT(kept, rest[w])), out + j + w * STEP);                           \
        })                                                                                          \
    }

KERNEL void softmax_columns(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride, int size, int inner)
{
    int column = GLOBAL_ID(0) * WIDE * V;
    const ADDRESS at = (ADDRESS)GLOBAL_ID(1) * size * inner + column;
    __global const ELEMENT *in = input + input_offset + at;
    __global ELEMENT *out = output + output_offset + at;
    ALL_COLUMNS
}
