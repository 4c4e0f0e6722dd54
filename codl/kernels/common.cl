// What every kernel source begins with. OpenCL C 1.2, no vendor extension; cl_khr_fp16 where halves
// are multiplied.
//
// WIDE           defined where a tensor has more bytes than 32 bits count
// V              channels in a block of the layout nc{V}hw{V}: 4, 8 or 16
// ONE_ITEM       defined where a work-group is one work-item (a CPU: one item is a large piece)
// ACTIVATION     the function's code, below; its parameters are ACT_ALPHA and ACT_BETA
//
// HALF           defined where tensors and weights are stored as half; all is computed, and summed,
//                as float
// HALF_ARITHMETIC  defined, with HALF, where they are multiplied as halves too: REAL, REALV. What is
//                summed of more than RUN products is summed as float
// RUSTICL        defined, with that, where Mesa compiles kernels over images
//
// A tensor is three arguments: data, offset and block stride, both in pixels of V elements. A tensor
// in an image is three too: the image, and the column and the row of its first texel. Images convert
// halves themselves, so their kernels are the same for either type.

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

#define VEC CAT(float, V)

// Blocks of 8 and 16 floats are not assumed to be aligned to their size: a CPU loads either way at
// the same speed. Four floats are always aligned, because offsets are whole pixels.
#if V == 4
#define VLOAD(p) (*(const __global VEC *)(p))
#define VSTORE(value, p) (*(__global VEC *)(p) = (value))
#else
#define VLOAD(p) CAT(vload, V)(0, (p))
#define VSTORE(value, p) CAT(vstore, V)((value), 0, (p))
#endif

// Some compilers define extensions that their device lacks, which `codl.runtime.program_cache` tells.
#if defined(cl_khr_fp16) && !defined(WITHOUT_cl_khr_fp16)
#define HAS_HALVES
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define FOUR_HALVES(p) convert_float4(*(const __global half4 *)(p))
#define FOUR_HALVES_SET(value, p) (*(__global half4 *)(p) = convert_half4(value))
#else
#define FOUR_HALVES(p) vloada_half4(0, (p))
#define FOUR_HALVES_SET(value, p) vstorea_half4((value), 0, (p))
#endif

// Tensors (ELEMENT, LOAD, STORE, GET, SET) and weights (WEIGHT, WLOAD, WGET) as they are stored.
// `vload_half` and `vstore_half` are part of OpenCL C without any extension.
#ifdef HALF
#define ELEMENT half
#define WEIGHT half
// A GPU loads four halves at once only where they are known to be aligned, and some only where they
// are a vector.
#if V == 4
#define LOAD(p) FOUR_HALVES(p)
#define STORE(value, p) FOUR_HALVES_SET(value, p)
#else
#define LOAD(p) CAT(vload_half, V)(0, (p))
#define STORE(value, p) CAT(vstore_half, V)((value), 0, (p))
#endif
#define GET(p, i) vload_half(0, AT(p, i))
#define SET(value, p, i) vstore_half((value), 0, AT(p, i))
#else
#define ELEMENT float
#define WEIGHT float
#define LOAD(p) VLOAD(p)
#define STORE(value, p) VSTORE(value, p)
#define GET(p, i) (*AT(p, i))
#define SET(value, p, i) (*AT(p, i) = (value))
#endif
#define WLOAD(p) LOAD(p)
#define WGET(p, i) GET(p, i)

// The type that products are of, and tensors and weights as such. A sum of more than RUN products is
// of floats, to which sums of about as many REALs are added: 16 to 24 products are off by 7e-4 of their
// size, and storage by 3e-4. With 32 GoogLeNet's cosine was 0.9989, with 16 it is 0.9994.
#ifdef HALF_ARITHMETIC
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define REAL half
#define REALV CAT(half, V)
#define TO_VEC(x) CAT(convert_float, V)(x)
#define TO_REALV(x) CAT(convert_half, V)(x)
#define RUN 16
#if V == 4
#define RLOAD(p) (*(const __global REALV *)(p))
#define RSTORE(value, p) (*(__global REALV *)(p) = (value))
#else
#define RLOAD(p) CAT(vload, V)(0, (p))
#define RSTORE(value, p) CAT(vstore, V)((value), 0, (p))
#endif
#define RGET(p, i) (p)[i]
#else
#define REAL float
#define REALV VEC
#define TO_VEC(x) (x)
#define TO_REALV(x) (x)
#define RLOAD(p) LOAD(p)
#define RSTORE(value, p) STORE(value, p)
#define RGET(p, i) GET(p, i)
#endif

