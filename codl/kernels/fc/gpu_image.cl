// Fully connected over an image: a work-item has one texel of four outputs, or a slice of its
// inputs where SLICES > 1; the slices of a texel are one work-group (local size TOGETHER x SLICES),
// summed through local memory.
//
// TOGETHER, SLICES   shape of a work-group
// weight     [pixel][in channel, a multiple of 4][out texel][4], so that neighbours read
//            neighbouring addresses; a buffer, because images are too small for it
// bias       [out texel][4]
// width, pixels      of the input; in_blocks and out_blocks are texels of a pixel

KERNEL void fc_image(
    IMAGE_IN input, int input_column, int input_row,
    IMAGE_OUT output, int output_column, int output_row,
    __global const WEIGHT *weight, __global const float *bias, int width, int pixels,
    int in_blocks, int out_blocks)
{
    const int o = GLOBAL_ID(0), slice = GLOBAL_ID(1);
    const ADDRESS step = (ADDRESS)out_blocks * 4;
    float4 sum = (float4)(0.0f);
    int x = 0, y = 0, b = slice;
    for (int i = slice; o < out_blocks && i < pixels * in_blocks; i += SLICES, b += SLICES) {
        for (; b >= in_blocks; b -= in_blocks) {
            if (++x == width) {
                x = 0;
                y++;
            }
        }
        __global const WEIGHT *w = AT(weight, i * 4 * step + o * 4);
        const float4 value = TEXEL(input, input_column + b * width + x, input_row + y);
        sum += value.s0 * WLOAD(w);
        sum += value.s1 * WLOAD(AT(w, step));
        sum += value.s2 * WLOAD(AT(w, 2 * step));
        sum += value.s3 * WLOAD(AT(w, 3 * step));
    }
#if SLICES > 1
    __local float4 parts[SLICES][TOGETHER];
    const int mine = LOCAL_ID(0);
    parts[slice][mine] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) return;
    for (int i = 1; i < SLICES; i++) sum += parts[i][mine];
#endif
    if (o < out_blocks) {
        sum += vload4(o, bias);
        TEXEL_SET(output, output_column + o, output_row, ACTIVATE(sum));
    }
}
