// What poolings of any storage collect, and the taps of a window that lie inside the input.
//
// MODE_MAX       maximum; otherwise the average over what lies inside the input, or over the whole
//                window where COUNT_PAD is defined

// Maxima are of REALs, sums of floats.
#ifdef MODE_MAX
#define COLLECTED REALV
#define TAKE(p) RLOAD(p)
#define TAKE_TEXEL(image, x, y) RTEXEL(image, x, y)
#define EMPTY ((REALV)(-INFINITY))
#define COLLECT(a, b) max((a), (b))
#define FINISH(value, count) TO_VEC(value)
#else
#define COLLECTED VEC
#define TAKE(p) LOAD(p)
#define TAKE_TEXEL(image, x, y) TEXEL(image, x, y)
#define EMPTY ((VEC)(0.0f))
#define COLLECT(a, b) ((a) + (b))
#define FINISH(value, count) ((value) / (float)(count))
#endif

// First and one past the last tap of a window that begins at `at` and may leave 0 ... size.
#define FIRST_TAP(at, step) ((at) < 0 ? (-(at) + (step) - 1) / (step) : 0)
#define STOP_TAP(at, step, size, taps) min((taps), max(((size) - (at) + (step) - 1) / (step), 0))
