// The sums of the products of both halves of each lane, which have signs. Compilers know the instruction
// by the sums of neighbours in a vector that OpenCL C has no name for.
#define IVEC CAT(int, V)
#define AS_IVEC CAT(as_int, V)
#if defined(__clang__) && V > 4
typedef short HALVES __attribute__((ext_vector_type(2 * V)));
typedef int PRODUCTS __attribute__((ext_vector_type(2 * V)));
#if V == 8
#define NEIGHBOURS(m, i)                                                                           \
    __builtin_shufflevector(m, m, i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14)
#else
#define NEIGHBOURS(m, i)                                                                           \
    __builtin_shufflevector(m, m, i, i + 2, i + 4, i + 6, i + 8, i + 10, i + 12, i + 14, i + 16,   \
                            i + 18, i + 20, i + 22, i + 24, i + 26, i + 28, i + 30)
#endif
#define WIDENED(x) __builtin_convertvector(__builtin_astype((x), HALVES), PRODUCTS)
IVEC pair_products(UVEC a, UVEC b)
{
    const PRODUCTS m = WIDENED(a) * WIDENED(b);
    return NEIGHBOURS(m, 0) + NEIGHBOURS(m, 1);
}
#else
#define LOWER_HALF(x) (AS_IVEC((x) << 16u) >> 16)
#define UPPER_HALF(x) (AS_IVEC(x) >> 16)
IVEC pair_products(UVEC a, UVEC b)
{
    return LOWER_HALF(a) * LOWER_HALF(b) + UPPER_HALF(a) * UPPER_HALF(b);
}
#endif
