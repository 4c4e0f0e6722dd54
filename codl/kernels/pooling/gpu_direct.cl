// Pooling: one output pixel x one block of channels at a time, `strip` pixels in a work-item.
//
// MODE_MAX              maximum; otherwise the average over what lies inside the input, or over the
//                       whole window where COUNT_PAD is defined
// KERNEL_H, KERNEL_W    the window where it is small enough to be unrolled; arguments otherwise
// Sizes in pixels. An average over nothing is NaN and a maximum over nothing -infinity.

#ifdef MODE_MAX
#define EMPTY (-INFINITY)
#define COLLECT(a, b) max((a), (b))
#else
#define EMPTY 0.0f
#define COLLECT(a, b) ((a) + (b))
#endif

#ifdef KERNEL_H
#define WINDOW_LOOP UNROLL
#else
#define KERNEL_H kernel_h
#define KERNEL_W kernel_w
#define WINDOW_LOOP
#endif

// First and one past the last tap of a window that begins at `at` and may leave 0 ... size.
#define FIRST_TAP(at, step) ((at) < 0 ? (-(at) + (step) - 1) / (step) : 0)
#define STOP_TAP(at, step, size, taps) min((taps), max(((size) - (at) + (step) - 1) / (step), 0))

KERNEL void pool2d_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int in_h, int in_w, int out_w, int out_pixels, int kernel_h, int kernel_w,
    int stride_h, int stride_w, int pad_top, int pad_left, int dilation_h, int dilation_w)
{
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, BLOCK_ID);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, BLOCK_ID);
    const int inner_h = in_h - (KERNEL_H - 1) * dilation_h;
    const int inner_w = in_w - (KERNEL_W - 1) * dilation_w;

    const int stop = min((int)(STRIP_ID + 1) * strip, out_pixels);
    int pixel = STRIP_ID * strip, out_y = pixel / out_w, out_x = pixel - out_y * out_w;
    for (; pixel < stop; pixel++) {
        const int y0 = out_y * stride_h - pad_top, x0 = out_x * stride_w - pad_left;
        VEC value = (VEC)(EMPTY);
        int count = KERNEL_H * KERNEL_W;
        if (y0 >= 0 && y0 < inner_h && x0 >= 0 && x0 < inner_w) {
            __global const ELEMENT *row = in + (y0 * in_w + x0) * V;
            WINDOW_LOOP for (int ky = 0; ky < KERNEL_H; ky++)
                WINDOW_LOOP for (int kx = 0; kx < KERNEL_W; kx++)
                    value = COLLECT(value,
                                    LOAD(row + (ky * dilation_h * in_w + kx * dilation_w) * V));
        } else {
            const int top = FIRST_TAP(y0, dilation_h), left = FIRST_TAP(x0, dilation_w);
            const int bottom = STOP_TAP(y0, dilation_h, in_h, KERNEL_H);
            const int right = STOP_TAP(x0, dilation_w, in_w, KERNEL_W);
            for (int ky = top; ky < bottom; ky++)
                for (int kx = left; kx < right; kx++)
                    value = COLLECT(value, LOAD(in + ((y0 + ky * dilation_h) * in_w + x0 +
                                                       kx * dilation_w) * V));
            count = max(bottom - top, 0) * max(right - left, 0);
        }
#ifdef COUNT_PAD
        count = KERNEL_H * KERNEL_W;
#endif
#ifndef MODE_MAX
        value /= (float)count;
#endif
        STORE(ACTIVATE(value), out + pixel * V);
        if (++out_x == out_w) {
            out_x = 0;
            out_y++;
        }
    }
}
