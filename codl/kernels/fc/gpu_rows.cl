// Fully connected, for GPUs: a work-group has OUTPUTS rows of the matrix and reads them side by
// side in long runs, which is what it takes to stream the weights at the speed of the memory. It
// multiplies them by IMAGES images; the second dimension has the others.
//
// OUTPUTS    rows of a work-group
// IMAGES     images of a work-group; with OUTPUTS no more sums than ITEMS
// ITEMS      work-items of a work-group, a power of two and at least OUTPUTS
// weight     [output][step][V], a step being a pixel of a channel block; zeros beyond the last
//            channel, rows beyond the last output up to a multiple of OUTPUTS and V
// bias       [output]
// pixels     of the input, in each channel
// outputs    rounded up to whole blocks
// apart      pixels from an image to the next, of the input and of the output

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void fc_rows(
    __global const ELEMENT *restrict input, int input_offset, int input_stride,
    __global ELEMENT *restrict output, int output_offset, int output_stride,
    __global const WEIGHT *restrict weight, __global const float *restrict bias, int pixels,
    int steps, int outputs, int images, int input_apart, int output_apart)
{
    __local float parts[IMAGES * OUTPUTS][ITEMS];
    const int item = LOCAL_ID(0), first = GROUP_ID(0) * OUTPUTS;
    const int image = GLOBAL_ID(1) * IMAGES;
    __global const WEIGHT *rows = weight + (ADDRESS)first * steps * V;
    // Beyond the last image there is the last one again.
    ADDRESS from[IMAGES];
    UNROLLED(n, IMAGES, {
        from[n] = (ADDRESS)min(image + n, images - 1) * input_apart * V; })

    VEC sums[IMAGES][OUTPUTS];
    UNROLLED(n, IMAGES, {
        UNROLLED(i, OUTPUTS, { sums[n][i] = (VEC)(0.0f); }) })
    for (int step = item; step < steps; step += ITEMS) {
        const int block = step / pixels, pixel = step - block * pixels;
        __global const ELEMENT *at = BLOCK(input, input_offset, input_stride, block) + pixel * V;
        VEC x[IMAGES];
        UNROLLED(n, IMAGES, { x[n] = LOAD(AT(at, from[n])); })
        UNROLLED(i, OUTPUTS, {
            const VEC row = WLOAD(AT(rows, ((ADDRESS)i * steps + step) * V));
            UNROLLED(n, IMAGES, { sums[n][i] += x[n] * row; })
        })
    }
    UNROLLED(n, IMAGES, {
        UNROLLED(i, OUTPUTS, {
            float lanes[V];
            float sum = 0.0f;
            CAT(vstore, V)(sums[n][i], 0, lanes);
            UNROLLED(lane, V, { sum += lanes[lane]; })
            parts[n * OUTPUTS + i][item] = sum;
        })
    })
    for (int left = ITEMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (int i = 0; i < IMAGES * OUTPUTS; i++)
            if (item < left) parts[i][item] += parts[i][item + left];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int n = item / OUTPUTS, channel = first + item - n * OUTPUTS;
    if (n < IMAGES && image + n < images && channel < outputs) {
        __global ELEMENT *out = BLOCK(output, output_offset, output_stride, channel / V) +
            (ADDRESS)(image + n) * output_apart * V;
        SET(ACTIVATE(parts[item][0] + bias[channel]), out, channel % V);
    }
}
