// Direct convolution over images: a work-item has PIXELS output pixels of one row x one texel of
// four output channels, `strip` times. Its pixels lie `tiles_w` apart, so that neighbours read
// neighbouring texels.
//
// PIXELS         pixels of a work-item's tile
// TEAMS          work-items that share a tile's sums: see teams.cl
// ONE_BY_ONE     defined where the window is one pixel and there is no padding
// weight     (rows: out texel, kernel h, kernel w; columns: in channel of the group, a multiple
//            of 4; 4 output channels): an image, I wide and ceil(O / 4) * H * W high
// bias       [out texel][4]
// in_blocks, out_blocks   texels of a pixel of one group; other sizes in pixels

#include "conv2d/added.cl"
#include "conv2d/teams.cl"
#include "window.cl"

#define SUMS_SHAPE [PIXELS]
#define SUM_AT [p]
#define EACH_SUM(body) UNROLLED(p, PIXELS, body)
#include "runs.cl"

#ifdef ONE_BY_ONE
#define KERNEL_H 1
#define KERNEL_W 1
// Pixels beyond the row read what lies there; they are not stored.
#define INSIDE(x) 1
#else
#define KERNEL_H kernel_h
#define KERNEL_W kernel_w
#define INSIDE(x) ((x) >= 0 && (x) < in_w)
#endif

KERNEL void conv2d_image(
    IMAGE_IN input, int input_column, int input_row,
    IMAGE_OUT output, int output_column, int output_row,
    IMAGE_IN weight, __global const float *bias, int strip, int tiles, int tiles_w,
    int in_blocks, int out_blocks, WINDOW_ARGS ADDED_TEXEL_ARGS)
{
    const int out_block = BLOCK_ID;
    const int first = input_column + out_block / out_blocks * in_blocks * in_w;
    const int stop = min((int)(STRIP_ID + 1) * strip, tiles);
#if TEAMS > 1
    // All work-items of a group meet in the end, and a strip is a tile: what is beyond the last one
    // computes something, and stores nothing.
    TEAM_PARTS(PIXELS)
    const int tile = STRIP_ID;
    {
#else
    for (int tile = STRIP_ID * strip; tile < stop; tile++) {
#endif
        const int out_y = tile / tiles_w, out_x = tile - out_y * tiles_w;
        const float4 start = TEAM == 0 ? vload4(out_block, bias) : (float4)(0.0f);
        float4 acc[PIXELS];
        UNROLLED(p, PIXELS, { acc[p] = start; })
        BEGIN_RUN

        for (int ky = 0; ky < KERNEL_H; ky++) {
            const int y = out_y * stride_h - pad_top + ky * dilation_h;
            if (y < 0 || y >= in_h) continue;
            for (int kx = 0; kx < KERNEL_W; kx++) {
                const int at = (out_block * KERNEL_H + ky) * KERNEL_W + kx;
                int columns[PIXELS];
                UNROLLED(p, PIXELS, {
                    const int x = (out_x + p * tiles_w) * stride_w - pad_left + kx * dilation_w;
                    columns[p] = INSIDE(x) ? first + x : OUTSIDE;
                })
                RUNS(b, TEAM_FROM(in_blocks), TEAM_TO(in_blocks), 4, {
                    const REALV w0 = RTEXEL(weight, b * 4, at);
                    const REALV w1 = RTEXEL(weight, b * 4 + 1, at);
                    const REALV w2 = RTEXEL(weight, b * 4 + 2, at);
                    const REALV w3 = RTEXEL(weight, b * 4 + 3, at);
                    UNROLLED(p, PIXELS, {
                        const REALV x = RTEXEL(input, columns[p] + b * in_w, input_row + y);
                        SUMS[p] += x.s0 * w0;
                        SUMS[p] += x.s1 * w1;
                        SUMS[p] += x.s2 * w2;
                        SUMS[p] += x.s3 * w3;
                    })
                })
            }
        }
        END_RUN

#if TEAMS > 1
        UNROLLED(p, PIXELS, { TEAM_PUT(p, acc[p]); })
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_TEAM_SUM(p, PIXELS) {
            const int x = out_x + p * tiles_w, column = out_block * out_w + x;
            if (x >= out_w || tile >= stop) continue;
            const float4 sum = TEAM_SUM(p) PLUS_ADDED_TEXEL(column, out_y);
            TEXEL_SET(output, output_column + column, output_row + out_y, ACTIVATE(sum));
        }
#else
        UNROLLED(p, PIXELS, {
            const int x = out_x + p * tiles_w;
            const int column = out_block * out_w + x;
            if (x < out_w)
                TEXEL_SET(output, output_column + column, output_row + out_y,
                          ACTIVATE(acc[p] PLUS_ADDED_TEXEL(column, out_y)));
        })
#endif
    }
}
