// Rows rounded to 8 bits by the range of all of them, before they are multiplied.
//
// PAIRS          defined where a number becomes 16 bits, less the zero point; else it becomes a byte
//                as it is
// rounded        [row][depth], `depth` being k to whole words of numbers, filled up with zeros
// facts          of every row: the bits of the scale, the zero point, and the sum of the numbers less
//                that

// What a product leaves of x, exactly: where `fma` is slow, by the products of upper and lower halves
// of both factors, which are exact (Dekker 1971).
#ifdef FAST_FMA
#define LEFT(T, U, x, a, b) fma(-(a), (b), (x))
#else
#define UPPER(T, U, a) CAT(as_, T)(CAT(as_, U)(a) & 0xfffff000u)
#define LEFT(T, U, x, a, b) CAT(left_of_, T)((x), (a), (b))
#define LEFT_OF(T, U)                                                                              \
    T CAT(left_of_, T)(T x, T a, T b)                                                              \
    {                                                                                              \
        const T a_upper = UPPER(T, U, a), a_lower = a - a_upper;                                   \
        const T b_upper = UPPER(T, U, b), b_lower = b - b_upper;                                   \
        return x - a_upper * b_upper - a_upper * b_lower - a_lower * b_upper - a_lower * b_lower;  \
    }
LEFT_OF(float, uint)
LEFT_OF(VEC, CAT(uint, V))
#endif
// Correctly rounded, whatever a device's division is: `inverse` is near 1 / y.
#define QUOTIENT(T, U, x, y, inverse)                                                              \
    FMA(LEFT(T, U, (x), (x) * (inverse), (y)), (inverse), (x) * (inverse))
#define INVERSE(y) FMA(LEFT(float, uint, 1.0f, (y), 1.0f / (y)), 1.0f / (y), 1.0f / (y))
#define STEPS 255.0f
#ifdef PAIRS
#define NUMBER short
#define TO_NUMBER(x) convert_short(x)
#define KEEP(x, p) CAT(vstore, V)(CAT(convert_short, V)(x), 0, (p))
#else
#define NUMBER uchar
#define TO_NUMBER(x) convert_uchar((x) + zero)
#define KEEP(x, p) CAT(vstore, V)(CAT(convert_uchar, V)((x) + zero), 0, (p))
#endif
#define ROUNDED(T, U, x)                                                                           \
    fmin(fmax(rint(QUOTIENT(T, U, (x), (T)(scale), (T)(inverse))), (T)(-zero)), (T)(STEPS - zero))
#define SUM(a, b) ((a) + (b))

KERNEL void round_rows(
    __global const ELEMENT *a, int a_offset, int a_stride,
    __global const ELEMENT *ranges, int ranges_offset, int ranges_stride,
    __global NUMBER *rounded, __global int4 *facts,
    int strip, int rows, int ends, int k, int depth)
{
    PARTS
    float low = 0.0f, high = 0.0f;
    for (int i = SHARER; i < ends; i += SHARERS) {
        low = fmin(low, GET(ranges, ranges_offset + i));
        high = fmax(high, GET(ranges, ranges_offset + i));
    }
    SHARE(fmin, low)
    SHARE(fmax, high)
    const float step = QUOTIENT(float, uint, high - low, STEPS, INVERSE(STEPS));
    const float scale = step > 0.0f ? step : 1.0f, inverse = INVERSE(scale);
    const float zero = rint(fmin(fmax(QUOTIENT(float, uint, -low, scale, inverse), 0.0f), STEPS));
    const int whole = k / V * V;
    for (int i = 0; i < strip; i++) {
        const int row = GLOBAL_ID(1) * strip + i;
        if (SHARERS == 1 && row >= rows) break;
        // Every work-item of a group comes to every barrier; those without a row repeat the last.
        const int own = min(row, rows - 1);
        __global const ELEMENT *in = a + a_offset + (ADDRESS)own * k;
        __global NUMBER *out = rounded + (ADDRESS)own * depth;
        VEC sums = (VEC)(0.0f);
        for (int j = SHARER * V; j < whole; j += SHARERS * V) {
            const VEC x = ROUNDED(VEC, CAT(uint, V), PLOAD(in + j));
            sums += x;
            KEEP(x, out + j);
        }
        float total = FOLD(SUM, sums);
        for (int j = whole + SHARER; j < k; j += SHARERS) {
            const float x = ROUNDED(float, uint, GET(in, j));
            total += x;
            out[j] = TO_NUMBER(x);
        }
        for (int j = k + SHARER; j < depth; j += SHARERS) out[j] = 0;
        SHARE(SUM, total)
        if (row < rows && SHARER == 0)
            facts[row] = (int4)(as_int(scale), convert_int(zero), convert_int(total), 0);
    }
}
