// Fully connected: a product that reads every weight once for IMAGES images, in long streams.
//
// A work-item has OUTS blocks of V outputs.
//
// OUTS       blocks of outputs of a work-item, each a stream of weights of its own
// IMAGES     images of a work-item; the second dimension has the others
// weight     [out block][step][V], a step being an input element in the order (channel block, pixel,
//            lane); lanes that exist, rounded up to a multiple of 4
// bias       [out blocks][V]
// pixels     of the input, in each channel
// apart      pixels from an image to the next, of the input and of the output

// Sums that wait for one another are too slow, and one image has few.
#if IMAGES > 1
#define CHAINS 1
#else
#define CHAINS 4
#endif

// sums[image][o] += x[i] * weights, for `length` inputs and every stream.
void add_products(__global const ELEMENT *x, const ADDRESS *images, __global const WEIGHT *w,
                  ADDRESS stream, int length, VEC sums[IMAGES][OUTS][CHAINS])
{
    NO_UNROLL for (int i = 0; i < length; i += 4) {
        UNROLLED(lane, 4, {
            UNROLLED(o, OUTS, {
                const VEC weights = WLOAD(AT(w, o * stream + (ADDRESS)(i + lane) * V));
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
    const int out_block = GLOBAL_ID(0) * OUTS;
    const ADDRESS stream = (ADDRESS)steps * V;
    __global const WEIGHT *w = weight + out_block * stream;
    // Beyond the last image there is the last one again.
    const int image = GLOBAL_ID(1) * IMAGES;
    ADDRESS from[IMAGES];
    UNROLLED(n, IMAGES, { from[n] = (ADDRESS)min(image + n, images - 1) * input_apart * V; })
    VEC sums[IMAGES][OUTS][CHAINS];
    UNROLLED(n, IMAGES, {
        UNROLLED(o, OUTS, { UNROLLED(chain, CHAINS, { sums[n][o][chain] = (VEC)(0.0f); }) })
    })

    if (out_block < out_blocks) {
        // Full blocks are one run of floats each, or all of them; of the last one each pixel has a
        // run.
        const int full = in_channels / V, lanes = (in_channels - full * V + 3) / 4 * 4;
        const int dense = input_stride == pixels, length = (dense ? full : 1) * pixels * V;
        for (int b = 0; b < full; b += dense ? full : 1, w += (ADDRESS)length * V)
            add_products(BLOCK(input, input_offset, input_stride, b), from, w, stream, length,
                         sums);
        __global const ELEMENT *last = BLOCK(input, input_offset, input_stride, full);
        for (int pixel = 0; lanes && pixel < pixels; pixel++, w += lanes * V)
            add_products(last + pixel * V, from, w, stream, lanes, sums);
    }

    UNROLLED(n, IMAGES, {
        UNROLLED(o, OUTS, {
            VEC sum = sums[n][o][0];
            UNROLLED(chain, CHAINS, {
                if (chain > 0) sum += sums[n][o][chain];
            })
            if (image + n < images && out_block + o < out_blocks) {
                __global ELEMENT *out =
                    BLOCK(output, output_offset, output_stride, out_block + o) +
                    (ADDRESS)(image + n) * output_apart * V;
                STORE(ACTIVATE(sum + VLOAD(bias + (out_block + o) * V)), out);
            }
        })
    })
}
