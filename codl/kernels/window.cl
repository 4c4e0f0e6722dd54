// The arguments of kernels that slide a window over rows and columns; all sizes in pixels. Python's
// `window_args` gives them in this order. Kernels leave unused what a macro says.
#define WINDOW_ARGS                                                                                \
    int in_h, int in_w, int out_w, int kernel_h, int kernel_w, int stride_h, int stride_w,         \
    int pad_top, int pad_left, int dilation_h, int dilation_w

// Declares `column`: that at x0 + c of a row of the input, or zeros beside it. It is loaded without a
// branch, which work-items in lockstep would take both ways.
#define LOAD_COLUMN(row, c)                                                                        \
    const int at_ = clamp(x0 + (c), 0, in_w - 1);                                                  \
    const REALV read_ = RLOAD(AT(row, at_ * V));                                                      \
    const REALV column = at_ == x0 + (c) ? read_ : (REALV)(0.0f);
