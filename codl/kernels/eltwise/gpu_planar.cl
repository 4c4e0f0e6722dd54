// Element-wise operators over planar tensors in one piece: `strip` chunks of V elements a work-item.
//
// UNARY          defined where there is one input; the second one's arguments repeat the first's
// STRETCHED_i    defined where axes of input i are stretched to the output's
// elements       of the output; `size_1` ... of its inner axes
// step_i_0 ...   how far input i moves on for each of the output's axes: 0 where it stays

#include "eltwise/modes.cl"
#include "tails.cl"

// The place in an input of an element of the output.
#define PLACE(at, step_0, step_1, step_2, step_3)                                                  \
    ((at) % size_3 * step_3 + (at) / size_3 % size_2 * step_2 +                                    \
     (at) / size_3 / size_2 % size_1 * step_1 + (at) / size_3 / size_2 / size_1 * step_0)

// `count` elements of the output from `at` on. Lanes behind them take what no function minds.
#define TAKE(value, p, count, INDEX)                                                               \
    VEC value;                                                                                     \
    {                                                                                              \
        float lanes_[V];                                                                           \
        UNROLL for (int i = 0; i < V; i++) lanes_[i] = i < (count) ? GET((p), INDEX) : 1.0f;       \
        value = FLOAD(lanes_);                                                                     \
    }

// A chunk inside of one row of the output is one of an input, or one element of it.
#define TAKE_STRETCHED(value, p, count, step_0, step_1, step_2, step_3)                            \
    VEC value;                                                                                     \
    {                                                                                              \
        __global const ELEMENT *from_ = (p) + PLACE(at, step_0, step_1, step_2, step_3);           \
        if ((count) == V && at % size_3 + V <= size_3) {                                           \
            value = step_3 ? PLOAD(from_) : (VEC)(GET(from_, 0));                                  \
        } else {                                                                                   \
            TAKE(each_, p, count, PLACE(at + i, step_0, step_1, step_2, step_3))                   \
            value = each_;                                                                         \
        }                                                                                          \
    }

#define TAKE_DENSE(value, p, count)                                                                \
    VEC value;                                                                                     \
    if ((count) == V) {                                                                            \
        value = PLOAD((p) + at);                                                                   \
    } else {                                                                                       \
        TAKE(each_, p, count, at + i)                                                              \
        value = each_;                                                                             \
    }

KERNEL void eltwise_planar(
    __global const ELEMENT *input, int input_offset, int input_stride,
    __global const ELEMENT *other, int other_offset, int other_stride,
    __global ELEMENT *output, int output_offset, int output_stride, int strip, int elements,
    int size_1, int size_2, int size_3, int step_0_0, int step_0_1, int step_0_2, int step_0_3,
    int step_1_0, int step_1_1, int step_1_2, int step_1_3)
{
    __global const ELEMENT *a = input + input_offset, *b = other + other_offset;
    __global ELEMENT *out = output + output_offset;
    const int stop = min((int)(STRIP_ID + 1) * strip * V, elements);
    for (int at = STRIP_ID * strip * V; at < stop; at += V) {
        const int count = min(V, stop - at);
#ifdef STRETCHED_0
        TAKE_STRETCHED(left, a, count, step_0_0, step_0_1, step_0_2, step_0_3)
#else
        TAKE_DENSE(left, a, count)
#endif
#ifdef UNARY
        const VEC right = left;
#elif defined(STRETCHED_1)
        TAKE_STRETCHED(right, b, count, step_1_0, step_1_1, step_1_2, step_1_3)
#else
        TAKE_DENSE(right, b, count)
#endif
        const VEC value = ACTIVATE(COMBINE(left, right));
        STORE_LANES(value, out + at, count)
    }
}
