// Convolution to few channels: PIXELS output pixels of one row x all OUTS output channels. A vector
// holds input channels, not output channels, so that none of its lanes is idle; the sums over lanes
// are taken once, in the end.
//
// PIXELS, OUTS, STRIDE_W   shape the unrolled code; OUTS is at most V
// weight     [in block][kernel h][kernel w][OUTS][lane of in block], zeros beyond the last channel
// bias       [V]
// strip      tiles of one work-item; other sizes in pixels

#include "conv2d/added.cl"
#include "window.cl"

#if V == 4
#define HALVES(v) (v)
#elif V == 8
#define HALVES(v) ((v).lo + (v).hi)
#else
#define HALVES(v) ((v).lo.lo + (v).lo.hi + ((v).hi.lo + (v).hi.hi))
#endif

float sum_of_lanes(VEC v)
{
    const float4 four = HALVES(v);
    return (four.x + four.y) + (four.z + four.w);
}

#define INSIDE(c) LOAD(row + (c) * V)
#define AT_BORDER(c) (x + (c) >= 0 && x + (c) < in_w ? LOAD(row + (c) * V) : (VEC)(0.0f))
#define TAP(LOAD)                                                                                  \
    UNROLL for (int p = 0; p < PIXELS; p++) {                                                      \
        const VEC pixel = LOAD(p * STRIDE_W);                                                      \
        UNROLL for (int o = 0; o < OUTS; o++) acc[p][o] += pixel * weights[o];                     \
    }

KERNEL void conv2d_narrow(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int strip, int tiles,
    int in_blocks, WINDOW_ARGS ADDED_ARGS)
{
    const int row_tiles = (out_w + PIXELS - 1) / PIXELS;
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, 0);

    const int stop = min((int)(STRIP_ID + 1) * strip, tiles);
    for (int tile = STRIP_ID * strip; tile < stop; tile++) {
        const int out_y = tile / row_tiles, out_x = (tile - out_y * row_tiles) * PIXELS;
        const int x0 = out_x * STRIDE_W - pad_left, y0 = out_y * stride_h - pad_top;
        const int last = x0 + (PIXELS - 1) * STRIDE_W + (kernel_w - 1) * dilation_w;
        const int inside = x0 >= 0 && last < in_w;
        VEC acc[PIXELS][OUTS];
        UNROLL for (int p = 0; p < PIXELS; p++)
            UNROLL for (int o = 0; o < OUTS; o++) acc[p][o] = (VEC)(0.0f);

        __global const WEIGHT *w = weight;
        for (int b = 0; b < in_blocks; b++) {
            __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, b);
            for (int ky = 0; ky < kernel_h; ky++) {
                const int y = y0 + ky * dilation_h;
                if (y < 0 || y >= in_h) {
                    w += kernel_w * OUTS * V;
                    continue;
                }
                NO_UNROLL for (int kx = 0; kx < kernel_w; kx++, w += OUTS * V) {
                    const int x = x0 + kx * dilation_w;
                    __global const ELEMENT *row = in + (y * in_w + x) * V;
                    VEC weights[OUTS];
                    UNROLL for (int o = 0; o < OUTS; o++) weights[o] = WLOAD(w + o * V);
                    if (inside) TAP(INSIDE) else TAP(AT_BORDER)
                }
            }
        }

        UNROLL for (int p = 0; p < PIXELS; p++) {
            float sums[V];
            UNROLL for (int lane = 0; lane < V; lane++)
                sums[lane] = lane < OUTS ? sum_of_lanes(acc[p][min(lane, OUTS - 1)]) : 0.0f;
            const VEC value = CAT(vload, V)(0, sums) + VLOAD(bias);
            const int pixel = out_y * out_w + out_x + p;
            if (out_x + p < out_w) STORE(ACTIVATE(value PLUS_ADDED(0, pixel)), out + pixel * V);
        }
    }
}
