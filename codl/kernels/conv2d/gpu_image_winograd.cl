// Winograd convolution F(TILE x TILE, 3x3) over images, in three kernels: the input's tiles are
// transformed, multiplied at every point, and transformed back. In between lie two images:
//
// points     column tile, row (point, in texel), 4 channels of a tile in a texel
// sums       column tile, row (point, out texel)
//
// SIDE           TILE + 2
// TILE           2 or 4 output pixels a side
// weight     (rows: out texel, point; columns: in channel, a multiple of 4; 4 output channels),
//            transformed; bias [out texel][4]
// tiles      are counted along rows of `tiles_w`; in_blocks and out_blocks are texels of a pixel

#include "conv2d/added.cl"
#include "conv2d/teams.cl"

#define POINTS (SIDE * SIDE)
#define SUMS_SHAPE [4]
#define SUM_AT [i]
#define EACH_SUM(body) UNROLLED(i, 4, body)
#include "runs.cl"

#define VALUE float4
#include "conv2d/winograd.cl"

// The column of a tile's pixel; one outside of the image where there is no such pixel.
#define COLUMN_AT(x, y)                                                                            \
    (((uint)(x) < (uint)in_w) & ((uint)(y) < (uint)in_h) ? first + (x) : OUTSIDE)

// The texel of an input's pixel that a work-item has at row r and column c.
#define TILE_TEXEL(r, c) TEXEL(input, COLUMN_AT(x0 + (c), y0 + (r)), input_row + y0 + (r))

// A work-item: one tile x one texel of channels.
KERNEL void winograd_image_input(
    IMAGE_IN input, int input_column, int input_row, IMAGE_OUT points,
    int tiles, int tiles_w, int blocks, int in_h, int in_w, int pad_top, int pad_left)
{
    const int tile = STRIP_ID, b = BLOCK_ID, first = input_column + b * in_w;
    if (tile >= tiles) return;
    const int ty = tile / tiles_w;
    const int y0 = ty * TILE - pad_top, x0 = (tile - ty * tiles_w) * TILE - pad_left;
    float4 half_way[SIDE][SIDE];
#define KEEP_HALF(i, value) half_way[r][i] = (value)
#define DOWN_HALF_WAY(r) half_way[r][c]
#define KEEP_TEXEL(i, value) TEXEL_SET(points, tile, ((i) * SIDE + c) * blocks + b, value)
    // The even rows, and then the odd ones: points leave the registers as soon as their rows are there.
    UNROLLED(i, SIDE, {
        const int r = i < SIDE / 2 ? 2 * i : 2 * i + 1 - SIDE;
        float4 row[SIDE];
        UNROLLED(c, SIDE, { row[c] = TILE_TEXEL(r, c); })
        TO_POINTS(ROW, KEEP_HALF)
        if (i == SIDE / 2 - 1) UNROLLED(c, SIDE, { FIRST_POINT(DOWN_HALF_WAY, KEEP_TEXEL) })
        if (i == SIDE - 2) UNROLLED(c, SIDE, { INNER_POINTS(DOWN_HALF_WAY, KEEP_TEXEL) })
        if (i == SIDE - 1) UNROLLED(c, SIDE, { LAST_POINT(DOWN_HALF_WAY, KEEP_TEXEL) })
    })
}

// Four tiles x one texel of output channels at one point, shared by TEAMS work-items. Texels of all
// points are one after the other.
KERNEL void winograd_image_product(
    IMAGE_IN points, IMAGE_OUT sums, IMAGE_IN weight, int tiles, int in_blocks, int out_blocks)
{
    const int item = STRIP_ID, point = BLOCK_ID / out_blocks, o = BLOCK_ID - point * out_blocks;
#if TEAMS > 1
    TEAM_PARTS(4)
#else
    if (item * 4 >= tiles) return;
#endif
    const int at = o * POINTS + point;
    float4 acc[4];
    UNROLLED(i, 4, { acc[i] = (float4)(0.0f); })
    BEGIN_RUN
    RUNS(b, TEAM_FROM(in_blocks), TEAM_TO(in_blocks), 4, {
        const REALV w0 = RTEXEL(weight, b * 4, at);
        const REALV w1 = RTEXEL(weight, b * 4 + 1, at);
        const REALV w2 = RTEXEL(weight, b * 4 + 2, at);
        const REALV w3 = RTEXEL(weight, b * 4 + 3, at);
        UNROLLED(i, 4, {
            const REALV x = RTEXEL(points, item * 4 + i, point * in_blocks + b);
            SUMS[i] += x.s0 * w0;
            SUMS[i] += x.s1 * w1;
            SUMS[i] += x.s2 * w2;
            SUMS[i] += x.s3 * w3;
        })
    })
    END_RUN
#if TEAMS > 1
    UNROLLED(i, 4, { TEAM_PUT(i, acc[i]); })
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_TEAM_SUM(i, 4)
        if (item * 4 + i < tiles)
            TEXEL_SET(sums, item * 4 + i, point * out_blocks + o, TEAM_SUM(i));
#else
    UNROLLED(i, 4, {
        if (item * 4 + i < tiles)
            TEXEL_SET(sums, item * 4 + i, point * out_blocks + o, acc[i]);
    })
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
    float4 half_way[TILE][SIDE];
#define KEEP_DOWN(i, value) half_way[i][c] = (value)
#define HALF_WAY(c) half_way[r][c]
#define KEEP_OUTPUT(i, value) row[i] = (value) + start
    UNROLLED(c, SIDE, {
        float4 column[SIDE];
        UNROLLED(r, SIDE, { column[r] = TEXEL(sums, tile, (r * SIDE + c) * out_blocks + o); })
        FROM_POINTS(COLUMN, KEEP_DOWN)
    })
    UNROLLED(r, TILE, {
        float4 row[TILE];
        const int y = ty * TILE + r;
        FROM_POINTS(HALF_WAY, KEEP_OUTPUT)
        UNROLLED(c, TILE, {
            const int x = tx * TILE + c;
            const int at = o * out_w + x;
            if (y < out_h && x < out_w)
                TEXEL_SET(output, output_column + at, output_row + y,
                          ACTIVATE(row[c] PLUS_ADDED_TEXEL(at, y)));
        })
    })
}
