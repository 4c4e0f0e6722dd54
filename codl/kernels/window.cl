// The arguments of kernels that slide a window over rows and columns; all sizes in pixels. Python's
// `window_args` gives them in this order. Kernels leave unused what a macro says.
#define WINDOW_ARGS                                                                                \
    int in_h, int in_w, int out_w, int kernel_h, int kernel_w, int stride_h, int stride_w,         \
    int pad_top, int pad_left, int dilation_h, int dilation_w