// Images. What lies outside of one reads as zeros; OUTSIDE is a column so far out that it stays so
// whatever is added to it.
#ifdef __IMAGE_SUPPORT__
__constant sampler_t TEXELS =
    CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;
#endif
#define IMAGE_IN __read_only image2d_t
#define IMAGE_OUT __write_only image2d_t
#define TEXEL(image, x, y) read_imagef((image), TEXELS, (int2)((x), (y)))
#define TEXEL_SET(image, x, y, value) write_imagef((image), (int2)((x), (y)), (value))
// Mesa makes the same of a half that is read and of a float that becomes one; but for a Mali its
// version 25.0 crashes over the former.
#if defined(HALF_ARITHMETIC) && defined(RUSTICL)
#define RTEXEL(image, x, y) convert_half4(TEXEL(image, x, y))
#define RTEXEL_SET(image, x, y, value) TEXEL_SET(image, x, y, convert_float4(value))
#elif defined(HALF_ARITHMETIC)
#define RTEXEL(image, x, y) read_imageh((image), TEXELS, (int2)((x), (y)))
#define RTEXEL_SET(image, x, y, value) write_imageh((image), (int2)((x), (y)), (value))
#else
#define RTEXEL(image, x, y) TEXEL(image, x, y)
#define RTEXEL_SET(image, x, y, value) TEXEL_SET(image, x, y, value)
#endif
#define OUTSIDE (-(1 << 24))
#define LANE_OF(texel, i)                                                                          \
    ((i) == 0 ? (texel).s0 : (i) == 1 ? (texel).s1 : (i) == 2 ? (texel).s2 : (texel).s3)

// UNROLLED(i, n, { ... }) is the body for i = 0 ... n - 1, written out before the compiler sees it, and
// `i` a constant in it: so private arrays stay in registers, whatever a compiler makes of pragmas. `n` is
// a macro of a plain number, at most 64; commas of the body stand in parentheses. One work-item on a CPU
// has a loop, which its compiler unrolls, and so has what is ROLLED, because a number is larger. UNROLL
// asks for that where no array is at stake.
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("nounroll")
#if defined(ONE_ITEM) || defined(ROLLED)
#define UNROLLED(i, n, body) UNROLL for (int i = 0; i < n; i++) body
#else
#define UNROLLED(i, n, body) { CAT(TIMES_, n)(i, body) }
#include "times.cl"
#endif

// A V x V matrix is transposed in registers by log2(V) perfect shuffles of its rows:
// a0 b0 a1 b1 ... of the lower or the upper halves. As masks, because compilers make one instruction
// of these and several of `.even` and `.odd`.
#if V == 4
#define HALF_OF_V 2
#define MASK(first) ((uint4)(0, 4, 1, 5) + (first))
#elif V == 8
#define HALF_OF_V 4
#define MASK(first) ((uint8)(0, 8, 1, 9, 2, 10, 3, 11) + (first))
#else
#define HALF_OF_V 8
#define MASK(first) ((uint16)(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23) + (first))
#endif
#define SHUFFLE(FROM, TO)                                                                          \
    UNROLLED(i, HALF_OF_V, {                                                                       \
        TO[2 * i] = shuffle2(FROM[i], FROM[i + V / 2], MASK(0));                                   \
        TO[2 * i + 1] = shuffle2(FROM[i], FROM[i + V / 2], MASK(V / 2));                           \
    })

// Leaves the transpose of `m` in `m`; `t` is another V vectors.
#if V == 4
#define TRANSPOSE SHUFFLE(m, t) SHUFFLE(t, m)
#elif V == 8
#define TRANSPOSE                                                                                  \
    SHUFFLE(m, t) SHUFFLE(t, m) SHUFFLE(m, t)                                                      \
    UNROLLED(i, V, { m[i] = t[i]; })
