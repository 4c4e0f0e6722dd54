// Fully connected, for GPUs: a work-group has OUTPUTS rows of the matrix and reads them side by
// side in long runs, which is what it takes to stream the weights at the speed of the memory.
//
// OUTPUTS    rows of a work-group
// ITEMS      work-items of a work-group, a power of two and at least OUTPUTS
// weight     [output][step][V], a step being a pixel of a channel block; zeros beyond the last
//            channel, rows beyond the last output up to a multiple of OUTPUTS and V
// bias       [output]
// pixels     of the input, in each channel
// outputs    rounded up to whole blocks

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void fc_rows(
    __global const float *restrict input, int input_offset, int input_stride,
    __global float *restrict output, int output_offset, int output_stride,
    __global const float *restrict weight, __global const float *restrict bias, int pixels,
    int steps, int outputs)
{
    __local float parts[OUTPUTS][ITEMS];
    const int item = get_local_id(0), first = get_group_id(0) * OUTPUTS;
    __global const float *rows = weight + (size_t)first * steps * V;

    VEC sums[OUTPUTS];
    UNROLL for (int i = 0; i < OUTPUTS; i++) sums[i] = (VEC)(0.0f);
    for (int step = item; step < steps; step += ITEMS) {
        const int block = step / pixels, pixel = step - block * pixels;
        const VEC x = VLOAD(BLOCK(input, input_offset, input_stride, block) + (size_t)pixel * V);
        UNROLL for (int i = 0; i < OUTPUTS; i++)
            sums[i] += x * VLOAD(rows + ((size_t)i * steps + step) * V);
    }
    UNROLL for (int i = 0; i < OUTPUTS; i++) {
        float lanes[V], sum = 0.0f;
        CAT(vstore, V)(sums[i], 0, lanes);
        UNROLL for (int lane = 0; lane < V; lane++) sum += lanes[lane];
        parts[i][item] = sum;
    }
    for (int left = ITEMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < left)
            UNROLL for (int i = 0; i < OUTPUTS; i++) parts[i][item] += parts[i][item + left];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int channel = first + item;
    if (item < OUTPUTS && channel < outputs)
        BLOCK(output, output_offset, output_stride, channel / V)[channel % V] =
            ACTIVATE(parts[item][0] + bias[channel]);
}
