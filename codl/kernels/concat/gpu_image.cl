// Concatenation of channels over images: one launch for every input, in order. It writes the texels
// that begin with a channel of this input; the last of them may end with the next input's first.
//
// strip          pixels of one work-item
// width, pixels  of a row, and of the output
// first          output channel where this input begins; `first_texel` the first that it writes
// channels, next_channels   of this input and the next

float channel_of(IMAGE_IN image, int column, int row, int width, int x, int y, int channel)
{
    const float4 texel = TEXEL(image, column + channel / 4 * width + x, row + y);
    return LANE_OF(texel, channel % 4);
}

KERNEL void concat_image(
    IMAGE_IN input, int input_column, int input_row, IMAGE_IN next, int next_column, int next_row,
    IMAGE_OUT output, int output_column, int output_row, int strip, int width, int pixels,
    int first_texel, int first, int channels, int next_channels)
{
    const int texel = first_texel + BLOCK_ID, from = texel * 4 - first;
    const int whole = from % 4 == 0 && from + 4 <= channels;
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
        const int y = pixel / width, x = pixel - y * width;
        float4 value;
        if (whole) {
            value = TEXEL(input, input_column + from / 4 * width + x, input_row + y);
        } else {
            float lanes[4];
            for (int i = 0; i < 4; i++) {
                const int channel = from + i, over = channel - channels;
                lanes[i] = 0.0f;
                if (over < 0)
                    lanes[i] = channel_of(input, input_column, input_row, width, x, y, channel);
                else if (over < next_channels)
                    lanes[i] = channel_of(next, next_column, next_row, width, x, y, over);
            }
            value = vload4(0, lanes);
        }
        TEXEL_SET(output, output_column + texel * width + x, output_row + y, ACTIVATE(value));
    }
}
