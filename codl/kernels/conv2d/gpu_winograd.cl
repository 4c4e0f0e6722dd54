// Winograd convolution: TILE x TILE outputs of SIDE x SIDE inputs through SIDE x SIDE products.
//
// Where a work-group is one work-item (a CPU), all is one kernel. A work-item loops over blocks of
// `most` tiles and for each one, in its own scratch memory,
//   1. transforms the input of the block's tiles            -> points, see POINT_PLACE
//   2. for each OUTS blocks of output channels, multiplies  -> sums   [OUTS][POINTS][tile][V]
//      at every point by the transformed weights and
//      transforms the sums back, adds the bias, stores.
// So little but the input, the output and the weights leaves the cache. Elsewhere the three steps
// are three kernels over all tiles at once, with points and sums of the whole image in scratch; a
// work-item transforms one channel of a tile, whose points stay in registers.
//
// SIDE, TILE, STRIDE, IN_PLACE   see winograd.cl
// TOGETHER   tiles that are multiplied at once, with their sums in registers
// OUTS       blocks of output channels that they are multiplied by at once; 1 in three kernels
// weight     [out blocks / OUTS][row and column of WEIGHT_SIDE points][in channel][OUTS][V],
//            transformed; zeros beyond the last block, and in three kernels up to whole blocks of inputs
// bias       [out block][V]
// most       tiles of a block, a multiple of TOGETHER; tiles are counted along rows of `tiles_w`
// item_floats   floats of scratch for each work-item (one kernel)

#include "conv2d/added.cl"
#include "conv2d/teams.cl"

#define POINTS (SIDE * SIDE)

// A function that is not inlined: the program builds in a third of the time, and runs as fast.
#define APART __attribute__((noinline))

#ifdef ONE_ITEM
#define VALUE VEC
#else
#define VALUE float
#endif
#if SIDE == 8
// Takes back what weights at 2 and -2 were enlarged by: a power of two, which rounds nothing off.
#define SMALL (1.0f / (1 << (TILE - 2)))
#endif
#include "conv2d/winograd.cl"

// The odd inputs of stride 2 all meet the same weights: the filter has fewer points than the input.
#define WEIGHT_SIDE (STRIDE == 2 ? TILE + 2 : SIDE)
#define WEIGHT_POINT(row, column)                                                                  \
    (min((row), WEIGHT_SIDE - 1) * WEIGHT_SIDE + min((column), WEIGHT_SIDE - 1))
#define WEIGHTS (OUTS * V)
#define WEIGHTS_AT(group, point)                                                                   \
    (((ADDRESS)(group) * WEIGHT_SIDE * WEIGHT_SIDE +                                                \
      WEIGHT_POINT((point) / SIDE, (point) % SIDE)) * in_channels * WEIGHTS)

// Tiles that are multiplied together lie together: points are [POINTS][tile / TOGETHER][in block]
// [tile % TOGETHER][V]. Strides from point to point, in floats, are odd numbers of vectors, so that
// points do not share sets of the cache.
#define POINT_PLACE(tile, block)                                                                   \
    (((tile) / TOGETHER * in_blocks + (block)) * TOGETHER + (tile) % TOGETHER)
#define POINT_STRIDE (((in_blocks * most) | 1) * V)
#define SUM_STRIDE ((most | 1) * V)

// Sums of TOGETHER tiles at one point times OUTS blocks of output channels.
#define MULTIPLY_TILES(points, weights, in_channels)                                               \
    VEC acc[TOGETHER][OUTS];                                                                       \
    UNROLLED(i, TOGETHER, { UNROLLED(o, OUTS, { acc[i][o] = (VEC)(0.0f); }) })                      \
    for (int left = (in_channels); left > 0; left -= V, points += TOGETHER * V) {                  \
        const int lanes = min(V, left);                                                            \
        NO_UNROLL for (int lane = 0; lane < lanes; lane++, weights += WEIGHTS) {                   \
            VEC of_lane[OUTS];                                                                     \
            UNROLLED(o, OUTS, { of_lane[o] = WLOAD(weights + o * V); })                             \
            UNROLLED(i, TOGETHER, {                                                                \
                const float x = points[i * V + lane];                                              \
                UNROLLED(o, OUTS, { acc[i][o] += x * of_lane[o]; })                                 \
            })                                                                                     \
        }                                                                                          \
    }

