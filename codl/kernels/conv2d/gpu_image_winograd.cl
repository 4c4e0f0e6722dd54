// Winograd convolution F(TILE x TILE, 3x3) over images, in three kernels: the input's tiles are
// transformed, multiplied at every point, and transformed back. In between lie two images:
//
// points     height-major: column tile, row (point, in texel), 4 channels of a tile in a texel; or,
//            where WIDTH_MAJOR is defined, column tile / 4, row (point, in channel), 4 tiles of a
//            channel in a texel
// sums       height-major: column tile, row (point, out texel)
//
// SIDE           TILE + 2
// TILE           2 or 4 output pixels a side
// FILTER_IMAGE   defined where the filter is an image and not a buffer
// weight     (rows: out texel, point; columns: in channel, a multiple of 4; 4 output channels),
//            transformed; bias [out texel][4]
// tiles      are counted along rows of `tiles_w`; in_blocks and out_blocks are texels of a pixel

#include "conv2d/added.cl"
#include "conv2d/teams.cl"

#define POINTS (SIDE * SIDE)

#ifdef FILTER_IMAGE
#define FILTER_ARG IMAGE_IN
#define FILTER(channel, at) TEXEL(weight, channel, at)
#else
#define FILTER_ARG __global const WEIGHT *
#define FILTER(channel, at) WLOAD(weight + ((size_t)(at) * in_blocks * 4 + (channel)) * 4)
#endif

#define VALUE float4
#include "conv2d/winograd.cl"

// Both transforms, in place of d[0], d[step] ...
#define FROM(i) from[i]
#define PUT(i, value) d[(i) * step] = (value)

void to_points(float4 *d, int step)
{
    float4 from[SIDE];
    UNROLL for (int i = 0; i < SIDE; i++) from[i] = d[i * step];
    TO_POINTS(FROM, PUT)
}

void from_points(float4 *d, int step)
{
    float4 from[SIDE];
    UNROLL for (int i = 0; i < SIDE; i++) from[i] = d[i * step];
    FROM_POINTS(FROM, PUT)
}

// The column of a tile's pixel; one outside of the image where there is no such pixel.
#define COLUMN(x, y) ((x) >= 0 && (x) < in_w && (y) >= 0 && (y) < in_h ? first + (x) : OUTSIDE)

// A work-item: one tile x one texel of channels; or four tiles x one channel.
KERNEL void winograd_image_input(
    IMAGE_IN input, int input_column, int input_row, IMAGE_OUT points,
    int tiles, int tiles_w, int blocks, int in_h, int in_w, int pad_top, int pad_left)
{
    const int item = STRIP_ID, b = BLOCK_ID;
    float4 d[POINTS];
#ifdef WIDTH_MAJOR
    if (item * 4 >= tiles) return;
    const int first = input_column + b / 4 * in_w;
    float lanes[POINTS][4];
    for (int i = 0; i < 4; i++) {
        const int ty = (item * 4 + i) / tiles_w, tx = item * 4 + i - ty * tiles_w;
        for (int r = 0; r < SIDE; r++) {
            for (int c = 0; c < SIDE; c++) {
                const int y = ty * TILE - pad_top + r, x = tx * TILE - pad_left + c;
                const float4 texel = TEXEL(input, COLUMN(x, y), input_row + y);
                lanes[r * SIDE + c][i] = LANE_OF(texel, b % 4);
            }
        }
    }
    for (int p = 0; p < POINTS; p++) d[p] = vload4(0, lanes[p]);
#else
    if (item >= tiles) return;
    const int first = input_column + b * in_w;
    const int ty = item / tiles_w, tx = item - ty * tiles_w;
    UNROLL for (int r = 0; r < SIDE; r++) {
        UNROLL for (int c = 0; c < SIDE; c++) {
            const int y = ty * TILE - pad_top + r, x = tx * TILE - pad_left + c;
            d[r * SIDE + c] = TEXEL(input, COLUMN(x, y), input_row + y);
        }
    }
#endif
    UNROLL for (int r = 0; r < SIDE; r++) to_points(d + r * SIDE, 1);
    UNROLL for (int c = 0; c < SIDE; c++) to_points(d + c, SIDE);
    UNROLL for (int p = 0; p < POINTS; p++) TEXEL_SET(points, item, p * blocks + b, d[p]);
}

