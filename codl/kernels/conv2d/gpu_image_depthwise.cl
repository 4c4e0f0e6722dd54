// Depthwise convolution over images: a work-item has PIXELS output pixels of one row x one texel of
// four channels, `strip` times. Its pixels lie `tiles_w` apart, so that neighbours read
// neighbouring texels.
//
// PIXELS         pixels of a work-item's tile
// weight     (rows: texel of channels; columns: kernel h, kernel w; 4 channels), an image
// bias       [texel][4]; other sizes in pixels

#include "conv2d/added.cl"
#include "window.cl"

KERNEL void conv2d_image_depthwise(
    IMAGE_IN input, int input_column, int input_row,
    IMAGE_OUT output, int output_column, int output_row,
    IMAGE_IN weight, __global const float *bias, int strip, int tiles, int tiles_w,
    WINDOW_ARGS ADDED_TEXEL_ARGS)
{
    const int block = BLOCK_ID, first = input_column + block * in_w;
    const REALV start = TO_REALV(vload4(block, bias));

    const int stop = min((int)(STRIP_ID + 1) * strip, tiles);
    for (int tile = STRIP_ID * strip; tile < stop; tile++) {
        const int out_y = tile / tiles_w, out_x = tile - out_y * tiles_w;
        REALV acc[PIXELS];
        int xs[PIXELS];
        UNROLLED(p, PIXELS, {
            acc[p] = start;
            xs[p] = (out_x + p * tiles_w) * stride_w - pad_left;
        })

        for (int ky = 0; ky < kernel_h; ky++) {
            const int y = out_y * stride_h - pad_top + ky * dilation_h;
            if (y < 0 || y >= in_h) continue;
            for (int kx = 0; kx < kernel_w; kx++) {
                const REALV w = RTEXEL(weight, ky * kernel_w + kx, block);
                UNROLLED(p, PIXELS, {
                    const int x = xs[p] + kx * dilation_w;
                    const int column = (uint)x < (uint)in_w ? first + x : OUTSIDE;
                    acc[p] += RTEXEL(input, column, input_row + y) * w;
                })
            }
        }

        UNROLLED(p, PIXELS, {
            const int x = out_x + p * tiles_w;
            const int column = block * out_w + x;
            if (x < out_w)
                TEXEL_SET(output, output_column + column, output_row + out_y,
                          ACTIVATE(TO_VEC(acc[p]) PLUS_ADDED_TEXEL(column, out_y)));
        })
    }
}
