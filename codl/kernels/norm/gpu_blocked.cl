// Normalization of every channel of an image by itself, in blocks of channels, in two steps: sums
// over pieces of the pixels, then each piece with the sums of all. Where there are many pieces, their
// sums are first added up to those of fewer.
//
// CENTER         defined where the mean is subtracted
// AFFINE         defined where a scale and a bias follow, one pixel each
// sums           of a block, two vectors for every piece: of what is above the first pixel, squared
//                too. Sums from there lose no digits where a mean is large.
//
// parts          how many sums of a block are added up at last
//
// A CPU's piece is consecutive pixels; on a GPU neighbours take neighbouring pixels.

#ifdef CENTER
#define FIRST(in) LOAD(in)
#else
#define FIRST(in) ((VEC)(0.0f))
#endif
#ifdef ONE_ITEM
#define EACH_PIXEL(p)                                                                              \
    for (int p = piece * strip, stop = min(p + strip, pixels); p < stop; p++)
#else
#define EACH_PIXEL(p) for (int p = piece; p < pixels; p += pieces)
#endif

KERNEL void norm_sums(__global const ELEMENT *input, int input_offset, int input_stride,
                      __global float *sums, int pieces, int strip, int pixels)
{
    const int piece = STRIP_ID, block = BLOCK_ID;
    if (piece >= pieces) return;
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, block);
    const VEC first = FIRST(in);
    VEC sum = (VEC)(0.0f), squares = sum;
    EACH_PIXEL(p)
    {
        const VEC x = LOAD(in + p * V) - first;
        sum += x;
        squares += x * x;
    }
    __global float *out = sums + (ADDRESS)(block * pieces + piece) * 2 * V;
    CAT(vstore, V)(sum, 0, out);
    CAT(vstore, V)(squares, 1, out);
}

KERNEL void norm_fold(__global const float *sums, int pieces, __global float *folded, int parts)
{
    const int part = STRIP_ID, block = BLOCK_ID;
    if (part >= parts) return;
    __global const float *own = sums + (ADDRESS)block * pieces * 2 * V;
    VEC sum = (VEC)(0.0f), squares = sum;
    for (int i = part; i < pieces; i += parts) {
        sum += CAT(vload, V)(2 * i, own);
        squares += CAT(vload, V)(2 * i + 1, own);
    }
    __global float *out = folded + (ADDRESS)(block * parts + part) * 2 * V;
    CAT(vstore, V)(sum, 0, out);
    CAT(vstore, V)(squares, 1, out);
}

#include "norm/tensors.cl"

KERNEL void norm_channels(TENSORS, __global const float *sums, int parts, int pieces, int strip,
                          int pixels, float per_element, float epsilon)
{
    const int piece = STRIP_ID, block = BLOCK_ID;
    if (piece >= pieces) return;
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, block);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, block);
    __global const float *own = sums + (ADDRESS)block * parts * 2 * V;
    VEC sum = (VEC)(0.0f), squares = sum;
    for (int i = 0; i < parts; i++) {
        sum += CAT(vload, V)(2 * i, own);
        squares += CAT(vload, V)(2 * i + 1, own);
    }
    VEC mean = (VEC)(0.0f);
#ifdef CENTER
    const VEC above = sum * per_element;
    mean = LOAD(in) + above;
    squares -= sum * above;
#endif
    VEC slope = 1.0f / sqrt(AT_LEAST(squares * per_element, 0.0f) + epsilon), start = (VEC)(0.0f);
#ifdef AFFINE
    slope *= LOAD(BLOCK(scale, scale_offset, scale_stride, block));
    start = LOAD(BLOCK(bias, bias_offset, bias_stride, block));
#endif
    EACH_PIXEL(p)
    STORE(ACTIVATE((LOAD(in + p * V) - mean) * slope + start), out + p * V);
}
