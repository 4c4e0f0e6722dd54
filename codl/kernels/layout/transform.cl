// Blocked layout <-> planar layout for a region of a tensor.
//
// A work-item has `strip` chunks of V pixels of one block. A chunk is a V x V matrix that is
// transposed in registers. The last chunk begins early enough to be full and does some pixels
// again. Sizes in pixels and channels:
//
// HALF, PLANAR_HALF   defined where the blocked, and the planar tensor is stored as half
// lead           lanes of the first block that lie before the region
// channels, pixels    of the region; its rows are contiguous in either layout
// zero_to        lanes of the last block up to which zeros are stored (to_blocked)

#include "layout/planar.cl"

// Channel `i` of the block at pixel `at`; lanes before the region lie before the planar buffer.
#define ROW(i, at) (planar + (row + (long)(i) * planar_stride + (at)))

KERNEL void to_planar(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global PLANAR *planar, int planar_offset, int planar_stride,
    int strip, int lead, int channels, int pixels, int input_apart, int planar_apart)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(planar_offset, planar_apart)
    const int block = BLOCK_ID;
    const int low = max(lead - block * V, 0);
    const int high = min(lead + channels - block * V, V);
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, block);
    const long row = planar_offset + (long)(block * V - lead) * planar_stride;

    const int stop = min((int)(STRIP_ID + 1) * strip * V, pixels);
    int at = STRIP_ID * strip * V;
    for (; at < stop && pixels >= V; at += V) {
        at = min(at, pixels - V);
        VEC m[V], t[V];
        UNROLLED(i, V, { m[i] = LOAD(in + (at + i) * V); })
        TRANSPOSE
        if (low == 0 && high == V) {
            UNROLLED(i, V, { PLANAR_STORE(m[i], ROW(i, at)); })
        } else {
            UNROLLED(i, V, {
                if (i >= low && i < high) PLANAR_STORE(m[i], ROW(i, at)); })
        }
    }
    for (; at < stop; at++)
        for (int i = low; i < high; i++) PLANAR_SET(GET(in, at * V + i), ROW(i, at));
}

KERNEL void to_blocked(
    __global const PLANAR *planar, int planar_offset, int planar_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int lead, int channels, int pixels, int zero_to, int planar_apart,
    int output_apart)
{
    OF_IMAGE(planar_offset, planar_apart)
    OF_IMAGE(output_offset, output_apart)
    const int block = BLOCK_ID;
    const int low = max(lead - block * V, 0);
    const int high = min(lead + channels - block * V, V);
    const int zeros = lead + channels - block * V <= V ? max(zero_to, high) : high;
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, block);
    const long row = planar_offset + (long)(block * V - lead) * planar_stride;

    const int stop = min((int)(STRIP_ID + 1) * strip * V, pixels);
    int at = STRIP_ID * strip * V;
    if (low == 0 && zeros == V) {
        for (; at < stop && pixels >= V; at += V) {
            at = min(at, pixels - V);
            VEC m[V], t[V];
            if (high == V) {
                UNROLLED(i, V, { m[i] = PLANAR_LOAD(ROW(i, at)); })
            } else {
                UNROLLED(i, V, {
                    m[i] = i < high ? PLANAR_LOAD(ROW(i, at)) : (VEC)(0.0f); })
            }
            TRANSPOSE
            UNROLLED(i, V, { STORE(m[i], out + (at + i) * V); })
        }
    }
    // A block whose other lanes belong to somebody else is written lane by lane.
    for (; at < stop; at++) {
        for (int i = low; i < high; i++) SET(PLANAR_GET(ROW(i, at)), out, at * V + i);
        for (int i = high; i < zeros; i++) SET(0.0f, out, at * V + i);
    }
}

// Planar to planar, one channel of the region at a time; `strip` chunks of V pixels.
KERNEL void copy_planar(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global PLANAR *planar, int planar_offset, int planar_stride, int strip, int pixels,
    int input_apart, int planar_apart)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(planar_offset, planar_apart)
    __global const ELEMENT *in = input + (input_offset + (ADDRESS)BLOCK_ID * input_stride);
    __global PLANAR *out = planar + (planar_offset + (ADDRESS)BLOCK_ID * planar_stride);
    const int stop = min((int)(STRIP_ID + 1) * strip * V, pixels);
    int at = STRIP_ID * strip * V;
    // By vectors: a compiler that vectorises over work-items leaves a loop, and its functions, scalar.
    for (; at + V <= stop; at += V) {
        const VEC value = PLOAD(in + at);
        PLANAR_STORE(ACTIVATE(value), out + at);
    }
    for (; at < stop; at++) PLANAR_SET(ACTIVATE(GET(in, at)), out + at);
}
