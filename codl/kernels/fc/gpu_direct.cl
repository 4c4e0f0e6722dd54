// Fully connected: a matrix-vector product that reads every weight once, in one long stream.
//
// A work-item has one block of V outputs, or a slice of its inputs where SLICES > 1; the slices of
// a block are one work-group (local size TOGETHER x SLICES), summed through local memory.
//
// TOGETHER   output blocks whose weights alternate, so that neighbours read neighbouring addresses
// SLICES     work-items that share the inputs of one output block
// weight     [out blocks / TOGETHER][step][TOGETHER][V], a step being an input element in the order
//            (channel block, pixel, lane); lanes that exist, rounded up to a multiple of 4
// bias       [out blocks + 1][V]
// pixels     of the input, in each channel

#define STEP (TOGETHER * V)

KERNEL void fc_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int in_channels, int in_blocks,
    int pixels, int steps, int out_blocks)
{
    const int out_block = get_global_id(0), slice = get_global_id(1);
    __global const WEIGHT *weights =
        weight + ((size_t)(out_block / TOGETHER) * steps * TOGETHER + out_block % TOGETHER) * V;
    VEC sum0 = (VEC)(0.0f), sum1 = sum0, sum2 = sum0, sum3 = sum0;

    for (int b = 0; out_block < out_blocks && b < in_blocks; b++) {
        const int lanes = min(V, (in_channels - b * V + 3) / 4 * 4);
        __global const ELEMENT *block = BLOCK(input, input_offset, input_stride, b);
        // Full blocks are one run of floats; of the last block each pixel has a run.
        const int runs = lanes == V ? 1 : pixels, length = lanes == V ? pixels * V : lanes;
        for (int run = 0; run < runs; run++) {
            __global const ELEMENT *x = block + run * V;
            __global const WEIGHT *w = weights + ((size_t)b * pixels * V + run * lanes) * STEP;
            NO_UNROLL for (int i = 4 * slice; i < length; i += 4 * SLICES) {
                sum0 += GET(x, i) * WLOAD(w + (size_t)i * STEP);
                sum1 += GET(x, i + 1) * WLOAD(w + (size_t)(i + 1) * STEP);
                sum2 += GET(x, i + 2) * WLOAD(w + (size_t)(i + 2) * STEP);
                sum3 += GET(x, i + 3) * WLOAD(w + (size_t)(i + 3) * STEP);
            }
        }
    }

    VEC sum = (sum0 + sum1) + (sum2 + sum3);
#if SLICES > 1
    __local VEC parts[SLICES][TOGETHER];
    const int mine = get_local_id(0);
    parts[slice][mine] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice > 0) return;
    for (int i = 1; i < SLICES; i++) sum += parts[i][mine];
#endif
    if (out_block < out_blocks) {
        sum += VLOAD(bias + out_block * V);
        STORE(ACTIVATE(sum), BLOCK(output, output_offset, output_stride, out_block));
    }
}
