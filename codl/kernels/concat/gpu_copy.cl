// Concatenation of channels: one launch for every input, in order.
//
// concat_blocks   for an input whose first output channel begins a block: whole blocks are copied.
//                 Lanes beyond its last channel land on the next input's, which comes later.
// concat_lanes    for any input: one channel of the output at a time, lane by lane.
//
// strip           pixels of one work-item
// first_block, first_channel   of the output, where this input begins
// channels        of this input; concat_lanes stores what zeros give in those beyond

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

KERNEL void concat_lanes(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int first_channel, int channels, int pixels)
{
    const int channel = BLOCK_ID, to = first_channel + channel;
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, to / V) + to % V;
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    int pixel = STRIP_ID * strip;
    if (channel >= channels) {
        for (; pixel < stop; pixel++) SET(ACTIVATE(0.0f), out, pixel * V);
        return;
    }
    __global const ELEMENT *in =
        BLOCK(input, input_offset, input_stride, channel / V) + channel % V;
    for (; pixel < stop; pixel++) SET(ACTIVATE(GET(in, pixel * V)), out, pixel * V);
}
