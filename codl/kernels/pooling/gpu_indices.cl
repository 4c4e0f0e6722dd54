// Indices of the maxima of windows, over planar tensors of any number of images; one output element
// at a time, `strip` of them in a work-item. The first of equal elements counts.
//
// row_step, column_step   how far an index moves on for each row and column of the input

#include "window.cl"

KERNEL void max_indices(
    __global const float *input, int input_offset, int input_stride,
    __global float *output, int output_offset, int output_stride,
    int strip, int elements, int out_h, int row_step, int column_step, WINDOW_ARGS)
{
    const int stop = min((int)(STRIP_ID + 1) * strip, elements);
    for (int at = STRIP_ID * strip; at < stop; at++) {
        const int line = at / out_w, plane = line / out_h;
        const int x0 = (at - line * out_w) * stride_w - pad_left;
        const int y0 = (line - plane * out_h) * stride_h - pad_top;
        const int first = plane * in_h * in_w;
        __global const float *in = input + ((ADDRESS)input_offset + first);
        float best = -INFINITY;
        int index = -1;
        for (int ky = 0; ky < kernel_h; ky++) {
            const int y = y0 + ky * dilation_h;
            if (y < 0 || y >= in_h) continue;
            for (int kx = 0; kx < kernel_w; kx++) {
                const int x = x0 + kx * dilation_w;
                if (x < 0 || x >= in_w) continue;
                const float value = in[y * in_w + x];
                if (index < 0 || value > best) {
                    best = value;
                    index = first + y * row_step + x * column_step;
                }
            }
        }
        output[output_offset + (ADDRESS)at] = ACTIVATE((float)index);
    }
}