#else
#define TRANSPOSE SHUFFLE(m, t) SHUFFLE(t, m) SHUFFLE(m, t) SHUFFLE(t, m)
#endif

// Told that a kernel is in vectors already, Intel's compiler does not try to make some of work-items,
// which takes it most of the time and leads to nothing.
#ifdef ONE_ITEM
#define KERNEL __kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(VEC)))
#else
#define KERNEL __kernel
#endif

#ifndef ACTIVATION
#define ACTIVATION 0
#endif

// As `max` and `min` with a number, but what is not a number stays so, in scalars and in vectors.
#define AT_LEAST(x, low) ((x) < (low) ? (low) : (x))
#define AT_MOST(x, high) ((x) > (high) ? (high) : (x))
#define SIGMOID(x) (1.0f / (1.0f + exp(-(x))))
// erfc of what is not negative, to 1e-5 of its value: a polynomial of t = 1 / (1 + z / 2), and one exp
// (Numerical Recipes, section 6.2). Intel's own takes twice as long.
#define ERFC_T(z) (1.0f / (1.0f + 0.5f * (z)))
#define ERFC(z)                                                                                    \
    (ERFC_T(z) * exp(-(z) * (z) - 1.26551223f + ERFC_T(z) * ERFC_SERIES(ERFC_T(z))))
#define ERFC_SERIES(t)                                                                             \
    (1.00002368f + (t) * (0.37409196f + (t) * (0.09678418f + (t) * (-0.18628806f + (t) *           \
    (0.27886807f + (t) * (-1.13520398f + (t) * (1.48851587f + (t) * (-0.82215223f + (t) *          \
    0.17087277f))))))))
#if ACTIVATION == 1  // relu
#define ACTIVATE(x) AT_LEAST(x, 0.0f)
#elif ACTIVATION == 2  // leaky_relu
#define ACTIVATE(x) ((x) < 0.0f ? ACT_ALPHA * (x) : (x))
#elif ACTIVATION == 3  // clip
#define ACTIVATE(x) AT_MOST(AT_LEAST(x, ACT_ALPHA), ACT_BETA)
#elif ACTIVATION == 4  // sigmoid
#define ACTIVATE(x) SIGMOID(x)
#elif ACTIVATION == 5  // tanh
#define ACTIVATE(x) tanh(x)
#elif ACTIVATION == 6  // hard_sigmoid
#define ACTIVATE(x) AT_MOST(AT_LEAST(ACT_ALPHA * (x) + ACT_BETA, 0.0f), 1.0f)
#elif ACTIVATION == 7  // hard_swish
#define ACTIVATE(x) ((x) * clamp((x) * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f))
#elif ACTIVATION == 8  // gelu: with erfc, which is 0 where 1 + erf may still be a rounding error, and at once
#define ACTIVATE(x) (AT_LEAST(x, 0.0f) - 0.5f * fabs(min((x), 64.0f)) * ERFC(0.70710678f * fabs(x)))
#elif ACTIVATION == 9  // gelu_tanh: (1 + tanh(x)) / 2 is sigmoid(2 x), and 0 in time
#define ACTIVATE(x) ((x) * SIGMOID(1.5957691f * ((x) + 0.044715f * (x) * (x) * (x))))
#elif ACTIVATION == 10  // silu
#define ACTIVATE(x) ((x) * SIGMOID(x))
#elif ACTIVATION == 11  // elu
#define ACTIVATE(x) (AT_LEAST(x, 0.0f) + ACT_ALPHA * expm1(min((x), 0.0f)))
#elif ACTIVATION == 12  // erf
#define ACTIVATE(x) erf(x)
#else
#define ACTIVATE(x) (x)
#endif
// The same of REALs.
#if !defined(HALF_ARITHMETIC) || ACTIVATION == 0
#define RACTIVATE(x) ACTIVATE(x)
#elif ACTIVATION == 1
#define RACTIVATE(x) AT_LEAST(x, (half)0.0f)
#else
#define RACTIVATE(x) TO_REALV(ACTIVATE(TO_VEC(x)))
#endif

// A sum of products, by one instruction where there is one: phones have none for `fma`.
#if defined(FP_FAST_FMAF) || defined(ONE_ITEM)
#define FAST_FMA
#define FMA(a, b, c) fma((a), (b), (c))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

