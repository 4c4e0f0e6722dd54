// Rotary position embedding of planar rows of `features`, of which `pairs` pairs are turned.
//
// INTERLEAVED   defined where pairs are neighbours; otherwise they are `pairs` features apart
// strip         pieces of a work-item, of `length` pairs of one row each
// image_rows    rows of x that an image has; `token_rows` that follow each other with one token
// tokens        of an image; `image_tokens` is how many rows of the tables lie between two images'

#define PUT(value, p) SET(ACTIVATE(value), p, 0)

KERNEL void rotary_rows(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global const ELEMENT *cosines, int cosines_offset, int cosines_stride,
    __global const ELEMENT *sines, int sines_offset, int sines_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int pieces, int length, int image_rows, int token_rows, int tokens,
    int image_tokens, int pairs, int features)
{
    const int row_pieces = (pairs + length - 1) / length;
    const int stop_piece = min((int)(STRIP_ID + 1) * strip, pieces);
    for (int piece = STRIP_ID * strip; piece < stop_piece; piece++) {
        const int row = piece / row_pieces, first = (piece - row * row_pieces) * length;
        const int stop = min(first + length, pairs), image = row / image_rows;
        const ADDRESS at = (ADDRESS)image * image_tokens + row / token_rows % tokens;
        __global const ELEMENT *in = input + (input_offset + (ADDRESS)row * features);
        __global const ELEMENT *c = cosines + (cosines_offset + at * pairs);
        __global const ELEMENT *s = sines + (sines_offset + at * pairs);
        __global ELEMENT *out = output + (output_offset + (ADDRESS)row * features);
        int i = first;
#ifdef INTERLEAVED
        for (; i < stop; i++) {
            const float a = GET(in, 2 * i), b = GET(in, 2 * i + 1);
            PUT(a * GET(c, i) - b * GET(s, i), out + 2 * i);
            PUT(b * GET(c, i) + a * GET(s, i), out + 2 * i + 1);
        }
#else
        for (; i + V <= stop; i += V) {
            const VEC a = PLOAD(in + i), b = PLOAD(in + pairs + i);
            const VEC x = PLOAD(c + i), y = PLOAD(s + i);
            PSTORE(ACTIVATE(a * x - b * y), out + i);
            PSTORE(ACTIVATE(b * x + a * y), out + pairs + i);
        }
        for (; i < stop; i++) {
            const float a = GET(in, i), b = GET(in, pairs + i);
            PUT(a * GET(c, i) - b * GET(s, i), out + i);
            PUT(b * GET(c, i) + a * GET(s, i), out + pairs + i);
        }
#endif
        if (first == 0)
            for (i = 2 * pairs; i < features; i++) PUT(GET(in, i), out + i);
    }
}
