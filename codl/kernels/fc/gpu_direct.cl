// Fully connected: a product that reads every weight once for IMAGES images, in long streams.
//
// A work-item has OUTS blocks of V outputs, or a slice of their inputs where SLICES > 1; the slices
// of a block are one work-group (local size TOGETHER x SLICES), summed through local memory.
//
// OUTS       blocks of outputs of a work-item, each a stream of weights of its own
// IMAGES     images of a work-item; the third dimension has the others
// TOGETHER   work-items whose weights alternate, so that neighbours read neighbouring addresses
// SLICES     work-items that share the inputs of the same outputs
// weight     [out blocks / TOGETHER][step][TOGETHER][V], a step being an input element in the order
//            (channel block, pixel, lane); lanes that exist, rounded up to a multiple of 4
// bias       [out blocks][V]
// pixels     of the input, in each channel
// apart      pixels from an image to the next, of the input and of the output

#define STEP (TOGETHER * V)
// Sums that wait for one another are too slow, and one image has few.
#if IMAGES > 1
#define CHAINS 1
#else
#define CHAINS 4
#endif

// Adds to a sum what the other slices have of it.
#if SLICES > 1
#define ADD_SLICES(sum)                                                                            \
    parts[slice][LOCAL_ID(0)] = sum;                                                               \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                  \
    for (int i = 1; i < SLICES && slice == 0; i++) sum += parts[i][LOCAL_ID(0)];                    \
    barrier(CLK_LOCAL_MEM_FENCE);
#else
#define ADD_SLICES(sum)
#endif

// sums[image][o] += x[i] * weights, for `length` inputs and every stream.
void add_products(__global const ELEMENT *x, const ADDRESS *images, __global const WEIGHT *w,
                  ADDRESS stream, int first, int length, VEC sums[IMAGES][OUTS][CHAINS])
{
    NO_UNROLL for (int i = first; i < length; i += 4 * SLICES) {
        UNROLLED(lane, 4, {
            UNROLLED(o, OUTS, {
                const VEC weights = WLOAD(AT(w, o * stream + (ADDRESS)(i + lane) * STEP));
                UNROLLED(n, IMAGES, {
                    sums[n][o][lane % CHAINS] += GET(x + images[n], i + lane) * weights;
                })
            })
        })
    }
}

KERNEL void fc_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const WEIGHT *weight, __global const float *bias, int in_channels, int pixels,
    int steps, int out_blocks, int images, int input_apart, int output_apart)
{
    const int out_block = GLOBAL_ID(0) * OUTS, slice = GLOBAL_ID(1);
    const ADDRESS stream = (ADDRESS)steps * STEP;
    __global const WEIGHT *w =
        weight + (out_block / TOGETHER) * stream + out_block % TOGETHER * V;
    // Beyond the last image there is the last one again.
    const int image = GLOBAL_ID(2) * IMAGES;
    ADDRESS from[IMAGES];
    UNROLLED(n, IMAGES, { from[n] = (ADDRESS)min(image + n, images - 1) * input_apart * V; })
#if SLICES > 1
    __local VEC parts[SLICES][TOGETHER];
#endif
    VEC sums[IMAGES][OUTS][CHAINS];
    UNROLLED(n, IMAGES, {
        UNROLLED(o, OUTS, { UNROLLED(chain, CHAINS, { sums[n][o][chain] = (VEC)(0.0f); }) })
    })

    if (out_block < out_blocks) {
        // Full blocks are one run of floats each, or all of them; of the last one each pixel has a
        // run.
        const int full = in_channels / V, lanes = (in_channels - full * V + 3) / 4 * 4;
        const int dense = input_stride == pixels, length = (dense ? full : 1) * pixels * V;
        for (int b = 0; b < full; b += dense ? full : 1, w += (ADDRESS)length * STEP)
            add_products(BLOCK(input, input_offset, input_stride, b), from, w, stream, 4 * slice,
                         length, sums);
        __global const ELEMENT *last = BLOCK(input, input_offset, input_stride, full);
        for (int pixel = 0; lanes && pixel < pixels; pixel++, w += lanes * STEP)
            add_products(last + pixel * V, from, w, stream, 4 * slice, lanes, sums);
    }

    UNROLLED(n, IMAGES, {
        UNROLLED(o, OUTS, {
            VEC sum = sums[n][o][0];
            UNROLLED(chain, CHAINS, {
                if (chain > 0) sum += sums[n][o][chain];
            })
            ADD_SLICES(sum)
            if (slice == 0 && image + n < images && out_block + o < out_blocks) {
                __global ELEMENT *out =
                    BLOCK(output, output_offset, output_stride, out_block + o) +
                    (ADDRESS)(image + n) * output_apart * V;
                STORE(ACTIVATE(sum + VLOAD(bias + (out_block + o) * V)), out);
            }
        })
    })
}
