// Global pooling, for GPUs: a work-group has one block of channels and shares its pixels.
//
// ITEMS      work-items of a work-group, a power of two
// pixels     of the input, in each channel

#include "pooling/taps.cl"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void pool2d_global(
    __global const ELEMENT *restrict input, int input_offset, int input_stride,
    __global ELEMENT *restrict output, int output_offset, int output_stride, int pixels,
    int input_apart, int output_apart)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(output_offset, output_apart)
    __local VEC parts[ITEMS];
    const int item = LOCAL_ID(0), block = GROUP_ID(0);
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, block);

    VEC value = EMPTY;
    for (int pixel = item; pixel < pixels; pixel += ITEMS)
        value = COLLECT(value, LOAD(in + (ADDRESS)pixel * V));
    parts[item] = value;
    for (int left = ITEMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < left) parts[item] = COLLECT(parts[item], parts[item + left]);
    }
    if (item > 0) return;
    value = parts[0];
#ifndef MODE_MAX
    value /= (float)pixels;
#endif
    STORE(ACTIVATE(value), BLOCK(output, output_offset, output_stride, block));
}