// Ids as ints: phones divide 64 bits by a thousand instructions.
#define GLOBAL_ID(d) ((int)get_global_id(d))
#define GROUP_ID(d) ((int)get_group_id(d))
#define LOCAL_ID(d) ((int)get_local_id(d))
#define GLOBAL_SIZE(d) ((int)get_global_size(d))
#define GROUPS(d) ((int)get_num_groups(d))

// A kernel of all images of a batch has one more argument for each tensor, behind its others: how many
// pixels (of a planar tensor, elements) lie from one image to the next. Images are its third dimension.
#define IMAGE_ID GLOBAL_ID(2)
#define OF_IMAGE(offset, apart) offset += IMAGE_ID * (apart);

// What counts elements; WIDE is defined where a tensor has 4 GB of them. Phones add 64 bits by several
// instructions.
#if defined(WIDE) || defined(ONE_ITEM)
#define ADDRESS size_t
#else
#define ADDRESS uint
#endif
// Element `i` of elements that begin at p; `i` is not negative. Bytes are counted in 32 bits, too.
#if defined(WIDE) || defined(ONE_ITEM)
#define AT_OF(T, p, i) ((p) + (i))
#else
#define AT_OF(T, p, i) ((__global T *)((__global char *)(p) + (ADDRESS)(i) * (uint)sizeof(T)))
#endif
#define AT(p, i) AT_OF(ELEMENT, p, i)
#define FLOAT_AT(p, i) AT_OF(float, p, i)
// First element of block `b` of a tensor.
#define BLOCK(data, offset, stride, b) AT(data, ((ADDRESS)(b) * (stride) + (offset)) * V)

// Which strip of pixels and which block of channels a work-item has; see `item_grid`.
#ifdef ONE_ITEM
#define STRIP_ID GLOBAL_ID(1)
#define BLOCK_ID GLOBAL_ID(0)
#else
#define STRIP_ID GLOBAL_ID(0)
#define BLOCK_ID GLOBAL_ID(1)
#endif

// One value of all lanes of a vector, by a function of two that the order does not matter to.
#define FOLD2(F, v) F((v).s0, (v).s1)
#define FOLD4(F, v) FOLD2(F, F((v).lo, (v).hi))
#define FOLD8(F, v) FOLD4(F, F((v).lo, (v).hi))
#define FOLD16(F, v) FOLD8(F, F((v).lo, (v).hi))
#define FOLD(F, v) CAT(FOLD, V)(F, v)

// Work-items that share a row: SHARERS of them, neighbours in the first dimension of a work-group,
// which has GROUP work-items. SHARE leaves F of what every sharer has in `value`; each work-item of
// the group must come to it, and PARTS be declared in the kernel.
#if defined(SHARERS) && SHARERS > 1
#define SHARER LOCAL_ID(0)
#define PARTS __local float parts[GROUP];
#define SHARE(F, value)                                                                            \
    {                                                                                              \
        __local float *mine = parts + LOCAL_ID(1) * SHARERS;                                   \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        mine[SHARER] = (value);                                                                    \
        for (int half_ = SHARERS / 2; half_ > 0; half_ /= 2) {                                     \
            barrier(CLK_LOCAL_MEM_FENCE);                                                          \
            if (SHARER < half_) mine[SHARER] = F(mine[SHARER], mine[SHARER + half_]);              \
        }                                                                                          \
        barrier(CLK_LOCAL_MEM_FENCE);                                                              \
        value = mine[0];                                                                           \
    }
#else
#define SHARERS 1
#define SHARER 0
#define PARTS
#define SHARE(F, value)
#endif

// Floats that begin anywhere, whatever tensors are stored as: in registers, local memory and scratch.
#define FLOAD(p) CAT(vload, V)(0, (p))
#define FSTORE(value, p) CAT(vstore, V)((value), 0, (p))

// Planar rows begin anywhere, so they are never assumed to be aligned.
#ifdef HALF
#define PLOAD(p) CAT(vload_half, V)(0, (p))
#define PSTORE(value, p) CAT(vstore_half, V)((value), 0, (p))
#else
#define PLOAD(p) FLOAD(p)
#define PSTORE(value, p) FSTORE(value, p)
#endif