#ifdef ONE_ITEM

// Transforms the input block at `in` of the tile whose window begins at (y0, x0).
void transform_input(__global const ELEMENT *in, int y0, int x0, int in_h, int in_w,
                     __global float *points, int point_stride)
{
    VEC half_way[SIDE * SIDE];
    const int inside_x = x0 >= 0 && x0 + SIDE <= in_w;
    NO_UNROLL for (int r = 0; r < SIDE; r++) {
        VEC s[SIDE];
        const int y = y0 + r;
        const int inside_y = y >= 0 && y < in_h;
        __global const ELEMENT *row = in + (y * in_w + x0) * V;
        if (inside_y && inside_x) {
            UNROLL for (int c = 0; c < SIDE; c++) s[c] = LOAD(row + c * V);
        } else {
            UNROLL for (int c = 0; c < SIDE; c++)
                s[c] = inside_y && x0 + c >= 0 && x0 + c < in_w ? LOAD(row + c * V) : (VEC)(0.0f);
        }
#define X(c) s[c]
#define PUT(i, value) half_way[r * SIDE + (i)] = (value)
        TO_POINTS(X, PUT)
#undef X
#undef PUT
    }
    NO_UNROLL for (int c = 0; c < SIDE; c++) {
        __global float *to = points + (size_t)c * point_stride;
#define X(r) half_way[(r) * SIDE + c]
#define PUT(i, value) VSTORE((value), to + (size_t)((i) * SIDE) * point_stride)
        TO_POINTS(X, PUT)
#undef X
#undef PUT
    }
}

// Transforms the sums of one tile back and stores the rows and columns that exist.
void transform_output(__global const float *sums, int point_stride, VEC bias,
                      __global ELEMENT *out, int rows, int columns, int out_w ADDED_ARGS)
{
    VEC half_way[TILE * SIDE];
    NO_UNROLL for (int column = 0; column < SIDE; column++) {
        VEC s[SIDE];
        UNROLL for (int r = 0; r < SIDE; r++)
            s[r] = VLOAD(sums + (size_t)(r * SIDE + column) * point_stride);
#define SUM(p) s[p]
#define PUT(i, value) half_way[(i) * SIDE + column] = (value)
        FROM_POINTS(SUM, PUT)
#undef SUM
#undef PUT
    }
    NO_UNROLL for (int r = 0; r < rows; r++) {
        VEC d[TILE];
#define SUM(p) half_way[r * SIDE + (p)]
#define PUT(i, value) d[i] = (value) + bias
        FROM_POINTS(SUM, PUT)
#undef SUM
#undef PUT
        UNROLL for (int i = 0; i < TILE; i++)
            if (i < columns)
                STORE(ACTIVATE(d[i] PLUS_ADDED(0, r * out_w + i)), out + (r * out_w + i) * V);
    }
}


// Leaves the sums of blocks of output channels so many floats apart.
APART void product(__global const float *points, __global const WEIGHT *weights,
                   __global float *sums, int sums_apart, int in_channels)
{
    MULTIPLY_TILES(points, weights, in_channels)
    UNROLL for (int o = 0; o < OUTS; o++)
        UNROLL for (int i = 0; i < TOGETHER; i++)
            VSTORE(acc[i][o], sums + o * sums_apart + i * V);
}

