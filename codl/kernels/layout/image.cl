// Image layout <-> planar layout, and image <-> blocked layout, for a region of a tensor.
//
// A work-item has `strip` pixels of one texel's channels. Sizes in pixels and channels:
//
// HALF, PLANAR_HALF   defined where the blocked, and the planar tensor is stored as half
// width          pixels of a row
// lead           channels of the first texel that lie before the region (image_to_planar)
// first          channels of the first block that lie before the region, a multiple of 4 (blocked)
// channels, pixels    of the region; its rows are contiguous in every layout but the image's
//
// What is written to an image is whole texels: its lanes beyond `channels` become zeros.

#include "layout/planar.cl"

#ifdef HALF
#define LOAD_4(p) FOUR_HALVES(p)
#define STORE_4(value, p) FOUR_HALVES_SET(value, p)
#else
#define LOAD_4(p) vload4(0, (p))
#define STORE_4(value, p) vstore4((value), 0, (p))
#endif

// The pixels of this work-item one by one, with their row and column.
#define EACH_PIXEL                                                                                 \
    for (int pixel = STRIP_ID * strip, y = pixel / width, x = pixel - y * width;                   \
         pixel < min((int)(STRIP_ID + 1) * strip, pixels);                                         \
         pixel++, x = x + 1 < width ? x + 1 : 0, y = x ? y : y + 1)

KERNEL void image_to_planar(
    IMAGE_IN input, int column, int row,
    __global PLANAR *planar, int planar_offset, int planar_stride,
    int strip, int width, int lead, int channels, int pixels)
{
    const int first = (int)BLOCK_ID * 4 - lead, from = column + BLOCK_ID * width;
    __global PLANAR *out = planar + (planar_offset + (long)first * planar_stride);
    EACH_PIXEL {
        const float4 texel = TEXEL(input, from + x, row + y);
        UNROLLED(i, 4, {
            if (first + i >= 0 && first + i < channels)
                PLANAR_SET(LANE_OF(texel, i), out + ((long)i * planar_stride + pixel)); })
    }
}

KERNEL void planar_to_image(
    __global const PLANAR *planar, int planar_offset, int planar_stride,
    IMAGE_OUT output, int column, int row,
    int strip, int width, int channels, int pixels)
{
    const int first = BLOCK_ID * 4, to = column + BLOCK_ID * width;
    __global const PLANAR *in = planar + (planar_offset + (long)first * planar_stride);
    EACH_PIXEL {
        float lanes[4];
        UNROLLED(i, 4, {
            lanes[i] = first + i < channels ? PLANAR_GET(in + ((long)i * planar_stride + pixel))
                                            : 0.0f; })
        TEXEL_SET(output, to + x, row + y, (float4)(lanes[0], lanes[1], lanes[2], lanes[3]));
    }
}

// The texel of this work-item in a blocked tensor.
#define IN_BLOCKED(data, offset, stride)                                                           \
    (BLOCK(data, offset, stride, (first + BLOCK_ID * 4) / V) + (first + BLOCK_ID * 4) % V)

KERNEL void blocked_to_image(
    __global const ELEMENT *input, int input_offset, int input_stride,
    IMAGE_OUT output, int column, int row, int strip, int width, int first, int pixels)
{
    __global const ELEMENT *in = IN_BLOCKED(input, input_offset, input_stride);
    const int to = column + BLOCK_ID * width;
    EACH_PIXEL TEXEL_SET(output, to + x, row + y, LOAD_4(in + pixel * V));
}

KERNEL void image_to_blocked(
    IMAGE_IN input, int column, int row,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int width, int first, int pixels)
{
    __global ELEMENT *out = IN_BLOCKED(output, output_offset, output_stride);
    const int from = column + BLOCK_ID * width;
    EACH_PIXEL {
        const float4 value = TEXEL(input, from + x, row + y);
        STORE_4(value, out + pixel * V);
    }
}
