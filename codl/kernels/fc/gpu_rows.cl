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
    const int item = get_local_id(0), first = get_group_id(0) * OUTPUTS;
    const int image = get_global_id(1) * IMAGES;
    __global const WEIGHT *rows = weight + (size_t)first * steps * V;
    // Beyond the last image there is the last one again.
    size_t from[IMAGES];
    UNROLL for (int n = 0; n < IMAGES; n++)
        from[n] = (size_t)min(image + n, images - 1) * input_apart * V;

    VEC sums[IMAGES][OUTPUTS];
    UNROLL for (int n = 0; n < IMAGES; n++)
        UNROLL for (int i = 0; i < OUTPUTS; i++) sums[n][i] = (VEC)(0.0f);
    for (int step = item; step < steps; step += ITEMS) {
        const int block = step / pixels, pixel = step - block * pixels;
        __global const ELEMENT *at = BLOCK(input, input_offset, input_stride, block) + pixel * V;
        VEC x[IMAGES];
        UNROLL for (int n = 0; n < IMAGES; n++) x[n] = LOAD(at + from[n]);
        UNROLL for (int i = 0; i < OUTPUTS; i++) {
            const VEC row = WLOAD(rows + ((size_t)i * steps + step) * V);
            UNROLL for (int n = 0; n < IMAGES; n++) sums[n][i] += x[n] * row;
        }
    }
    UNROLL for (int n = 0; n < IMAGES; n++) {
        UNROLL for (int i = 0; i < OUTPUTS; i++) {
            float lanes[V], sum = 0.0f;
            CAT(vstore, V)(sums[n][i], 0, lanes);
            UNROLL for (int lane = 0; lane < V; lane++) sum += lanes[lane];
            parts[n * OUTPUTS + i][item] = sum;
        }
    }
    for (int left = ITEMS / 2; left > 0; left /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        UNROLL for (int i = 0; i < IMAGES * OUTPUTS; i++)
            if (item < left) parts[i][item] += parts[i][item + left];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int n = item / OUTPUTS, channel = first + item - n * OUTPUTS;
    if (n < IMAGES && image + n < images && channel < outputs) {
        __global ELEMENT *out = BLOCK(output, output_offset, output_stride, channel / V) +
            (size_t)(image + n) * output_apart * V;
        SET(ACTIVATE(parts[item][0] + bias[channel]), out, channel % V);
    }
}
