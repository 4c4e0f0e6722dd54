// Winograd convolution F(TILE x TILE, 3x3) in three kernels: every tile's input to SIDE x SIDE
// points, a matrix product for each point (conv2d_gemm of gpu_gemm.cl), and the sums to outputs.
// For GPUs; V is 4. A work-item of the transforms has one channel of one tile, so that small maps
// still fill the device; neighbours have the four channels of a block.
//
// Tiles are those of several images, one behind the other: `image_tiles` of each.
//
// SIDE       TILE + 2
// SPLIT      defined where products are split
// TILE       rows and columns of a tile of outputs: 2, 4 or 6
// points     [point][in block][tile][4], the input of the products
// sums       [split][point][out block][tile][4], what the products leave

// Points and their weights stay floats where tensors are halves: the transform back enlarges what
// halves round off some twenty times, and weights at points may be too small for them.
#define FLOAT_FACTORS
#include "conv2d/gpu_gemm.cl"

#define VALUE float
#include "conv2d/winograd.cl"

__kernel void winograd_points(
    __global const ELEMENT *restrict input, int input_offset, int input_stride,
    __global float *restrict points, int tiles, int image_tiles, int tiles_w, int in_blocks,
    int in_h, int in_w, int pad_top, int pad_left, int input_apart)
{
    const int tile = GLOBAL_ID(0) / 4, lane = GLOBAL_ID(0) % 4;
    if (tile >= tiles) return;
    const int block = GLOBAL_ID(1), image = tile / image_tiles;
    const int own = tile - image * image_tiles, tile_y = own / tiles_w;
    const int y0 = tile_y * TILE - pad_top, x0 = (own - tile_y * tiles_w) * TILE - pad_left;
    input_offset += image * input_apart;
    __global const ELEMENT *in = AT(BLOCK(input, input_offset, input_stride, block), lane);
    const ADDRESS apart = (ADDRESS)in_blocks * tiles * 4;
    __global float *to = FLOAT_AT(points, ((ADDRESS)block * tiles + tile) * 4 + lane);
#define POINT_AT(i, c) FLOAT_AT(to, ((i) * SIDE + (c)) * apart)
    TRANSFORM_INPUT
}

// Adds to a row of sums what the other splits have of it. Without them there is no loop, and compilers
// bring in all rows at once: what takes long is waiting for them.
#ifdef SPLIT
#define ADD_SPLITS(i)                                                                              \
    for (int split = 1; split < splits; split++) {                                                 \
        __global const float *more = FLOAT_AT(from, split * (SIDE * SIDE) * apart);                \
        UNROLLED(j, SIDE, { row[j] += *FLOAT_AT(more, (i * SIDE + j) * apart); })                  \
    }
#else
#define ADD_SPLITS(i)
#endif

__kernel void winograd_outputs(
    __global const float *restrict sums, __global ELEMENT *restrict output, int output_offset,
    int output_stride, __global const float *restrict bias, int splits, int tiles,
    int image_tiles, int tiles_w, int out_blocks, int out_h, int out_w, int output_apart
    ADDED_ALL_ARGS)
{
    const int tile = GLOBAL_ID(0) / 4, lane = GLOBAL_ID(0) % 4;
    if (tile >= tiles) return;
    const int block = GLOBAL_ID(1), image = tile / image_tiles;
    const int own = tile - image * image_tiles, tile_y = own / tiles_w;
    const int y0 = tile_y * TILE, x0 = (own - tile_y * tiles_w) * TILE;
    output_offset += image * output_apart;
    ADDED_OF(image)
    const ADDRESS apart = (ADDRESS)out_blocks * tiles * 4;
    __global const float *from = FLOAT_AT(sums, ((ADDRESS)block * tiles + tile) * 4 + lane);

    float half_way[SIDE][TILE];
#define HALF_WAY(i) half_way[i][j]
#define KEEP_HALF(j, value) half_way[i][j] = (value)
#define KEEP_OUTPUT(i, value) column[i] = (value)
    UNROLLED(i, SIDE, {
        float row[SIDE];
        UNROLLED(j, SIDE, { row[j] = *FLOAT_AT(from, (i * SIDE + j) * apart); })
        ADD_SPLITS(i)
        FROM_POINTS(ROW, KEEP_HALF)
    })
    const float start = bias[block * 4 + lane];
    __global ELEMENT *out = AT(BLOCK(output, output_offset, output_stride, block), lane);
    UNROLLED(j, TILE, {
        float column[TILE];
        FROM_POINTS(HALF_WAY, KEEP_OUTPUT)
        UNROLLED(i, TILE, {
            const int pixel = (y0 + i) * out_w + x0 + j;
            if (y0 + i < out_h && x0 + j < out_w)
                SET(ACTIVATE(column[i] + start PLUS_ADDED_LANE(block, pixel, lane)), out,
                    (ADDRESS)pixel * 4);
        })
    })
}