// Four tiles x one texel of output channels at one point, shared by TEAMS work-items. Texels of all
// points are one after the other.
KERNEL void winograd_image_product(
    IMAGE_IN points, IMAGE_OUT sums, FILTER_ARG weight, int tiles, int in_channels, int in_blocks,
    int out_blocks)
{
    const int item = STRIP_ID, point = (int)BLOCK_ID / out_blocks, o = (int)BLOCK_ID - point * out_blocks;
#if TEAMS > 1
    TEAM_PARTS(4)
#else
    if (item * 4 >= tiles) return;
#endif
    const int at = o * POINTS + point;
    float4 acc[4];
    UNROLL for (int i = 0; i < 4; i++) acc[i] = (float4)(0.0f);
#ifdef WIDTH_MAJOR
    for (int c = TEAM_FROM(in_channels); c < TEAM_TO(in_channels); c++) {
        const float4 x = TEXEL(points, item, point * in_channels + c), w = FILTER(c, at);
        acc[0] += x.s0 * w;
        acc[1] += x.s1 * w;
        acc[2] += x.s2 * w;
        acc[3] += x.s3 * w;
    }
#else
    for (int b = TEAM_FROM(in_blocks); b < TEAM_TO(in_blocks); b++) {
        const float4 w0 = FILTER(b * 4, at), w1 = FILTER(b * 4 + 1, at);
        const float4 w2 = FILTER(b * 4 + 2, at), w3 = FILTER(b * 4 + 3, at);
        UNROLL for (int i = 0; i < 4; i++) {
            const float4 x = TEXEL(points, item * 4 + i, point * in_blocks + b);
            acc[i] += x.s0 * w0;
            acc[i] += x.s1 * w1;
            acc[i] += x.s2 * w2;
            acc[i] += x.s3 * w3;
        }
    }
#endif
#if TEAMS > 1
    UNROLL for (int i = 0; i < 4; i++) TEAM_PUT(i, acc[i]);
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_TEAM_SUM(i, 4)
        if (item * 4 + i < tiles)
            TEXEL_SET(sums, item * 4 + i, point * out_blocks + o, TEAM_SUM(i));
#else
    UNROLL for (int i = 0; i < 4; i++)
        if (item * 4 + i < tiles)
            TEXEL_SET(sums, item * 4 + i, point * out_blocks + o, acc[i]);
#endif
}

// One tile x one texel of output channels.
KERNEL void winograd_image_output(
    IMAGE_IN sums, IMAGE_OUT output, int output_column, int output_row,
    __global const float *bias, int tiles, int tiles_w, int out_blocks, int out_h, int out_w
    ADDED_TEXEL_ARGS)
{
    const int tile = STRIP_ID, o = BLOCK_ID;
    if (tile >= tiles) return;
    const int ty = tile / tiles_w, tx = tile - ty * tiles_w;
    const float4 start = vload4(o, bias);
    float4 d[POINTS];
    UNROLL for (int p = 0; p < POINTS; p++) d[p] = TEXEL(sums, tile, p * out_blocks + o);
    UNROLL for (int c = 0; c < SIDE; c++) from_points(d + c, SIDE);
    UNROLL for (int r = 0; r < TILE; r++) {
        from_points(d + r * SIDE, 1);
        UNROLL for (int c = 0; c < TILE; c++) {
            const int y = ty * TILE + r, x = tx * TILE + c, column = o * out_w + x;
            const float4 value = d[r * SIDE + c] + start;
            if (y < out_h && x < out_w)
                TEXEL_SET(output, output_column + column, output_row + y,
                          ACTIVATE(value PLUS_ADDED_TEXEL(column, y)));
        }
    }
}