KERNEL void conv2d_winograd(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, __global float *scratch,
    int item_floats, int most, int tiles, int tiles_w, int in_channels, int in_blocks,
    int out_blocks, int in_h, int in_w, int pad_top, int pad_left, int out_h, int out_w
    ADDED_ARGS)
{
    const int part = get_global_id(0), worker = get_global_id(1);
    const int groups = (out_blocks + OUTS - 1) / OUTS;
    const int first_group = part * groups / (int)get_global_size(0);
    const int stop_group = (part + 1) * groups / (int)get_global_size(0);
    const int point_stride = POINT_STRIDE, sum_stride = SUM_STRIDE;
    const int sums_apart = POINTS * sum_stride;
    __global float *all_points =
        scratch + (size_t)(worker * get_global_size(0) + part) * item_floats;
    __global float *all_sums = all_points + POINTS * point_stride;

    for (int first = worker * most; first < tiles; first += get_global_size(1) * most) {
        const int count = min(most, tiles - first);
        for (int b = 0; b < in_blocks; b++) {
            __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, b);
            for (int i = 0; i < count; i++) {
                const int ty = (first + i) / tiles_w, tx = first + i - ty * tiles_w;
                transform_input(in, ty * TILE * STRIDE - pad_top, tx * TILE * STRIDE - pad_left,
                                in_h, in_w, all_points + POINT_PLACE(i, b) * V, point_stride);
            }
        }

        for (int group = first_group; group < stop_group; group++) {
            for (int point = 0; point < POINTS; point++) {
                __global const WEIGHT *weights = weight + WEIGHTS_AT(group, point);
                __global const float *points = all_points + point * point_stride;
                __global float *sums = all_sums + point * sum_stride;
                for (int i = 0; i < count; i += TOGETHER)
                    product(points + i * in_blocks * V, weights, sums + i * V, sums_apart,
                            in_channels);
            }

            const int stop_out = min((group + 1) * OUTS, out_blocks);
            for (int o = group * OUTS; o < stop_out; o++) {
                __global const float *sums = all_sums + (o - group * OUTS) * sums_apart;
                const VEC of_block = VLOAD(bias + o * V);
                __global ELEMENT *out = BLOCK(output, output_offset, output_stride, o);
                for (int i = 0; i < count; i++) {
                    const int ty = (first + i) / tiles_w, tx = first + i - ty * tiles_w;
                    const int y = ty * TILE, x = tx * TILE;
                    transform_output(sums + i * V, sum_stride, of_block,
                                     out + (y * out_w + x) * V, min(out_h - y, TILE),
                                     min(out_w - x, TILE), out_w ADDED_FROM(o, y * out_w + x));
                }
            }
        }
    }
}

#else

#define HALF_WAY(p) half_way[r][p]

KERNEL void winograd_input(
    __global const ELEMENT *input, int input_offset, int input_stride, __global float *all_points,
    int most, int tiles, int tiles_w, int in_blocks, int in_h, int in_w, int pad_top, int pad_left)
{
    const int tile = STRIP_ID / V, lane = STRIP_ID % V, b = BLOCK_ID;
    if (tile >= tiles) return;
    const int ty = tile / tiles_w, y0 = ty * TILE * STRIDE - pad_top;
    const int x0 = (tile - ty * tiles_w) * TILE * STRIDE - pad_left;
    __global const ELEMENT *in = AT(BLOCK(input, input_offset, input_stride, b), lane);
    __global float *points = FLOAT_AT(all_points, POINT_PLACE(tile, b) * V + lane);
    const int point_stride = POINT_STRIDE;
#define POINT_AT(i, c) FLOAT_AT(points, ((i) * SIDE + (c)) * point_stride)
    TRANSFORM_INPUT
}

#if V == 4
#undef MULTIPLY_TILES
#define MULTIPLY_TILES(points, weights, in_channels)                                               \
    VEC acc[TOGETHER][1];                                                                          \
    UNROLLED(i, TOGETHER, { acc[i][0] = (VEC)(0.0f); })                                             \
    for (int left = (in_channels); left > 0; left -= V) {                                          \
        const VEC w0 = WLOAD(weights);                                                             \
        const VEC w1 = WLOAD(AT(weights, V));                                                      \
        const VEC w2 = WLOAD(AT(weights, 2 * V));                                                  \
        const VEC w3 = WLOAD(AT(weights, 3 * V));                                                  \
        UNROLLED(i, TOGETHER, {                                                                    \
            const VEC x = VLOAD(FLOAT_AT(points, i * V));                                          \
            acc[i][0] += x.s0 * w0;                                                                \
            acc[i][0] += x.s1 * w1;                                                                \
            acc[i][0] += x.s2 * w2;                                                                \
            acc[i][0] += x.s3 * w3;                                                                \
        })                                                                                         \
        points = FLOAT_AT(points, TOGETHER * V);                                                   \
        weights = AT(weights, V * V);                                                              \
    }
