// The least and the largest element of each row of `size`: work-items share a row, and have `strip` of
// them one after the other.

KERNEL void row_range(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int rows, int size)
{
    PARTS
    const int whole = size / V * V;
    for (int i = 0; i < strip; i++) {
        const int row = GLOBAL_ID(1) * strip + i;
        if (SHARERS == 1 && row >= rows) break;
        // Every work-item of a group comes to every barrier; those without a row repeat the last.
        __global const ELEMENT *in = input + input_offset + (ADDRESS)min(row, rows - 1) * size;
        VEC lows = (VEC)(INFINITY), highs = (VEC)(-INFINITY);
        for (int j = SHARER * V; j < whole; j += SHARERS * V) {
            const VEC x = PLOAD(in + j);
            lows = min(lows, x);
            highs = max(highs, x);
        }
        float low = FOLD(min, lows), high = FOLD(max, highs);
        for (int j = whole + SHARER; j < size; j += SHARERS) {
            low = min(low, GET(in, j));
            high = max(high, GET(in, j));
        }
        SHARE(min, low)
        SHARE(max, high)
        if (row < rows && SHARER == 0) {
            SET(ACTIVATE(low), output, output_offset + (ADDRESS)row * 2);
            SET(ACTIVATE(high), output, output_offset + (ADDRESS)row * 2 + 1);
        }
    }
}
