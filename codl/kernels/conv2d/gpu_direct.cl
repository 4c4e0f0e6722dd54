// Direct convolution: a tile of PIXELS consecutive output pixels (over row ends) x OUTS blocks of V
// output channels stays in registers while the loop runs over input blocks, window and input lanes.
//
// A work-item has `strip` consecutive tiles of its output blocks, whose weights stay in cache.
// Pixels of one row share an input pointer, except EDGE pixels at either end. These, and all pixels
// of a tile over a row end, have their own, which points to zeros where a tap falls on padding.
//
// PIXELS     pixels of a tile
// OUTS       blocks of output channels of a work-item
// EDGE       on a CPU, pixels at either end of a tile that may see padding beside the input
// LANES      input channels, a constant only where there are very few
// STRIDE_W   horizontal stride of the window; elsewhere than on a CPU an argument
// TEAMS      work-items that share a tile's sums, where V is 4: see teams.cl
// FLAT       defined for windows of one pixel that take every pixel: no window, no padding
// weight     [out blocks / OUTS][in block][kernel h][kernel w][lane of in block][OUTS][V]; the last
//            input block has only the lanes that exist (rounded up to 4 where V is 4)
// bias       [out blocks + 1][V]; the last block is the zeros that padding reads
// in_channels, in_blocks, out_blocks   of one group; other sizes in pixels

#include "conv2d/added.cl"
#include "conv2d/teams.cl"
#include "window.cl"

#define SUMS_SHAPE [PIXELS][OUTS]
#define SUM_AT [p][o]
#define EACH_SUM(body) UNROLLED(p, PIXELS, { UNROLLED(o, OUTS, body) })
#include "runs.cl"

#ifndef STRIDE_W
#define STRIDE_W stride_w
#endif
#define LANES_AT_ONCE (V == 4)
#define STEP (STRIDE_W * V)
#define WEIGHTS (OUTS * V)

// SUMS[p][o] += input lane * its weights, for all lanes of a block; SOURCE(p) is pixel p's address.
#if LANES_AT_ONCE
#define MULTIPLY(SOURCE)                                                                           \
    REALV xs_[PIXELS];                                                                             \
    UNROLLED(p, PIXELS, { xs_[p] = RLOAD(SOURCE(p)); })                                            \
    MULTIPLY_BLOCK(xs_)
#define MULTIPLY_BLOCK(xs)                                                                         \
    UNROLLED(o, OUTS, {                                                                            \
        const REALV w0 = RLOAD(AT(w, o * V));                                                      \
        const REALV w1 = RLOAD(AT(w, WEIGHTS + o * V));                                            \
        const REALV w2 = RLOAD(AT(w, 2 * WEIGHTS + o * V));                                        \
        const REALV w3 = RLOAD(AT(w, 3 * WEIGHTS + o * V));                                        \
        UNROLLED(p, PIXELS, {                                                                      \
            SUMS[p][o] += xs[p].s0 * w0;                                                           \
            SUMS[p][o] += xs[p].s1 * w1;                                                           \
            SUMS[p][o] += xs[p].s2 * w2;                                                           \
            SUMS[p][o] += xs[p].s3 * w3;                                                           \
        })                                                                                         \
    })
#else
#if defined(HALF) && !defined(HALF_ARITHMETIC) && !defined(LANES)
// Halves become floats a pixel at a time: lane by lane that takes longer than the products.
#define FLOATS(SOURCE)                                                                             \
    float floats[PIXELS][V];                                                                       \
    UNROLL for (int p = 0; p < PIXELS; p++) CAT(vstore, V)(LOAD(SOURCE(p)), 0, floats[p]);
#define LANE_AT(SOURCE, p) floats[p][lane]
#else
#define FLOATS(SOURCE)
#define LANE_AT(SOURCE, p) RGET(SOURCE(p), lane)
#endif
#define LANE(SOURCE)                                                                               \
    {                                                                                              \
        REALV weights[OUTS];                                                                       \
        UNROLL for (int o = 0; o < OUTS; o++) weights[o] = RLOAD(w + lane * WEIGHTS + o * V);      \
        UNROLL for (int p = 0; p < PIXELS; p++) {                                                  \
            const REAL x = LANE_AT(SOURCE, p);                                                     \
            UNROLL for (int o = 0; o < OUTS; o++) SUMS[p][o] += x * weights[o];                    \
        }                                                                                          \
    }
