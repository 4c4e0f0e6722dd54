// Grouped convolution whose groups do not fill channel blocks: one output pixel x one block of V
// output channels, each lane with its own group. Slow, and there only so that any op runs.
//
// weight     [out channel][in channel of the group][kernel h][kernel w], as given
// bias       [out blocks][V]
// group_in, group_out   input and output channels of a group; other sizes in pixels

#include "conv2d/added.cl"
#include "window.cl"

KERNEL void conv2d_grouped(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int group_in, int group_out,
    int out_channels, int out_pixels, WINDOW_ARGS ADDED_ARGS)
{
    const int pixel = STRIP_ID, block = BLOCK_ID;
    if (pixel >= out_pixels) return;
    const int y0 = pixel / out_w * stride_h - pad_top, x0 = pixel % out_w * stride_w - pad_left;
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, block) + pixel * V;

    for (int lane = 0; lane < V; lane++) {
        const int channel = block * V + lane;
        float sum = bias[channel];
        if (channel < out_channels) {
            __global const WEIGHT *w = weight + (ADDRESS)channel * group_in * kernel_h * kernel_w;
            const int first = channel / group_out * group_in;
            for (int c = first; c < first + group_in; c++) {
                __global const ELEMENT *in =
                    BLOCK(input, input_offset, input_stride, c / V) + c % V;
                for (int ky = 0; ky < kernel_h; ky++) {
                    const int y = y0 + ky * dilation_h;
                    for (int kx = 0; kx < kernel_w; kx++, w++) {
                        const int x = x0 + kx * dilation_w;
                        if (y >= 0 && y < in_h && x >= 0 && x < in_w)
                            sum += GET(in, (y * in_w + x) * V) * WGET(w, 0);
                    }
                }
            }
        }
        SET(ACTIVATE(sum PLUS_ADDED_LANE(block, pixel, lane)), out, lane);
    }
}
