// Winograd convolution F(TILE x TILE, 3x3) in three kernels: every tile's input to POINTS x POINTS
// points, a matrix product for each point (conv2d_gemm of gpu_gemm.cl), and the sums to outputs.
// For GPUs; V is 4. A work-item of the transforms has one channel of one tile, so that small maps
// still fill the device; neighbours have the four channels of a block.
//
// Tiles are those of several images, one behind the other: `image_tiles` of each.
//
// TILE       rows and columns of a tile of outputs: 2, 4 or 6
// points     [point][in block][tile][4], the input of the products
// sums       [split][point][out block][tile][4], what the products leave

// Points and their weights stay floats where tensors are halves: the transform back enlarges what
// halves round off some twenty times, and weights at points may be too small for them.
#define FLOAT_FACTORS
#include "conv2d/gpu_gemm.cl"

#define POINTS (TILE + 2)

// Of POINTS inputs x(i), which lie in a row or column, their values at the points: p(i).
// Of the sums m(i) at the points, TILE outputs: r(i).
#if TILE == 2  // 0, 1, -1, infinity
#define TO_POINTS(p, x)                                                                            \
    p(0) = x(0) - x(2);                                                                            \
    p(1) = x(1) + x(2);                                                                            \
    p(2) = x(2) - x(1);                                                                            \
    p(3) = x(1) - x(3);
#define TO_OUTPUTS(r, m)                                                                           \
    r(0) = m(0) + m(1) + m(2);                                                                     \
    r(1) = m(1) - m(2) - m(3);
#elif TILE == 4  // 0, 1, -1, 2, -2, infinity
#define TO_POINTS(p, x)                                                                            \
    {                                                                                              \
        const float even1 = x(4) - 4.0f * x(2), odd1 = x(3) - 4.0f * x(1);                         \
        const float even2 = x(4) - x(2), odd2 = 2.0f * (x(3) - x(1));                              \
        p(0) = 4.0f * x(0) - 5.0f * x(2) + x(4);                                                   \
        p(1) = even1 + odd1;                                                                       \
        p(2) = even1 - odd1;                                                                       \
        p(3) = even2 + odd2;                                                                       \
        p(4) = even2 - odd2;                                                                       \
        p(5) = 4.0f * x(1) - 5.0f * x(3) + x(5);                                                   \
    }
#define TO_OUTPUTS(r, m)                                                                           \
    {                                                                                              \
        const float even1 = m(1) + m(2), odd1 = m(1) - m(2);                                       \
        const float even2 = m(3) + m(4), odd2 = m(3) - m(4);                                       \
        r(0) = m(0) + even1 + even2;                                                               \
        r(1) = odd1 + 2.0f * odd2;                                                                 \
        r(2) = even1 + 4.0f * even2;                                                               \
        r(3) = odd1 + 8.0f * odd2 + m(5);                                                          \
    }
#else  // 0, 1, -1, 2, -2, 1/2, -1/2, infinity
#define TO_POINTS(p, x)                                                                            \
    {                                                                                              \
        const float even1 = x(2) - 4.25f * x(4) + x(6), odd1 = x(1) - 4.25f * x(3) + x(5);         \
        const float even2 = 0.25f * x(2) - 1.25f * x(4) + x(6);                                    \
        const float odd2 = 0.5f * x(1) - 2.5f * x(3) + 2.0f * x(5);                                \
        const float even3 = 4.0f * x(2) - 5.0f * x(4) + x(6);                                      \
        const float odd3 = 2.0f * x(1) - 2.5f * x(3) + 0.5f * x(5);                                \
        p(0) = x(0) - x(6) + 5.25f * (x(4) - x(2));                                                \
        p(1) = even1 + odd1;                                                                       \
        p(2) = even1 - odd1;                                                                       \
        p(3) = even2 + odd2;                                                                       \
        p(4) = even2 - odd2;                                                                       \
        p(5) = even3 + odd3;                                                                       \
        p(6) = even3 - odd3;                                                                       \
        p(7) = x(7) - x(1) + 5.25f * (x(3) - x(5));                                                \
    }
