// Element-wise operators: one output pixel x one block of channels at a time, `strip` pixels in a
// work-item; over images (IMAGE is defined) one texel of four channels at a time.
//
// UNARY          defined where there is one input; the second one's arguments repeat the first's
// STRETCHED_i    defined where rows or columns of input i are stretched to the output's
// ONE_LANE_i     defined where input i has one channel, and all lanes take that
// CLEAR_BEYOND   defined where the function makes of zeros what may not get into lanes beyond the
//                last channel
// channels       of the output
// block_i, row_i, column_i   how far input i moves on for each of the output's: 0 where it stays

#include "eltwise/modes.cl"

#ifndef IMAGE

#ifdef STRETCHED_0
#define AT_0 (y * row_0 + x * column_0)
#else
#define AT_0 pixel
#endif
#ifdef STRETCHED_1
#define AT_1 (y * row_1 + x * column_1)
#else
#define AT_1 pixel
#endif
#ifdef ONE_LANE_0
#define TAKE_0(p) (REALV)(RGET((p), 0))
#else
#define TAKE_0(p) RLOAD(p)
#endif
#ifdef ONE_LANE_1
#define TAKE_1(p) (REALV)(RGET((p), 0))
#else
#define TAKE_1(p) RLOAD(p)
#endif

KERNEL void eltwise_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global const ELEMENT *other, int other_offset, int other_stride,
    __global ELEMENT *output, int output_offset, int output_stride, int strip,
    int channels, int pixels, int width,
    int block_0, int row_0, int column_0, int block_1, int row_1, int column_1,
    int input_apart, int other_apart, int output_apart)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(other_offset, other_apart)
    OF_IMAGE(output_offset, output_apart)
    __global const ELEMENT *a = BLOCK(input, input_offset, input_stride, BLOCK_ID * block_0);
    __global const ELEMENT *b = BLOCK(other, other_offset, other_stride, BLOCK_ID * block_1);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, BLOCK_ID);
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
#if defined(STRETCHED_0) || defined(STRETCHED_1)
        const int y = pixel / width, x = pixel - y * width;
#endif
        const REALV left = TAKE_0(a + AT_0 * V);
#ifdef UNARY
        const REALV right = left;
#else
        const REALV right = TAKE_1(b + AT_1 * V);
#endif
        const REALV value = RACTIVATE(COMBINE(left, right));
#ifdef CLEAR_BEYOND
        if ((BLOCK_ID + 1) * V > channels) {
            float lanes[V];
            CAT(vstore, V)(TO_VEC(value), 0, lanes);
            const int high = channels - (int)BLOCK_ID * V;
            for (int i = 0; i < V; i++) SET(i < high ? lanes[i] : 0.0f, out, pixel * V + i);
            continue;
        }
#endif
        RSTORE(value, out + pixel * V);
    }
}

#else

#ifdef ONE_LANE_0
#define TAKE_0(texel) (REALV)((texel).s0)
#else
#define TAKE_0(texel) (texel)
#endif
#ifdef ONE_LANE_1
#define TAKE_1(texel) (REALV)((texel).s0)
#else
#define TAKE_1(texel) (texel)
#endif

KERNEL void eltwise_image(
    IMAGE_IN input, int input_column, int input_row, IMAGE_IN other, int other_column,
    int other_row, IMAGE_OUT output, int output_column, int output_row, int strip, int channels,
    int pixels, int width,
    int block_0, int row_0, int column_0, int block_1, int row_1, int column_1)
{
    const int from_0 = input_column + BLOCK_ID * block_0, to = output_column + BLOCK_ID * width;
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
        const int y = pixel / width, x = pixel - y * width;
        const REALV left = TAKE_0(RTEXEL(input, from_0 + x * column_0, input_row + y * row_0));
#ifdef UNARY
        const REALV right = left;
#else
        const int from_1 = other_column + BLOCK_ID * block_1;
        const REALV right = TAKE_1(RTEXEL(other, from_1 + x * column_1, other_row + y * row_1));
#endif
        REALV value = RACTIVATE(COMBINE(left, right));
#ifdef CLEAR_BEYOND
        const int high = channels - (int)BLOCK_ID * 4;
        value = (REALV)(high > 0 ? value.s0 : 0, high > 1 ? value.s1 : 0, high > 2 ? value.s2 : 0,
                        high > 3 ? value.s3 : 0);
#endif
        RTEXEL_SET(output, to + x, output_row + y, value);
    }
}

#endif
