// Fully connected: a matrix-vector product that reads every weight once, in long streams.
//
// A work-item has OUTS blocks of V outputs, or a slice of their inputs where SLICES > 1; the slices
// of a block are one work-group (local size TOGETHER x SLICES), summed through local memory.
//
// OUTS       blocks of outputs of a work-item, each a stream of weights of its own
// TOGETHER   work-items whose weights alternate, so that neighbours read neighbouring addresses
// SLICES     work-items that share the inputs of the same outputs
// weight     [out blocks / TOGETHER][step][TOGETHER][V], a step being an input element in the order
//            (channel block, pixel, lane); lanes that exist, rounded up to a multiple of 4
// bias       [out blocks][V]
// pixels     of the input, in each channel

#define STEP (TOGETHER * V)

// sums[o] += x[i] * weights, for `length` inputs and every stream; four chains each.
void add_products(__global const ELEMENT *x, __global const WEIGHT *w, size_t stream, int first,
                  int length, VEC sums[OUTS][4])
{
    NO_UNROLL for (int i = first; i < length; i += 4 * SLICES) {
        UNROLL for (int lane = 0; lane < 4; lane++)
            UNROLL for (int o = 0; o < OUTS; o++)
                sums[o][lane] += GET(x, i + lane) * WLOAD(w + o * stream + (size_t)(i + lane) * STEP);
    }
}

KERNEL void fc_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int in_channels, int pixels,
    int steps, int out_blocks)
{
    const int out_block = get_global_id(0) * OUTS, slice = get_global_id(1);
    const size_t stream = (size_t)steps * STEP;
    __global const WEIGHT *w =
        weight + (out_block / TOGETHER) * stream + out_block % TOGETHER * V;
#if SLICES > 1
    __local VEC parts[OUTS][SLICES][TOGETHER];
#endif
    VEC sums[OUTS][4];
    UNROLL for (int o = 0; o < OUTS; o++)
        UNROLL for (int lane = 0; lane < 4; lane++) sums[o][lane] = (VEC)(0.0f);

    if (out_block < out_blocks) {
        // Full blocks are one run of floats each, or all of them; of the last one each pixel has a
        // run.
        const int full = in_channels / V, lanes = (in_channels - full * V + 3) / 4 * 4;
        const int dense = input_stride == pixels, length = (dense ? full : 1) * pixels * V;
        for (int b = 0; b < full; b += dense ? full : 1, w += (size_t)length * STEP)
            add_products(BLOCK(input, input_offset, input_stride, b), w, stream, 4 * slice, length,
                         sums);
        __global const ELEMENT *last = BLOCK(input, input_offset, input_stride, full);
        for (int pixel = 0; lanes && pixel < pixels; pixel++, w += lanes * STEP)
            add_products(last + pixel * V, w, stream, 4 * slice, lanes, sums);
    }

    VEC all[OUTS];
    UNROLL for (int o = 0; o < OUTS; o++)
        all[o] = (sums[o][0] + sums[o][1]) + (sums[o][2] + sums[o][3]);
#if SLICES > 1
    const int mine = get_local_id(0);
    UNROLL for (int o = 0; o < OUTS; o++) parts[o][slice][mine] = all[o];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) return;
    UNROLL for (int o = 0; o < OUTS; o++)
        for (int i = 1; i < SLICES; i++) all[o] += parts[o][i][mine];
#endif
    UNROLL for (int o = 0; o < OUTS; o++) {
        if (out_block + o < out_blocks) {
            const VEC sum = all[o] + VLOAD(bias + (out_block + o) * V);
            STORE(ACTIVATE(sum), BLOCK(output, output_offset, output_stride, out_block + o));
        }
    }
}
