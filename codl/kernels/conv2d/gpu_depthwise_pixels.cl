// Depthwise convolution for GPUs: a work-item has PIXELS output pixels of one row of one block of
// channels, and neighbours have neighbouring pixels, so that small maps still fill the device.
//
// PIXELS, KERNEL_H, KERNEL_W, STRIDE_W, DILATION_W   shape the unrolled code
// SPAN       input columns under them
// weight     [block][KERNEL_H][KERNEL_W][V]
// bias       [block][V]
// tiles      of PIXELS pixels in one block, row_tiles in one row; other sizes in pixels

#include "conv2d/added.cl"
#include "window.cl"

__kernel void conv2d_depthwise_pixels(
    __global const ELEMENT *restrict input, int input_offset, int input_stride,
    __global ELEMENT *restrict output, int output_offset, int output_stride,
    __global const WEIGHT *restrict weight, __global const float *restrict bias, int blocks,
    int tiles, int row_tiles, WINDOW_ARGS, int input_apart, int output_apart ADDED_ALL_ARGS)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(output_offset, output_apart)
    ADDED_OF(IMAGE_ID)
    const int block = GLOBAL_ID(0) / tiles, tile = GLOBAL_ID(0) - block * tiles;
    if (block >= blocks) return;
    const int out_y = tile / row_tiles, out_x = (tile - out_y * row_tiles) * PIXELS;
    const int x0 = out_x * STRIDE_W - pad_left, y0 = out_y * stride_h - pad_top;
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, block);
    __global const WEIGHT *w = AT(weight, block * (KERNEL_H * KERNEL_W * V));

    REALV acc[PIXELS];
    UNROLLED(p, PIXELS, { acc[p] = TO_REALV(VLOAD(bias + block * V)); })
    UNROLLED(ky, KERNEL_H, {
        const int y = y0 + ky * dilation_h;
        if (y >= 0 && y < in_h) {
            __global const ELEMENT *row = AT(in, y * in_w * V);
            UNROLLED(c, SPAN, {
                LOAD_COLUMN(row, c)
                UNROLLED(kx, KERNEL_W, {
                    const int from = c - kx * DILATION_W;
                    if (from >= 0 && from % STRIDE_W == 0 && from / STRIDE_W < PIXELS)
                        acc[from / STRIDE_W] += column * RLOAD(AT(w, (ky * KERNEL_W + kx) * V));
                })
            })
        }
    })
    const int pixel = out_y * out_w + out_x;
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, block) + pixel * V;
    UNROLLED(p, PIXELS, {
        if (out_x + p < out_w)
            STORE(ACTIVATE(TO_VEC(acc[p]) PLUS_ADDED(block, pixel + p)), AT(out, p * V));
    })
}
