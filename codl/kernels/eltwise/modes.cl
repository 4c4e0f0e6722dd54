// What element-wise operators compute of one element of each input.
//
// MODE           the function's code; its parameters are MODE_ALPHA and MODE_BETA

#if MODE == 0
#define COMBINE(a, b) ((a) + (b))
#elif MODE == 1
#define COMBINE(a, b) ((a) - (b))
#elif MODE == 2
#define COMBINE(a, b) ((a) * (b))
#elif MODE == 3
#define COMBINE(a, b) ((a) / (b))
#elif MODE == 4
#define COMBINE(a, b) (((a) >= (b)) | ((a) != (a)) ? (a) : (b))
#elif MODE == 5
#define COMBINE(a, b) (((a) <= (b)) | ((a) != (a)) ? (a) : (b))
#elif MODE == 6
#define COMBINE(a, b) pow((a), (b))
#elif MODE == 7
#define COMBINE(a, b) ((a) < 0.0f ? (b) * (a) : (a))
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
#define COMBINE(a, b) (isnan(a) ? (a) : sign(a))
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
#define COMBINE(a, b) (MODE_BETA * (AT_LEAST(a, 0.0f) + MODE_ALPHA * expm1(min((a), 0.0f))))
#elif MODE == 34  // celu
#define COMBINE(a, b) (AT_LEAST(a, 0.0f) + MODE_ALPHA * expm1(min((a), 0.0f) * (1.0f / MODE_ALPHA)))
#elif MODE == 35  // thresholded_relu
#define COMBINE(a, b) ((a) > (VEC)(MODE_ALPHA) ? (a) : (VEC)(0.0f))
#else  // shrink
#define COMBINE(a, b) (fabs(a) > (VEC)(MODE_BETA) ? (a) - MODE_ALPHA * sign(a) : (VEC)(0.0f))
#endif
// No exponential of a large number: it would be infinite.
#define SOFTPLUS(x) (max((x), 0.0f) + log1p(exp(-fabs(x))))
