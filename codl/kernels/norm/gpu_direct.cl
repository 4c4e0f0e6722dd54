// Normalization of runs of `size` elements, which work-items share; `strip` runs one after another.
//
// CENTER         defined where the mean is subtracted
// AFFINE         defined where a scale and a bias follow: element i of the tensor has number
//                (i / channel_run) % channels of them
// IN_RUNS        defined where channel_run is above 1
// segment        elements of a run between two where channels begin anew, or with one channel each;
//                divides size

#include "norm/tensors.cl"

#define ADD(a, b) ((a) + (b))

KERNEL void norm_runs(TENSORS, int strip, int runs, int size, int segment, int channel_run,
                      int channels, float per_element, float epsilon)
{
    PARTS
    const int whole = size / V * V;
    for (int i = 0; i < strip; i++) {
        const int run = GLOBAL_ID(1) * strip + i;
        if (SHARERS == 1 && run >= runs) break;
        // Every work-item of a group comes to every barrier; those without a run repeat the last.
        const ADDRESS at = (ADDRESS)min(run, runs - 1) * size;
        __global const ELEMENT *in = input + input_offset + at;

        float mean = 0.0f;
#ifdef CENTER
        VEC sums = (VEC)(0.0f);
        for (int j = SHARER * V; j < whole; j += SHARERS * V) sums += PLOAD(in + j);
        mean = FOLD(ADD, sums);
        for (int j = whole + SHARER; j < size; j += SHARERS) mean += GET(in, j);
        SHARE(ADD, mean)
        mean *= per_element;
#endif
        VEC squares = (VEC)(0.0f);
        for (int j = SHARER * V; j < whole; j += SHARERS * V) {
            const VEC x = PLOAD(in + j) - mean;
            squares += x * x;
        }
        float variance = FOLD(ADD, squares);
        for (int j = whole + SHARER; j < size; j += SHARERS)
            variance += (GET(in, j) - mean) * (GET(in, j) - mean);
        SHARE(ADD, variance)
        const float factor = 1.0f / sqrt(variance * per_element + epsilon);
        if (run >= runs) continue;

        __global ELEMENT *out = output + output_offset + at;
        for (int begin = 0; begin < size; begin += segment, in += segment, out += segment) {
#ifdef AFFINE
            const int channel = (at + begin) / channel_run % channels;
            __global const ELEMENT *scales = scale + scale_offset + channel;
            __global const ELEMENT *biases = bias + bias_offset + channel;
#endif
#if !defined(AFFINE)
#define VECTOR(x, j) (((x) - mean) * factor)
#define SINGLE(x, j) VECTOR(x, j)
#elif defined(IN_RUNS)
            const float slope = factor * GET(scales, 0), start = GET(biases, 0);
#define VECTOR(x, j) (((x) - mean) * slope + start)
#define SINGLE(x, j) VECTOR(x, j)
#else
#define VECTOR(x, j) (((x) - mean) * factor * PLOAD(scales + (j)) + PLOAD(biases + (j)))
#define SINGLE(x, j) (((x) - mean) * factor * GET(scales, j) + GET(biases, j))
#endif
            const int full = segment / V * V;
            for (int j = SHARER * V; j < full; j += SHARERS * V)
                PSTORE(ACTIVATE(VECTOR(PLOAD(in + j), j)), out + j);
            for (int j = full + SHARER; j < segment; j += SHARERS)
                SET(ACTIVATE(SINGLE(GET(in, j), j)), out, j);
        }
    }
}
