// A second input, shaped like the output, that a convolution adds before its activation: a residual.
//
// ADDED         defined where there is one: the kernel that writes the output has its three arguments
//               more; all else here is nothing where it is not defined
// PLUS_ADDED    of a pixel of a block; of one LANE of it; of an image the texel that lies so many
//               columns and rows behind the tensor's first
// ADDED_ALL_ARGS, ADDED_OF   of a kernel of all images: one argument more, and the step to an image
// ADDED_FROM    arguments for the ADDED_ARGS of a function, which counts blocks and pixels from there

#ifdef ADDED
#define ADDED_ARGS , __global const ELEMENT *added, int added_offset, int added_stride
#define ADDED_TEXEL_ARGS , IMAGE_IN added, int added_column, int added_row
#define ADDED_ALL_ARGS ADDED_ARGS, int added_apart
#define ADDED_OF(image) added_offset += (image) * added_apart;
#define ADDED_AT(block, pixel)                                                                     \
    (BLOCK(added, added_offset, added_stride, block) + (ADDRESS)(pixel) * V)
#define ADDED_FROM(block, pixel)                                                                   \
    , added, added_offset + (block) * added_stride + (pixel), added_stride
#define PLUS_ADDED(block, pixel) + LOAD(ADDED_AT(block, pixel))
#define PLUS_ADDED_LANE(block, pixel, lane) + GET(ADDED_AT(block, pixel), lane)
#define PLUS_ADDED_TEXEL(column, row) + TEXEL(added, added_column + (column), added_row + (row))
#else
#define ADDED_ARGS
#define ADDED_TEXEL_ARGS
#define ADDED_ALL_ARGS
#define ADDED_OF(image)
#define ADDED_FROM(block, pixel)
#define PLUS_ADDED(block, pixel)
#define PLUS_ADDED_LANE(block, pixel, lane)
#define PLUS_ADDED_TEXEL(column, row)
#endif
