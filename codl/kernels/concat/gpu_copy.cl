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
    __global const float *input, int input_offset, int input_stride,
    __global float *output, int output_offset, int output_stride,
    int strip, int first_block, int pixels)
{
    __global const float *in = BLOCK(input, input_offset, input_stride, BLOCK_ID);
    __global float *out = BLOCK(output, output_offset, output_stride, first_block + BLOCK_ID);
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
        const VEC value = VLOAD(in + pixel * V);
        VSTORE(ACTIVATE(value), out + pixel * V);
    }
}

KERNEL void concat_lanes(
    __global const float *input, int input_offset, int input_stride,
    __global float *output, int output_offset, int output_stride,
    int strip, int first_channel, int channels, int pixels)
{
    const int channel = BLOCK_ID, to = first_channel + channel;
    __global float *out = BLOCK(output, output_offset, output_stride, to / V) + to % V;
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    int pixel = STRIP_ID * strip;
    if (channel >= channels) {
        for (; pixel < stop; pixel++) out[pixel * V] = ACTIVATE(0.0f);
        return;
    }
    __global const float *in =
        BLOCK(input, input_offset, input_stride, channel / V) + channel % V;
    for (; pixel < stop; pixel++) out[pixel * V] = ACTIVATE(in[pixel * V]);
}
