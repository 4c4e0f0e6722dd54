// Fully connected over an image: a work-item has one texel of four outputs, or a slice of its
// inputs where SLICES > 1; the slices of a texel are one work-group (local size TOGETHER x SLICES),
// summed through local memory.
//
// TOGETHER, SLICES   shape of a work-group
// weight     [pixel][in channel, a multiple of 4][out texel][4], so that neighbours read
//            neighbouring addresses; a buffer, because images are too small for it
// bias       [out texel][4]
// width, pixels      of the input; in_blocks and out_blocks are texels of a pixel

// Four products are summed as halves where they are multiplied so, and then as floats.
#ifdef HALF_ARITHMETIC
#define SUM four
#define BEGIN_FOUR half4 four = (half4)(0.0f);
#define END_FOUR sum += convert_float4(four);
#else
#define SUM sum
#define BEGIN_FOUR
#define END_FOUR
#endif

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
        const REALV value = RTEXEL(input, input_column + b * width + x, input_row + y);
        BEGIN_FOUR
        SUM += value.s0 * RLOAD(w);
        SUM += value.s1 * RLOAD(AT(w, step));
        SUM += value.s2 * RLOAD(AT(w, 2 * step));
        SUM += value.s3 * RLOAD(AT(w, 3 * step));
        END_FOUR
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
