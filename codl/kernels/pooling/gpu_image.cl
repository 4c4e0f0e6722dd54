// Pooling over images: one output pixel x one texel of four channels at a time, `strip` pixels in a
// work-item.
//
// Sizes in pixels. An average over nothing is NaN and a maximum over nothing -infinity.

#include "window.cl"
#include "pooling/taps.cl"

KERNEL void pool2d_image(
    IMAGE_IN input, int input_column, int input_row,
    IMAGE_OUT output, int output_column, int output_row,
    int strip, int out_pixels, WINDOW_ARGS)
{
    const int from = input_column + BLOCK_ID * in_w, to = output_column + BLOCK_ID * out_w;
    const int stop = min((int)(STRIP_ID + 1) * strip, out_pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
        const int out_y = pixel / out_w, out_x = pixel - out_y * out_w;
        const int y0 = out_y * stride_h - pad_top, x0 = out_x * stride_w - pad_left;
        const int top = FIRST_TAP(y0, dilation_h), left = FIRST_TAP(x0, dilation_w);
        const int bottom = STOP_TAP(y0, dilation_h, in_h, kernel_h);
        const int right = STOP_TAP(x0, dilation_w, in_w, kernel_w);
        COLLECTED value = EMPTY;
        for (int ky = top; ky < bottom; ky++)
            for (int kx = left; kx < right; kx++)
                value = COLLECT(value, TAKE_TEXEL(input, from + x0 + kx * dilation_w,
                                                  input_row + y0 + ky * dilation_h));
#ifdef COUNT_PAD
        const int count = kernel_h * kernel_w;
#else
        const int count = max(bottom - top, 0) * max(right - left, 0);
#endif
        TEXEL_SET(output, to + out_x, output_row + out_y, ACTIVATE(FINISH(value, count)));
    }
}