#ifdef LANES
#define MULTIPLY(SOURCE)                                                                           \
    UNROLL for (int lane = 0; lane < LANES; lane++) LANE(SOURCE)
#else
// A full block is straight code: the exit of a loop of V rounds is often mispredicted.
#define MULTIPLY(SOURCE)                                                                           \
    FLOATS(SOURCE)                                                                                 \
    if (lanes == V) {                                                                              \
        UNROLL for (int lane = 0; lane < V; lane++) LANE(SOURCE)                                   \
    } else {                                                                                       \
        NO_UNROLL for (int lane = 0; lane < lanes; lane++) LANE(SOURCE)                            \
    }
#endif
#endif

#define IN_ROW(p)                                                                                  \
    ((p) < EDGE ? left[p] : (p) >= PIXELS - EDGE ? right[PIXELS - 1 - (p)] : row + (p) * STEP)
#define ANYWHERE(p) source[p]
#define ALL_IN_ROW(p) (row + (p) * V)
// Beyond the last pixel it is read again; what comes of it is not stored.
#define UP_TO_LAST(p) AT(block, min(pixel + (p), out_pixels - 1) * V)

KERNEL void conv2d_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int strip, int in_channels,
    int in_blocks, int all_blocks, int out_blocks, int out_pixels, WINDOW_ARGS ADDED_ARGS)
{
    const int out_block = BLOCK_ID * OUTS;
    const int first_block = out_block / out_blocks * in_blocks;
    const ADDRESS weights_per_item = (ADDRESS)kernel_h * kernel_w * WEIGHTS *
        ((in_blocks - 1) * V + (LANES_AT_ONCE ? V : in_channels - (in_blocks - 1) * V));
    __global const ELEMENT *zeros = (__global const ELEMENT *)(bias + all_blocks * V);
    const int stop = min((int)(STRIP_ID + 1) * strip * PIXELS, out_pixels);
#if TEAMS > 1
    // All work-items of a group meet in the end, and a strip is a tile: one without pixels computes
    // some, and stores none.
    TEAM_PARTS(PIXELS * OUTS)
    const int pixel = STRIP_ID * PIXELS;
    {
#else
    for (int pixel = STRIP_ID * strip * PIXELS; pixel < stop; pixel += PIXELS) {
#endif
#ifndef FLAT
        int out_x = pixel % out_w;
        const int x0 = out_x * STRIDE_W - pad_left, y0 = pixel / out_w * stride_h - pad_top;
        int xs[PIXELS], ys[PIXELS];  // where the window of each pixel begins
#ifdef ONE_ITEM
        const int last = (PIXELS - 1) * STRIDE_W;
        // Whether no tap's column lies beside the input for a pixel other than those at the ends.
        const int one_row = out_x + PIXELS <= out_w && x0 + EDGE * STRIDE_W >= 0 &&
            x0 + last + (kernel_w - 1) * dilation_w - EDGE * STRIDE_W < in_w;
        if (!one_row)
#endif
        {
            int x = x0, y = y0;
            UNROLLED(p, PIXELS, {
                xs[p] = x;
                ys[p] = pixel + p < out_pixels ? y : in_h;
                x += STRIDE_W;
                if (++out_x == out_w) {
                    out_x = 0;
                    x = -pad_left;
                    y += stride_h;
                }
            })
        }
#endif
        __global const WEIGHT *w = AT(weight, BLOCK_ID * weights_per_item);
#if TEAMS > 1
        w += TEAM_FROM(in_blocks) * kernel_h * kernel_w * V * WEIGHTS;
#endif
        VEC acc[PIXELS][OUTS];
        UNROLLED(o, OUTS, {
            const VEC start = TEAM == 0 ? VLOAD(bias + (out_block + o) * V) : (VEC)(0.0f);
            UNROLLED(p, PIXELS, { acc[p][o] = start; })
        })
        BEGIN_RUN

        for (int b = TEAM_FROM(in_blocks); b < TEAM_TO(in_blocks); b++) {
            __global const ELEMENT *block =
                BLOCK(input, input_offset, input_stride, first_block + b);
            const int lanes = LANES_AT_ONCE ? V : min(V, in_channels - b * V);
#if defined(FLAT) && defined(ONE_ITEM)
            if (pixel + PIXELS <= out_pixels) {
                __global const ELEMENT *row = block + pixel * V;
                MULTIPLY(ALL_IN_ROW)
            } else {
                MULTIPLY(UP_TO_LAST)
            }
            w += lanes * WEIGHTS;
            PRODUCTS(V)
#elif defined(FLAT)
            {
                MULTIPLY(UP_TO_LAST)
            }
            w = AT(w, lanes * WEIGHTS);
            PRODUCTS(V)
#elif !defined(ONE_ITEM)
            for (int ky = 0; ky < kernel_h; ky++) {
                for (int kx = 0; kx < kernel_w; kx++) {
                    // Loads without a branch: work-items in lockstep would take both ways.
                    REALV x[PIXELS];
                    UNROLLED(p, PIXELS, {
                        const int at_x = xs[p] + kx * dilation_w;
                        const int at_y = ys[p] + ky * dilation_h;
                        const int inside = ((uint)at_x < (uint)in_w) & ((uint)at_y < (uint)in_h);
                        const REALV read = RLOAD(AT(block, inside ? (at_y * in_w + at_x) * V : 0));
                        x[p] = inside ? read : (REALV)(0);
                    })
                    MULTIPLY_BLOCK(x)
                    w = AT(w, lanes * WEIGHTS);
                }
                PRODUCTS(kernel_w * V)
            }
#else
            for (int ky = 0; ky < kernel_h; ky++) {
                const int dy = ky * dilation_h, y = y0 + dy;
                if (one_row && (y < 0 || y >= in_h)) {
                    w += kernel_w * lanes * WEIGHTS;
                    continue;
                }
                for (int kx = 0; kx < kernel_w; kx++, w += lanes * WEIGHTS) {
                    const int dx = kx * dilation_w, x = x0 + dx;
                    if (one_row) {
                        __global const ELEMENT *row = block + (y * in_w + x) * V;
                        __global const ELEMENT *left[EDGE + 1], *right[EDGE + 1];
                        UNROLL for (int e = 0; e < EDGE; e++) {
                            left[e] = x + e * STRIDE_W >= 0 ? row + e * STEP : zeros;
                            right[e] = x + last - e * STRIDE_W < in_w
                                ? row + (PIXELS - 1 - e) * STEP : zeros;
                        }
                        MULTIPLY(IN_ROW)
                        continue;
                    }
                    __global const ELEMENT *source[PIXELS];
                    UNROLL for (int p = 0; p < PIXELS; p++) {
                        const int at_x = xs[p] + dx, at_y = ys[p] + dy;
                        const int inside =
                            at_x >= 0 && at_x < in_w && at_y >= 0 && at_y < in_h;
                        source[p] = inside ? block + (at_y * in_w + at_x) * V : zeros;
                    }
                    MULTIPLY(ANYWHERE)
                }
                PRODUCTS(kernel_w * V)
            }
#endif
        }
        END_RUN

#if TEAMS > 1
        UNROLLED(p, PIXELS, { UNROLLED(o, OUTS, { TEAM_PUT(p * OUTS + o, acc[p][o]); }) })
        barrier(CLK_LOCAL_MEM_FENCE);
        EACH_TEAM_SUM(i, PIXELS * OUTS) {
            const int o = out_block + i % OUTS, p = pixel + i / OUTS;
            if (p >= stop) continue;
            const VEC sum = TEAM_SUM(i) PLUS_ADDED(o, p);
            STORE(ACTIVATE(sum), BLOCK(output, output_offset, output_stride, o) + p * V);
        }
#else
        UNROLLED(o, OUTS, {
            __global ELEMENT *out =
                AT(BLOCK(output, output_offset, output_stride, out_block + o), pixel * V);
            UNROLLED(p, PIXELS, {
                if (pixel + p < stop)
                    STORE(ACTIVATE(acc[p][o] PLUS_ADDED(out_block + o, pixel + p)), AT(out, p * V));
            })
        })
#endif
    }
}
