// Concatenation of channels: one launch for every input, in order.
//
// concat_blocks    for an input whose first output channel begins a block: whole blocks are copied.
//                  Lanes beyond its last channel land on the next input's, which comes later.
// concat_shifted   for one that begins at lane `shift` of a block: every block of the output is made
//                  of two of the input. Lanes before the first channel keep what they hold.
//
// strip            pixels of one work-item
// first_block      of the output, where this input begins
// in_blocks        of this input; beyond them are zeros

KERNEL void concat_blocks(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int first_block, int pixels)
{
    __global const ELEMENT *in = BLOCK(input, input_offset, input_stride, BLOCK_ID);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, first_block + BLOCK_ID);
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
        const VEC value = LOAD(in + pixel * V);
        STORE(ACTIVATE(value), out + pixel * V);
    }
}

#if V == 4
#define LANES ((uint4)(0, 1, 2, 3))
#elif V == 8
#define LANES ((uint8)(0, 1, 2, 3, 4, 5, 6, 7))
#else
#define LANES ((uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#endif
// The lanes that end up at `shift` and after it come from the second block.
#define SHIFTED(before, at) ACTIVATE(shuffle2((before), (at), mask))

KERNEL void concat_shifted(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int first_block, int shift, int in_blocks, int pixels)
{
    const int block = BLOCK_ID;
    const CAT(uint, V) mask = LANES + (uint)(V - shift);
    __global const ELEMENT *before = BLOCK(input, input_offset, input_stride, block - 1);
    __global const ELEMENT *at = BLOCK(input, input_offset, input_stride, block);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, first_block + block);

    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    int pixel = STRIP_ID * strip;
    if (block == 0) {
        const CAT(int, V) keep = CAT(convert_int, V)(LANES) < shift;
        for (; pixel < stop; pixel++) {
            const VEC value = LOAD(at + pixel * V), kept = LOAD(out + pixel * V);
            STORE(select(SHIFTED(value, value), kept, keep), out + pixel * V);
        }
    } else if (block == in_blocks) {
        for (; pixel < stop; pixel++) {
            const VEC value = LOAD(before + pixel * V);
            STORE(SHIFTED(value, (VEC)(0.0f)), out + pixel * V);
        }
    } else {
        for (; pixel < stop; pixel++) {
            const VEC first = LOAD(before + pixel * V), second = LOAD(at + pixel * V);
            STORE(SHIFTED(first, second), out + pixel * V);
        }
    }
}
