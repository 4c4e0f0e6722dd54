// Element-wise operators: one output pixel x one block of channels at a time, `strip` pixels in a
// work-item; over images (IMAGE is defined) one texel of four channels at a time.
//
// MODE           the function's code, below; its parameters are MODE_ALPHA and MODE_BETA
// UNARY          defined where there is one input; the second one's arguments repeat the first's
// STRETCHED_i    defined where rows or columns of input i are stretched to the output's
// ONE_LANE_i     defined where input i has one channel, and all lanes take that
// CLEAR_BEYOND   defined where the function makes of zeros what may not get into lanes beyond the
//                last channel
// channels       of the output
// block_i, row_i, column_i   how far input i moves on for each of the output's: 0 where it stays

#if MODE == 0
#define COMBINE(a, b) ((a) + (b))
#elif MODE == 1
#define COMBINE(a, b) ((a) - (b))
#elif MODE == 2
#define COMBINE(a, b) ((a) * (b))
#elif MODE == 3
#define COMBINE(a, b) ((a) / (b))
#elif MODE == 4
#define COMBINE(a, b) max((a), (b))
#elif MODE == 5
#define COMBINE(a, b) min((a), (b))
#elif MODE == 6
#define COMBINE(a, b) pow((a), (b))
#elif MODE == 7
#define COMBINE(a, b) (max((a), 0.0f) + (b) * min((a), 0.0f))
#elif MODE == 8
#define COMBINE(a, b) (a)
#elif MODE == 9
#define COMBINE(a, b) fabs(a)
#elif MODE == 10
#define COMBINE(a, b) (-(a))
#elif MODE == 11
#define COMBINE(a, b) exp(a)
#elif MODE == 12
#define COMBINE(a, b) log(a)
#elif MODE == 13
#define COMBINE(a, b) sqrt(a)
#elif MODE == 14
#define COMBINE(a, b) (1.0f / (a))
#elif MODE == 15
#define COMBINE(a, b) floor(a)
#elif MODE == 16
#define COMBINE(a, b) ceil(a)
#elif MODE == 17
#define COMBINE(a, b) rint(a)
#elif MODE == 18
#define COMBINE(a, b) sign(a)
#elif MODE == 19
#define COMBINE(a, b) SOFTPLUS(a)
#elif MODE == 20
#define COMBINE(a, b) ((a) / (1.0f + fabs(a)))
#elif MODE == 21  // mish: tanh of a logarithm is a ratio, of which a compiler makes far less code
#define COMBINE(a, b) ((a) * MISH(exp(min((a), 20.0f))))
#define MISH(e) ((e) * ((e) + 2.0f) / ((e) * ((e) + 2.0f) + 2.0f))
#elif MODE == 22
#define COMBINE(a, b) sin(a)
#elif MODE == 23
#define COMBINE(a, b) cos(a)
#elif MODE == 24
#define COMBINE(a, b) tan(a)
#elif MODE == 25
#define COMBINE(a, b) asin(a)
#elif MODE == 26
#define COMBINE(a, b) acos(a)
#elif MODE == 27
#define COMBINE(a, b) atan(a)
#elif MODE == 28
#define COMBINE(a, b) sinh(a)
#elif MODE == 29
#define COMBINE(a, b) cosh(a)
#elif MODE == 30
#define COMBINE(a, b) asinh(a)
#elif MODE == 31
#define COMBINE(a, b) acosh(a)
#elif MODE == 32
#define COMBINE(a, b) atanh(a)
#elif MODE == 33  // selu
#define COMBINE(a, b) (MODE_BETA * (max((a), 0.0f) + MODE_ALPHA * expm1(min((a), 0.0f))))
#elif MODE == 34  // celu
#define COMBINE(a, b) (max((a), 0.0f) + MODE_ALPHA * expm1(min((a), 0.0f) * (1.0f / MODE_ALPHA)))
#elif MODE == 35  // thresholded_relu
#define COMBINE(a, b) ((a) > (VEC)(MODE_ALPHA) ? (a) : (VEC)(0.0f))
#else  // shrink
#define COMBINE(a, b) (fabs(a) > (VEC)(MODE_BETA) ? (a) - MODE_ALPHA * sign(a) : (VEC)(0.0f))
#endif
// No exponential of a large number: it would be infinite.
#define SOFTPLUS(x) (max((x), 0.0f) + log1p(exp(-fabs(x))))

