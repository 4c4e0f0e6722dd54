// Resize: one output pixel x one block of channels at a time, `strip` pixels in a work-item.
//
// TAPS      input rows, and columns, that an output pixel is made of: 1 or 2
// rows, row_weights         [out row][TAPS]: the rows, and their shares
// columns, column_weights   the same of columns

KERNEL void resize_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const int *rows, __global const float *row_weights, __global const int *columns,
    __global const float *column_weights, int strip, int in_w, int out_w, int pixels)
{
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, BLOCK_ID);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, BLOCK_ID);
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    int pixel = STRIP_ID * strip, y = pixel / out_w, x = pixel - y * out_w;
    for (; pixel < stop; pixel++) {
#if TAPS == 1
        VEC value = LOAD(in + (rows[y] * in_w + columns[x]) * V);
#else
        VEC value = (VEC)(0.0f);
        UNROLLED(j, TAPS, {
            __global const ELEMENT *row = in + rows[y * TAPS + j] * in_w * V;
            VEC sum = (VEC)(0.0f);
            UNROLLED(i, TAPS, {
                sum += column_weights[x * TAPS + i] * LOAD(row + columns[x * TAPS + i] * V); })
            value += row_weights[y * TAPS + j] * sum;
        })
#endif
        STORE(ACTIVATE(value), out + pixel * V);
        if (++x == out_w) {
            x = 0;
            y++;
        }
    }
}
