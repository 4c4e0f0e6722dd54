// Depthwise convolution: PIXELS output pixels of one row x one block of channels. Every input
// column under the tile is loaded once a window row and goes to all accumulators that it touches.
//
// PIXELS, KERNEL_W, STRIDE_W, DILATION_W   shape the unrolled code
// SPAN       input columns under a tile
// weight     [block][kernel h][KERNEL_W][V]
// bias       [block][V]
// strip      tiles of one work-item; other sizes in pixels

#include "conv2d/added.cl"
#include "window.cl"

// acc[p] += column * weight for every (pixel, tap) that looks at it; conditions are constants.
#define COLUMNS(DECLARE)                                                                           \
    UNROLLED(c, SPAN, {                                                                            \
        DECLARE(row, c)                                                                            \
        UNROLLED(kx, KERNEL_W, {                                                                   \
            const int from = c - kx * DILATION_W;                                                  \
            if (from >= 0 && from % STRIDE_W == 0 && from / STRIDE_W < PIXELS)                     \
                acc[from / STRIDE_W] += column * weights[kx];                                      \
        })                                                                                         \
    })

// A row of the input from the tile's first column on; or on a GPU from its own first.
#ifdef ONE_ITEM
#define ROW_AT(y) (in + ((y) * in_w + x0) * V)
#define INSIDE(row, c) const REALV column = RLOAD(row + (c) * V);
#define AT_BORDER(row, c)                                                                          \
    const REALV column =                                                                           \
        x0 + (c) >= 0 && x0 + (c) < in_w ? RLOAD(row + (c) * V) : (REALV)(0.0f);
#define ADD_ROW if (inside) COLUMNS(INSIDE) else COLUMNS(AT_BORDER)
#else
#define ROW_AT(y) AT(in, (y) * in_w * V)
#define ADD_ROW COLUMNS(LOAD_COLUMN)
#endif

KERNEL void conv2d_depthwise(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int strip, int tiles, WINDOW_ARGS,
    int input_apart, int output_apart ADDED_ALL_ARGS)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(output_offset, output_apart)
    ADDED_OF(IMAGE_ID)
    const int block = BLOCK_ID, row_tiles = (out_w + PIXELS - 1) / PIXELS;
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, block);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, block);
    __global const WEIGHT *block_weights = AT(weight, block * kernel_h * KERNEL_W * V);
    const REALV start = TO_REALV(VLOAD(bias + block * V));

    const int stop = min((int)(STRIP_ID + 1) * strip, tiles);
    for (int tile = STRIP_ID * strip; tile < stop; tile++) {
        const int out_y = tile / row_tiles, out_x = (tile - out_y * row_tiles) * PIXELS;
        const int x0 = out_x * STRIDE_W - pad_left, y0 = out_y * stride_h - pad_top;
        const int inside = x0 >= 0 && x0 + SPAN <= in_w;
        REALV acc[PIXELS];
        UNROLLED(p, PIXELS, { acc[p] = start; })

        for (int ky = 0; ky < kernel_h; ky++) {
            const int y = y0 + ky * dilation_h;
            if (y < 0 || y >= in_h) continue;
            __global const ELEMENT *row = ROW_AT(y);
            REALV weights[KERNEL_W];
            UNROLLED(kx, KERNEL_W, {
                weights[kx] = RLOAD(AT(block_weights, (ky * KERNEL_W + kx) * V)); })
            ADD_ROW
        }

        const int pixel = out_y * out_w + out_x;
        UNROLLED(p, PIXELS, {
            if (out_x + p < out_w)
                STORE(ACTIVATE(TO_VEC(acc[p]) PLUS_ADDED(block, pixel + p)),
                      AT(out, (pixel + p) * V)); })
    }
}
