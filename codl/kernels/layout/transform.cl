// Blocked layout <-> planar layout (compact [channels][pixels]) for a region of a tensor.
//
// A work-item has `strip` chunks of V pixels of one block. A chunk is a V x V matrix that is
// transposed in registers by log2(V) perfect shuffles. The last chunk begins early enough to be full
// and does some pixels again. Sizes in pixels and channels:
//
// first_pixel    of the region inside a block of the tensor; its rows are contiguous
// first_channel, channels   of the region, counted from the tensor's first channel
// pixels         of the region, in each channel
// zero_to        lanes of the last block up to which zeros are stored (to_blocked)

// a0 b0 a1 b1 ... of the lower or the upper halves; V rounds of both make a perfect shuffle. As
// masks, because compilers make one instruction of these and several of `.even` and `.odd`.
#if V == 4
#define MASK(first) ((uint4)(0, 4, 1, 5) + (first))
#elif V == 8
#define MASK(first) ((uint8)(0, 8, 1, 9, 2, 10, 3, 11) + (first))
#else
#define MASK(first) ((uint16)(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23) + (first))
#endif
#define SHUFFLE(FROM, TO)                                                                          \
    UNROLL for (int i = 0; i < V / 2; i++) {                                                       \
        TO[2 * i] = shuffle2(FROM[i], FROM[i + V / 2], MASK(0));                                   \
        TO[2 * i + 1] = shuffle2(FROM[i], FROM[i + V / 2], MASK(V / 2));                           \
    }

// Leaves the transpose of `m` in `m`; `t` is another V vectors.
#if V == 4
#define TRANSPOSE SHUFFLE(m, t) SHUFFLE(t, m)
#elif V == 8
#define TRANSPOSE                                                                                  \
    SHUFFLE(m, t) SHUFFLE(t, m) SHUFFLE(m, t)                                                      \
    UNROLL for (int i = 0; i < V; i++) m[i] = t[i];
#else
#define TRANSPOSE SHUFFLE(m, t) SHUFFLE(t, m) SHUFFLE(m, t) SHUFFLE(t, m)
#endif

// Planar rows begin anywhere, so they are never assumed to be aligned.
#define PLANAR_LOAD(p) CAT(vload, V)(0, (p))
#define PLANAR_STORE(value, p) CAT(vstore, V)((value), 0, (p))

KERNEL void to_planar(
    __global const float *input, int input_offset, int input_stride, __global float *planar,
    int strip, int first_pixel, int first_channel, int channels, int pixels)
{
    const int block = first_channel / V + BLOCK_ID;
    const int low = max(first_channel - block * V, 0);
    const int high = min(first_channel + channels - block * V, V);
    __global const float *in =
        BLOCK(input, input_offset, input_stride, block) + (size_t)first_pixel * V;
    // Row of lane 0, which may lie before the buffer where the region begins inside the block.
    const long row = (long)(block * V - first_channel) * pixels;

    const int stop = min((int)(STRIP_ID + 1) * strip * V, pixels);
    int at = STRIP_ID * strip * V;
    for (; at < stop && pixels >= V; at += V) {
        at = min(at, pixels - V);
        VEC m[V], t[V];
        UNROLL for (int i = 0; i < V; i++) m[i] = VLOAD(in + (at + i) * V);
        TRANSPOSE
        if (low == 0 && high == V) {
            UNROLL for (int i = 0; i < V; i++)
                PLANAR_STORE(m[i], planar + (row + (long)i * pixels + at));
        } else {
            UNROLL for (int i = 0; i < V; i++)
                if (i >= low && i < high)
                    PLANAR_STORE(m[i], planar + (row + (long)i * pixels + at));
        }
    }
    for (; at < stop; at++)
        for (int i = low; i < high; i++) planar[row + (long)i * pixels + at] = in[at * V + i];
}

KERNEL void to_blocked(
    __global float *output, int output_offset, int output_stride, __global const float *planar,
    int strip, int first_pixel, int first_channel, int channels, int pixels, int zero_to)
{
    const int block = first_channel / V + BLOCK_ID;
    const int low = max(first_channel - block * V, 0);
    const int high = min(first_channel + channels - block * V, V);
    const int zeros = first_channel + channels - block * V <= V ? max(zero_to, high) : high;
    __global float *out =
        BLOCK(output, output_offset, output_stride, block) + (size_t)first_pixel * V;
    const long row = (long)(block * V - first_channel) * pixels;

    const int stop = min((int)(STRIP_ID + 1) * strip * V, pixels);
    int at = STRIP_ID * strip * V;
    if (low == 0 && zeros == V) {
        for (; at < stop && pixels >= V; at += V) {
            at = min(at, pixels - V);
            VEC m[V], t[V];
            if (high == V) {
                UNROLL for (int i = 0; i < V; i++)
                    m[i] = PLANAR_LOAD(planar + (row + (long)i * pixels + at));
            } else {
                UNROLL for (int i = 0; i < V; i++)
                    m[i] = i < high ? PLANAR_LOAD(planar + (row + (long)i * pixels + at))
                                    : (VEC)(0.0f);
            }
            TRANSPOSE
            UNROLL for (int i = 0; i < V; i++) VSTORE(m[i], out + (at + i) * V);
        }
    }
    // A block whose other lanes belong to somebody else is written lane by lane.
    for (; at < stop; at++) {
        for (int i = low; i < high; i++) out[at * V + i] = planar[row + (long)i * pixels + at];
        for (int i = high; i < zeros; i++) out[at * V + i] = 0.0f;
    }
}
