// Pooling of one block of channels, `strip` pieces of an output row in a work-item.
//
// pool2d_rows    PIXELS pixels at a time: first every input column under them is collected over the
//                window's rows, then every pixel collects its columns
// pool2d_window  one pixel at a time, for windows that are too wide for that
//
// PIXELS, KERNEL_W, STRIDE_W, DILATION_W   shape the code of pool2d_rows; on a CPU KERNEL_H and
//                DILATION_H do, too
// SPAN           input columns under PIXELS pixels
// Sizes in pixels. An average over nothing is NaN and a maximum over nothing -infinity.

#include "window.cl"
#include "pooling/taps.cl"

#define TAPS(at, step, size, taps)                                                                 \
    max(STOP_TAP(at, step, size, taps) - FIRST_TAP(at, step), 0)

#ifdef PIXELS

// A CPU's compiler writes the rows out.
#ifndef KERNEL_H
#define KERNEL_H kernel_h
#define DILATION_H dilation_h
#endif

// Taps that an average is over.
#ifdef COUNT_PAD
#define COUNT(p) (KERNEL_H * KERNEL_W)
#else
#define COUNT(p)                                                                                   \
    (inside ? (bottom - top) * KERNEL_W                                                            \
            : max(bottom - top, 0) * TAPS(x0 + (p) * STRIDE_W, DILATION_W, in_w, KERNEL_W))
#endif

KERNEL void pool2d_rows(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int tiles, WINDOW_ARGS, int input_apart, int output_apart)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(output_offset, output_apart)
    const int row_tiles = (out_w + PIXELS - 1) / PIXELS;
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, BLOCK_ID);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, BLOCK_ID);

    const int stop = min((int)(STRIP_ID + 1) * strip, tiles);
    for (int tile = STRIP_ID * strip; tile < stop; tile++) {
        const int out_y = tile / row_tiles, out_x = (tile - out_y * row_tiles) * PIXELS;
        const int y0 = out_y * stride_h - pad_top, x0 = out_x * STRIDE_W - pad_left;
        const int top = FIRST_TAP(y0, DILATION_H);
        const int bottom = STOP_TAP(y0, DILATION_H, in_h, KERNEL_H);
        const int inside = x0 >= 0 && x0 + SPAN <= in_w;
        COLLECTED columns[SPAN];
        if (inside && top == 0 && bottom == KERNEL_H) {
            __global const ELEMENT *row = in + (y0 * in_w + x0) * V;
            UNROLLED(c, SPAN, { columns[c] = TAKE(row + c * V); })
            UNROLL for (int ky = 1; ky < KERNEL_H; ky++) {
                row += DILATION_H * in_w * V;
                UNROLLED(c, SPAN, { columns[c] = COLLECT(columns[c], TAKE(row + c * V)); })
            }
        } else {
            // Columns beside the input are read from its edge and dropped in the end.
            UNROLLED(c, SPAN, { columns[c] = EMPTY; })
            NO_UNROLL for (int ky = top; ky < bottom; ky++) {
                __global const ELEMENT *row = in + (y0 + ky * DILATION_H) * in_w * V;
                UNROLLED(c, SPAN, {
                    columns[c] =
                        COLLECT(columns[c], TAKE(row + clamp(x0 + c, 0, in_w - 1) * V));
                })
            }
            UNROLLED(c, SPAN, {
                if (x0 + c < 0 || x0 + c >= in_w) columns[c] = EMPTY;
            })
        }

        __global ELEMENT *to = out + (out_y * out_w + out_x) * V;
        UNROLLED(p, PIXELS, {
            COLLECTED value = columns[p * STRIDE_W];
            UNROLLED(kx, KERNEL_W, {
                if (kx > 0) value = COLLECT(value, columns[p * STRIDE_W + kx * DILATION_W]);
            })
            if (out_x + p < out_w) STORE(ACTIVATE(FINISH(value, COUNT(p))), to + p * V);
        })
    }
}

#else

KERNEL void pool2d_window(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int out_pixels, WINDOW_ARGS, int input_apart, int output_apart)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(output_offset, output_apart)
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, BLOCK_ID);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, BLOCK_ID);

    const int stop = min((int)(STRIP_ID + 1) * strip, out_pixels), step = dilation_w * V;
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
        const int out_y = pixel / out_w, out_x = pixel - out_y * out_w;
        const int y0 = out_y * stride_h - pad_top, x0 = out_x * stride_w - pad_left;
        const int top = FIRST_TAP(y0, dilation_h), left = FIRST_TAP(x0, dilation_w);
        const int rows = TAPS(y0, dilation_h, in_h, kernel_h);
        const int taps = TAPS(x0, dilation_w, in_w, kernel_w);
        // Four chains, so that none waits for the one before.
        COLLECTED v0 = EMPTY, v1 = EMPTY, v2 = EMPTY, v3 = EMPTY;
        for (int ky = top; ky < top + rows; ky++) {
            __global const ELEMENT *at =
                in + ((y0 + ky * dilation_h) * in_w + x0 + left * dilation_w) * V;
            int kx = 0;
            for (; kx + 4 <= taps; kx += 4, at += 4 * step) {
                v0 = COLLECT(v0, TAKE(at));
                v1 = COLLECT(v1, TAKE(at + step));
                v2 = COLLECT(v2, TAKE(at + 2 * step));
                v3 = COLLECT(v3, TAKE(at + 3 * step));
            }
            for (; kx < taps; kx++, at += step) v0 = COLLECT(v0, TAKE(at));
        }
#ifdef COUNT_PAD
        const int count = kernel_h * kernel_w;
#else
        const int count = rows * taps;
#endif
        const COLLECTED value = COLLECT(COLLECT(v0, v1), COLLECT(v2, v3));
        STORE(ACTIVATE(FINISH(value, count)), out + pixel * V);
    }
}

#endif
