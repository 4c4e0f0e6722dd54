// Slices of a planar tensor by their indices: out[o][j][i] = in[o][indices[j]][i].
//
// gather_rows       one index for a piece of a slice; `length` elements of one, `strip` pieces
// gather_elements   one index for every element: for slices of a few elements
// size              indices of the axis; one below zero counts from the end. They are floats, whatever
//                   the data are stored as: halves count to 2048 alone.

#define INDEX(j) clamp((int)indices[j] + (indices[j] < 0.0f ? size : 0), 0, size - 1)
#define PUT(value, p) SET(ACTIVATE(value), p, 0)

KERNEL void gather_rows(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global const float *indices, int indices_offset, int indices_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int pieces, int length, int size, int count, int slice)
{
    const int row_pieces = (slice + length - 1) / length;
    const int stop_piece = min((int)(STRIP_ID + 1) * strip, pieces);
    indices += indices_offset;
    for (int piece = STRIP_ID * strip; piece < stop_piece; piece++) {
        const int row = piece / row_pieces;
        int x = (piece - row * row_pieces) * length;
        const int stop = min(x + length, slice), outer = row / count, j = row - outer * count;
        __global const ELEMENT *in = input + (input_offset + ((ADDRESS)outer * size + INDEX(j)) * slice);
        __global ELEMENT *out = output + (output_offset + (ADDRESS)row * slice);
        for (; x + V <= stop; x += V) {
            const VEC value = PLOAD(in + x);
            PSTORE(ACTIVATE(value), out + x);
        }
        for (; x < stop; x++) PUT(GET(in, x), out + x);
    }
}

KERNEL void gather_elements(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global const float *indices, int indices_offset, int indices_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    int strip, int pieces, int length, int size, int count, int slice)
{
    const int row_size = count * slice, row_pieces = (row_size + length - 1) / length;
    const int stop_piece = min((int)(STRIP_ID + 1) * strip, pieces);
    indices += indices_offset;
    for (int piece = STRIP_ID * strip; piece < stop_piece; piece++) {
        const int outer = piece / row_pieces, start = (piece - outer * row_pieces) * length;
        const int stop = min(start + length, row_size);
        __global const ELEMENT *in = input + (input_offset + (ADDRESS)outer * size * slice);
        __global ELEMENT *out = output + (output_offset + (ADDRESS)outer * row_size);
        for (int x = start; x < stop; x++) {
            const int j = x / slice;
            PUT(GET(in, INDEX(j) * slice + x - j * slice), out + x);
        }
    }
}
