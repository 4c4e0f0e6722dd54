// Local response normalization: a work-item has the V channels of one block at one pixel.
//
// before, size   channels of a window before its own, and of all of it
// scale          what the sum of squares is multiplied by

KERNEL void lrn(
    __global const float *input, int input_offset, int input_stride,
    __global float *output, int output_offset, int output_stride,
    int pixels, int channels, int before, int size, float scale, float beta, float bias)
{
    const int pixel = STRIP_ID, block = BLOCK_ID;
    if (pixel >= pixels) return;
    for (int lane = 0; lane < V; lane++) {
        const int own = block * V + lane;
        float total = 0.0f, middle = 0.0f;
        for (int i = 0; i < size; i++) {
            const int c = own - before + i;
            if (c < 0 || c >= channels) continue;
            const float x = BLOCK(input, input_offset, input_stride, c / V)[pixel * V + c % V];
            total += x * x;
            if (c == own) middle = x;
        }
        BLOCK(output, output_offset, output_stride, block)[pixel * V + lane] =
            own < channels ? ACTIVATE(middle / pow(bias + scale * total, beta)) : 0.0f;
    }
}