#ifndef IMAGE

#ifdef STRETCHED_0
#define AT_0 (y * row_0 + x * column_0)
#else
#define AT_0 pixel
#endif
#ifdef STRETCHED_1
#define AT_1 (y * row_1 + x * column_1)
#else
#define AT_1 pixel
#endif
#ifdef ONE_LANE_0
#define TAKE_0(p) (VEC)(GET((p), 0))
#else
#define TAKE_0(p) LOAD(p)
#endif
#ifdef ONE_LANE_1
#define TAKE_1(p) (VEC)(GET((p), 0))
#else
#define TAKE_1(p) LOAD(p)
#endif

KERNEL void eltwise_direct(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global const ELEMENT *other, int other_offset, int other_stride,
    __global ELEMENT *output, int output_offset, int output_stride, int strip,
    int channels, int pixels, int width,
    int block_0, int row_0, int column_0, int block_1, int row_1, int column_1,
    int input_apart, int other_apart, int output_apart)
{
    OF_IMAGE(input_offset, input_apart)
    OF_IMAGE(other_offset, other_apart)
    OF_IMAGE(output_offset, output_apart)
    __global const ELEMENT *a = BLOCK(input, input_offset, input_stride, BLOCK_ID * block_0);
    __global const ELEMENT *b = BLOCK(other, other_offset, other_stride, BLOCK_ID * block_1);
    __global ELEMENT *out = BLOCK(output, output_offset, output_stride, BLOCK_ID);
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
#if defined(STRETCHED_0) || defined(STRETCHED_1)
        const int y = pixel / width, x = pixel - y * width;
#endif
        const VEC left = TAKE_0(a + AT_0 * V);
#ifdef UNARY
        const VEC right = left;
#else
        const VEC right = TAKE_1(b + AT_1 * V);
#endif
        const VEC value = ACTIVATE(COMBINE(left, right));
#ifdef CLEAR_BEYOND
        if ((BLOCK_ID + 1) * V > channels) {
            float lanes[V];
            CAT(vstore, V)(value, 0, lanes);
            const int high = channels - (int)BLOCK_ID * V;
            for (int i = 0; i < V; i++) SET(i < high ? lanes[i] : 0.0f, out, pixel * V + i);
            continue;
        }
#endif
        STORE(value, out + pixel * V);
    }
}

#else

#ifdef ONE_LANE_0
#define TAKE_0(texel) (float4)((texel).s0)
#else
#define TAKE_0(texel) (texel)
#endif
#ifdef ONE_LANE_1
#define TAKE_1(texel) (float4)((texel).s0)
#else
#define TAKE_1(texel) (texel)
#endif

KERNEL void eltwise_image(
    IMAGE_IN input, int input_column, int input_row, IMAGE_IN other, int other_column,
    int other_row, IMAGE_OUT output, int output_column, int output_row, int strip, int channels,
    int pixels, int width,
    int block_0, int row_0, int column_0, int block_1, int row_1, int column_1)
{
    const int from_0 = input_column + BLOCK_ID * block_0, to = output_column + BLOCK_ID * width;
    const int stop = min((int)(STRIP_ID + 1) * strip, pixels);
    for (int pixel = STRIP_ID * strip; pixel < stop; pixel++) {
        const int y = pixel / width, x = pixel - y * width;
        const float4 left = TAKE_0(TEXEL(input, from_0 + x * column_0, input_row + y * row_0));
#ifdef UNARY
        const float4 right = left;
#else
        const int from_1 = other_column + BLOCK_ID * block_1;
        const float4 right = TAKE_1(TEXEL(other, from_1 + x * column_1, other_row + y * row_1));
#endif
        float4 value = ACTIVATE(COMBINE(left, right));
#ifdef CLEAR_BEYOND
        const int high = channels - (int)BLOCK_ID * 4;
        value = select((float4)(0.0f), value, (int4)(0, 1, 2, 3) < (int4)(high));
#endif
        TEXEL_SET(output, to + x, output_row + y, value);
    }
}

#endif
