// Rotary position embedding of planar rows of `features`, of which `pairs` pairs are turned.
//
// INTERLEAVED   defined where pairs are neighbours; otherwise they are `pairs` features apart
// strip         pieces of a work-item, of `length` pairs of one row each
// image_rows    rows of x that an image has; `token_rows` that follow each other with one token
// tokens        of an image; `image_tokens` is how many rows of the tables lie between two images'

#define PUT(value, p) (*(p) = ACTIVATE(value))

KERNEL void rotary_rows(
    __global const float *input, int input_offset, int input_stride,
    __global const float *cosines, int cosines_offset, int cosines_stride,
    __global const float *sines, int sines_offset, int sines_stride,
    __global float *output, int output_offset, int output_stride,
    int strip, int pieces, int length, int image_rows, int token_rows, int tokens,
    int image_tokens, int pairs, int features)
{
    const int row_pieces = (pairs + length - 1) / length;
    const int stop_piece = min((int)(STRIP_ID + 1) * strip, pieces);
    for (int piece = STRIP_ID * strip; piece < stop_piece; piece++) {
        const int row = piece / row_pieces, first = (piece - row * row_pieces) * length;
        const int stop = min(first + length, pairs), image = row / image_rows;
        const size_t at = (size_t)image * image_tokens + row / token_rows % tokens;
        __global const float *in = input + (input_offset + (size_t)row * features);
        __global const float *c = cosines + (cosines_offset + at * pairs);
        __global const float *s = sines + (sines_offset + at * pairs);
        __global float *out = output + (output_offset + (size_t)row * features);
        int i = first;
#ifdef INTERLEAVED
        for (; i < stop; i++) {
            const float a = in[2 * i], b = in[2 * i + 1];
            PUT(a * c[i] - b * s[i], out + 2 * i);
            PUT(b * c[i] + a * s[i], out + 2 * i + 1);
        }
#else
        for (; i + V <= stop; i += V) {
            const VEC a = PLOAD(in + i), b = PLOAD(in + pairs + i);
            const VEC x = PLOAD(c + i), y = PLOAD(s + i);
            PSTORE(ACTIVATE(a * x - b * y), out + i);
            PSTORE(ACTIVATE(b * x + a * y), out + pairs + i);
        }
        for (; i < stop; i++) {
            const float a = in[i], b = in[pairs + i];
            PUT(a * c[i] - b * s[i], out + i);
            PUT(b * c[i] + a * s[i], out + pairs + i);
        }
#endif
        if (first == 0)
            for (i = 2 * pairs; i < features; i++) PUT(in[i], out + i);
    }
}
