// Transposed convolution: a tile of PIXELS output pixels x one block of V output channels stays in
// registers. The pixels of a tile lie in one row, `stride_w` apart, so that all of them have the
// same taps and their inputs are neighbours; taps of other phases of the stride are skipped.
//
// PIXELS      pixels of a tile
// DEPTHWISE   defined where every channel has a filter of its own
// weight      [out block][in block that it reaches][kernel h][kernel w][lane of in block][V]; of a
//             depthwise one [block][kernel h][kernel w][V]
// bias        [out blocks + 1][V]; the last block is the zeros that are read beside the input
// row_tiles   tiles of one phase of a row
// reach       input blocks that an output block reads at most; per_out, per_in: channels of a group
// crop_h, crop_w   rows and columns of the whole result before the output

#ifdef DEPTHWISE
#define WEIGHTS_A_TAP V
#define MULTIPLY                                                                                   \
    {                                                                                              \
        const VEC weights = WLOAD(w);                                                              \
        UNROLLED(p, PIXELS, { acc[p] += LOAD(source[p]) * weights; })               \
    }
#elif V == 4
#define WEIGHTS_A_TAP 16
#define MULTIPLY                                                                                   \
    {                                                                                              \
        const VEC w0 = WLOAD(w), w1 = WLOAD(w + 4), w2 = WLOAD(w + 8), w3 = WLOAD(w + 12);         \
        UNROLLED(p, PIXELS, {                                                  \
            const VEC x = LOAD(source[p]);                                                         \
            acc[p] += x.s0 * w0;                                                                   \
            acc[p] += x.s1 * w1;                                                                   \
            acc[p] += x.s2 * w2;                                                                   \
            acc[p] += x.s3 * w3;                                                                   \
        })                                                                                          \
    }
#else
#define WEIGHTS_A_TAP (V * V)
#define MULTIPLY                                                                                   \
    UNROLLED(lane, V, {                                                  \
        const VEC weights = WLOAD(w + lane * V);                                                   \
        UNROLLED(p, PIXELS, { acc[p] += GET(source[p], lane) * weights; })          \
    })
#endif

KERNEL void conv_transpose2d_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int strip, int tiles, int row_tiles,
    int in_blocks, int in_h, int in_w, int out_blocks, int out_w, int reach, int per_out,
    int per_in, int kernel_h, int kernel_w, int stride_h, int stride_w, int crop_h, int crop_w,
    int dilation_h, int dilation_w)
{
    const int out_block = BLOCK_ID;
    const int first_block = out_block * V / per_out * per_in / V;
    const int blocks = min(reach, in_blocks - first_block);
    __global const ELEMENT *zeros = (__global const ELEMENT *)(bias + out_blocks * V);
    __global const WEIGHT *weights_of_block =
        weight + (ADDRESS)out_block * reach * kernel_h * kernel_w * WEIGHTS_A_TAP;
    const VEC start = VLOAD(bias + out_block * V);

    const int stop = min((int)(STRIP_ID + 1) * strip, tiles);
    for (int tile = STRIP_ID * strip; tile < stop; tile++) {
        const int line = tile / row_tiles, first = (tile - line * row_tiles) * PIXELS;
        const int y = line / stride_w, phase = line - y * stride_w;
        VEC acc[PIXELS];
        UNROLLED(p, PIXELS, { acc[p] = start; })

        for (int ky = 0; ky < kernel_h; ky++) {
            const int down = y + crop_h - ky * dilation_h, in_y = down / stride_h;
            if (down < 0 || in_y >= in_h || in_y * stride_h != down) continue;
            for (int kx = 0; kx < kernel_w; kx++) {
                const int right = phase + crop_w - kx * dilation_w;
                const int floored = right >= 0 ? right : right - stride_w + 1;
                const int step = floored / stride_w, in_x = step + first;
                if (step * stride_w != right || in_x + PIXELS <= 0 || in_x >= in_w) continue;
                __global const WEIGHT *w =
                    weights_of_block + (ky * kernel_w + kx) * WEIGHTS_A_TAP;
                for (int b = 0; b < blocks; b++) {
                    __global const ELEMENT *row =
                        BLOCK(input, input_offset, input_stride, first_block + b) +
                        ((long)in_y * in_w + in_x) * V;  // from before the row at times
                    __global const ELEMENT *source[PIXELS];
                    UNROLLED(p, PIXELS, {
                        source[p] = in_x + p >= 0 && in_x + p < in_w ? row + p * V : zeros; })
                    MULTIPLY
                    w += kernel_h * kernel_w * WEIGHTS_A_TAP;
                }
            }
        }

        const int left = phase + first * stride_w;
        __global ELEMENT *out =
            BLOCK(output, output_offset, output_stride, out_block) + ((ADDRESS)y * out_w + left) * V;
        UNROLLED(p, PIXELS, {
            if (left + p * stride_w < out_w) STORE(ACTIVATE(acc[p]), out + p * stride_w * V); })
    }
}
