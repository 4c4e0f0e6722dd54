// Copies between planar tensors whose elements lie in another order; offsets in elements.
//
// copy_rows         rows of the output, each from where `rows` says (negative: from nowhere). A row
//                   is copied in pieces of `length` elements; a work-item has `strip` pieces.
// transpose_tiles   matrices of `rows` x `columns` in the output whose columns are dense in the
//                   input; `inputs` and `outputs` say where each matrix begins. On a CPU a work-item
//                   has a strip of V x V tiles, `down` or `across` the matrix: along whichever side
//                   has its lines farther apart, so that few lines are read and written at a time.
//                   Otherwise a work-group has one TILE x TILE tile.
//
// KIND    how element x of a row is found: 0 at first + x where low <= x < high, and nowhere else;
//         1 at first + x * step; 2 at inner[x], where that is not negative
// fill    what comes from nowhere

#define PUT(value, p) SET(ACTIVATE(value), p, 0)

#if KIND == 1
#define ELEMENT_AT(x) GET(source + (long)(x) * step, 0)  // either may go backwards
#else
#define ELEMENT_AT(x) (inner[x] < 0 ? fill : GET(source, inner[x]))
#endif

KERNEL void copy_rows(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const int *rows, __global const int *inner, float fill, int strip, int pieces,
    int length, int row_size, int first, int step, int low, int high, int base, int pitch)
{
    const int row_pieces = (row_size + length - 1) / length;
    const int stop_piece = min((int)(STRIP_ID + 1) * strip, pieces);
    for (int piece = STRIP_ID * strip; piece < stop_piece; piece++) {
        const int row = piece / row_pieces, start = (piece - row * row_pieces) * length;
        const int stop = min(start + length, row_size), at = rows[row];
        __global ELEMENT *out = output + (output_offset + base + (ADDRESS)row * pitch);
        if (at < 0) {
            for (int x = start; x < stop; x++) PUT(fill, out + x);
            continue;
        }
        __global const ELEMENT *source = input + (input_offset + at + (long)first);  // maybe negative
#if KIND == 0
        const int begin = max(start, low), end = min(stop, high);
        int x = start;
        for (; x < min(begin, stop); x++) PUT(fill, out + x);
        for (; x + V <= end; x += V) {
            const VEC value = PLOAD(source + x);
            PSTORE(ACTIVATE(value), out + x);
        }
        for (; x < end; x++) PUT(GET(source, x), out + x);
        for (; x < stop; x++) PUT(fill, out + x);
#else
        for (int x = start; x < stop; x++) PUT(ELEMENT_AT(x), out + x);
#endif
    }
}

#ifdef ONE_ITEM
// Tiles at the ends overlap their neighbours', which the same work-item has written.
KERNEL void transpose_tiles(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const int *inputs, __global const int *outputs, float fill, int down, int across,
    int rows, int columns, int in_step, int out_step)
{
    const int at = inputs[GLOBAL_ID(2)];
    __global const ELEMENT *in = input + ((ADDRESS)input_offset + at);
    __global ELEMENT *out = output + ((ADDRESS)output_offset + outputs[GLOBAL_ID(2)]);
    const int row = GLOBAL_ID(0) * down * V, column = GLOBAL_ID(1) * across * V;
    const int stop_row = GLOBAL_ID(0) + 1 == GLOBAL_SIZE(0) ? rows : row + down * V;
    const int stop = GLOBAL_ID(1) + 1 == GLOBAL_SIZE(1) ? columns : column + across * V;
    for (int r = row; r < stop_row; r += V) {
        r = min(r, stop_row - V);
        for (int c = column; c < stop; c += V) {
            c = min(c, stop - V);
            VEC m[V], t[V];
            if (at < 0) {
                UNROLLED(i, V, { m[i] = (VEC)(fill); })
            } else {
                UNROLLED(i, V, {
                    m[i] = PLOAD(in + ((ADDRESS)(c + i) * in_step + r)); })
                TRANSPOSE
            }
            UNROLLED(i, V, {
                PSTORE(ACTIVATE(m[i]), out + ((ADDRESS)(r + i) * out_step + c)); })
        }
    }
}
#else
#define TILE 16
__kernel void transpose_tiles(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const int *inputs, __global const int *outputs, float fill, int down, int across,
    int rows, int columns, int in_step, int out_step)
{
    __local float tile[TILE][TILE + 1];
    const int at = inputs[GLOBAL_ID(2)];
    __global const ELEMENT *in = input + ((ADDRESS)input_offset + at);
    __global ELEMENT *out = output + ((ADDRESS)output_offset + outputs[GLOBAL_ID(2)]);
    const int row = GROUP_ID(1) * TILE, column = GROUP_ID(0) * TILE;
    const int lane = LOCAL_ID(0), count = get_local_size(1);
    for (int i = LOCAL_ID(1); i < TILE; i += count)
        if (column + i < columns && row + lane < rows)
            tile[i][lane] = at < 0 ? fill : GET(in + (long)(column + i) * in_step, row + lane);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = LOCAL_ID(1); i < TILE; i += count)
        if (row + i < rows && column + lane < columns)
            PUT(tile[lane][i], out + ((ADDRESS)(row + i) * out_step + column + lane));
}
#endif
