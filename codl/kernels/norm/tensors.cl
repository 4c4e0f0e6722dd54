// The tensors of a norm; AFFINE is defined where there are a scale and a bias.
#ifdef AFFINE
#define TENSORS                                                                                    \
    __global const ELEMENT *input, int input_offset, int input_stride,                             \
        __global const ELEMENT *scale, int scale_offset, int scale_stride,                         \
        __global const ELEMENT *bias, int bias_offset, int bias_stride, __global ELEMENT *output,  \
        int output_offset, int output_stride
#else
#define TENSORS                                                                                    \
    __global const ELEMENT *input, int input_offset, int input_stride, __global ELEMENT *output,   \
        int output_offset, int output_stride
#endif