#endif

// TOGETHER tiles x one block of output channels at one point, shared by TEAMS work-items. Blocks of all
// points are one after the other.
KERNEL void winograd_product(
    __global const float *all_points, __global float *all_sums, __global const WEIGHT *weight,
    int most, int in_channels, int in_blocks, int out_blocks)
{
    const int point = BLOCK_ID / out_blocks, o = BLOCK_ID - point * out_blocks;
    const int tile = STRIP_ID * TOGETHER, first = TEAM_FROM(in_blocks);
#if TEAMS > 1
    TEAM_PARTS(TOGETHER)
    const int from = min(tile, most - TOGETHER);
#else
    if (tile >= most) return;
    const int from = tile;
#endif
    __global const WEIGHT *weights = weight + WEIGHTS_AT(o, point) + first * V * WEIGHTS;
    __global const float *points =
        all_points + (ADDRESS)point * POINT_STRIDE + (from * in_blocks + first * TOGETHER) * V;
    __global float *sums = all_sums + ((ADDRESS)o * POINTS + point) * SUM_STRIDE + tile * V;
    MULTIPLY_TILES(points, weights, min(in_channels, TEAM_TO(in_blocks) * V) - first * V)
#if TEAMS > 1
    UNROLLED(i, TOGETHER, { TEAM_PUT(i, acc[i][0]); })
    barrier(CLK_LOCAL_MEM_FENCE);
    if (tile < most)
        EACH_TEAM_SUM(i, TOGETHER) VSTORE(TEAM_SUM(i), sums + i * V);
#else
    UNROLLED(i, TOGETHER, { VSTORE(acc[i][0], FLOAT_AT(sums, i * V)); })
#endif
}

KERNEL void winograd_output(
    __global const float *all_sums, __global ELEMENT *output, int output_offset, int output_stride,
    __global const float *bias, int most, int tiles, int tiles_w, int out_h, int out_w ADDED_ARGS)
{
    const int tile = STRIP_ID / V, lane = STRIP_ID % V, o = BLOCK_ID;
    if (tile >= tiles) return;
    const int ty = tile / tiles_w, y0 = ty * TILE, x0 = (tile - ty * tiles_w) * TILE;
    const int sum_stride = SUM_STRIDE;
    __global const float *sums = FLOAT_AT(all_sums, o * POINTS * sum_stride + tile * V + lane);
    __global ELEMENT *out = AT(BLOCK(output, output_offset, output_stride, o), lane);
    const float start = bias[o * V + lane];
    float half_way[TILE][SIDE];
#define KEEP_DOWN(i, value) half_way[i][c] = (value)
#define KEEP_OUTPUT(i, value) row[i] = (value)
    UNROLLED(c, SIDE, {
        float column[SIDE];
        UNROLLED(r, SIDE, { column[r] = *FLOAT_AT(sums, (r * SIDE + c) * sum_stride); })
        FROM_POINTS(COLUMN, KEEP_DOWN)
    })
    UNROLLED(r, TILE, {
        float row[TILE];
        FROM_POINTS(HALF_WAY, KEEP_OUTPUT)
        UNROLLED(i, TILE, {
            const int pixel = (y0 + r) * out_w + x0 + i;
            if (y0 + r < out_h && x0 + i < out_w)
                SET(ACTIVATE(row[i] + start PLUS_ADDED_LANE(o, pixel, lane)), out, pixel * V);
        })
    })
}

#endif