#define TO_OUTPUTS(r, m)                                                                           \
    {                                                                                              \
        const float even1 = m(1) + m(2), odd1 = m(1) - m(2);                                       \
        const float even2 = m(3) + m(4), odd2 = m(3) - m(4);                                       \
        const float even3 = m(5) + m(6), odd3 = m(5) - m(6);                                       \
        r(0) = m(0) + even1 + even2 + even3;                                                       \
        r(1) = odd1 + 2.0f * odd2 + 0.5f * odd3;                                                   \
        r(2) = even1 + 4.0f * even2 + 0.25f * even3;                                               \
        r(3) = odd1 + 8.0f * odd2 + 0.125f * odd3;                                                 \
        r(4) = even1 + 16.0f * even2 + 0.0625f * even3;                                            \
        r(5) = odd1 + 32.0f * odd2 + 0.03125f * odd3 + m(7);                                       \
    }
#endif

__kernel void winograd_points(
    __global const ELEMENT *restrict input, int input_offset, int input_stride,
    __global float *restrict points, int tiles, int image_tiles, int tiles_w, int in_blocks,
    int in_h, int in_w, int pad_top, int pad_left, int input_apart)
{
    const int tile = get_global_id(0) / 4, lane = get_global_id(0) % 4;
    if (tile >= tiles) return;
    const int block = get_global_id(1), image = tile / image_tiles;
    const int own = tile - image * image_tiles, tile_y = own / tiles_w;
    const int y0 = tile_y * TILE - pad_top, x0 = (own - tile_y * tiles_w) * TILE - pad_left;
    input_offset += image * input_apart;
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, block) + lane;

    float half_way[POINTS][POINTS];
    UNROLL for (int i = 0; i < POINTS; i++) {
        const int y = y0 + i;
        float row[POINTS];
        UNROLL for (int j = 0; j < POINTS; j++) {
            const int x = x0 + j;
            const int inside = y >= 0 && y < in_h && x >= 0 && x < in_w;
            row[j] = inside ? GET(in, (size_t)(y * in_w + x) * 4) : 0.0f;
        }
#define ROW(j) row[j]
#define POINT(j) half_way[i][j]
        TO_POINTS(POINT, ROW)
    }
    const size_t apart = (size_t)in_blocks * tiles * 4;
    __global float *to = points + ((size_t)block * tiles + tile) * 4 + lane;
    UNROLL for (int j = 0; j < POINTS; j++) {
        float column[POINTS];
#define HALF_WAY(i) half_way[i][j]
#define COLUMN(i) column[i]
        TO_POINTS(COLUMN, HALF_WAY)
        UNROLL for (int i = 0; i < POINTS; i++) to[(i * POINTS + j) * apart] = column[i];
    }
}

__kernel void winograd_outputs(
    __global const float *restrict sums, __global ELEMENT *restrict output, int output_offset,
    int output_stride, __global const float *restrict bias, int splits, int tiles,
    int image_tiles, int tiles_w, int out_blocks, int out_h, int out_w, int output_apart
    ADDED_ALL_ARGS)
{
    const int tile = get_global_id(0) / 4, lane = get_global_id(0) % 4;
    if (tile >= tiles) return;
    const int block = get_global_id(1), image = tile / image_tiles;
    const int own = tile - image * image_tiles, tile_y = own / tiles_w;
    const int y0 = tile_y * TILE, x0 = (own - tile_y * tiles_w) * TILE;
    output_offset += image * output_apart;
    ADDED_OF(image)
    const size_t apart = (size_t)out_blocks * tiles * 4;
    __global const float *from = sums + ((size_t)block * tiles + tile) * 4 + lane;

    // All loads of a split at once: what takes long is waiting for them.
    float sum[POINTS][POINTS], half_way[POINTS][TILE];
    UNROLL for (int i = 0; i < POINTS * POINTS; i++) sum[i / POINTS][i % POINTS] = from[i * apart];
    for (int split = 1; split < splits; split++) {
        from += POINTS * POINTS * apart;
        UNROLL for (int i = 0; i < POINTS * POINTS; i++)
            sum[i / POINTS][i % POINTS] += from[i * apart];
    }
    UNROLL for (int i = 0; i < POINTS; i++) {
#define SUM(j) sum[i][j]
        TO_OUTPUTS(POINT, SUM)
    }
    const float start = bias[block * 4 + lane];
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, block) + lane;
    UNROLL for (int j = 0; j < TILE; j++) {
        float column[TILE];
        TO_OUTPUTS(COLUMN, HALF_WAY)
        UNROLL for (int i = 0; i < TILE; i++) {
            const int pixel = (y0 + i) * out_w + x0 + j;
            if (y0 + i < out_h && x0 + j < out_w)
                SET(ACTIVATE(column[i] + start PLUS_ADDED_LANE(block, pixel, lane)), out,
                    (size_t)pixel * 4);
        }
    }
}
