// Grouped convolution over images whose groups do not fill texels: one output pixel x one texel of
// four output channels, each with its own group. Slow, and there only so that any op runs.
//
// weight     [out channel][in channel of the group][kernel h][kernel w], as given
// bias       [out texel][4]
// group_in, group_out   input and output channels of a group; other sizes in pixels

#include "conv2d/added.cl"
#include "window.cl"

KERNEL void conv2d_image_grouped(
    IMAGE_IN input, int input_column, int input_row,
    IMAGE_OUT output, int output_column, int output_row,
    __global const WEIGHT *weight, __global const float *bias, int group_in, int group_out,
    int out_channels, int out_pixels, WINDOW_ARGS ADDED_TEXEL_ARGS)
{
    const int pixel = STRIP_ID, block = BLOCK_ID;
    if (pixel >= out_pixels) return;
    const int out_y = pixel / out_w, out_x = pixel - out_y * out_w;
    const int y0 = out_y * stride_h - pad_top, x0 = out_x * stride_w - pad_left;

    float4 value = (float4)(0.0f);
    for (int lane = 0; lane < 4; lane++) {
        const int channel = block * 4 + lane;
        float sum = bias[channel];
        __global const WEIGHT *w = weight + (ADDRESS)channel * group_in * kernel_h * kernel_w;
        const int first = channel / group_out * group_in;
        const int stop = channel < out_channels ? first + group_in : first;
        for (int c = first; c < stop; c++) {
            for (int ky = 0; ky < kernel_h; ky++) {
                for (int kx = 0; kx < kernel_w; kx++, w++) {
                    const int y = y0 + ky * dilation_h, x = x0 + kx * dilation_w;
                    if (y < 0 || y >= in_h || x < 0 || x >= in_w) continue;
                    const float4 texel =
                        TEXEL(input, input_column + c / 4 * in_w + x, input_row + y);
                    sum += LANE_OF(texel, c % 4) * WGET(w, 0);
                }
            }
        }
        value = (float4)(value.s123, sum);  // in the end all lanes are in their places
    }
    const int column = block * out_w + out_x;
    TEXEL_SET(output, output_column + column, output_row + out_y,
              ACTIVATE(value PLUS_ADDED_TEXEL(column, out_y)));
}
