// What every kernel source begins with. OpenCL C 1.2, no vendor extension.
//
// V              channels in a block of the layout nc{V}hw{V}: 4, 8 or 16
// ONE_ITEM       defined where a work-group is one work-item (a CPU: one item is a large piece)
// ACTIVATION     the function's code, below; its parameters are ACT_ALPHA and ACT_BETA
//
// HALF           defined where tensors and weights are stored as half; all is computed, and summed,
//                as float
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

// Tensors (ELEMENT, LOAD, STORE, GET, SET) and weights (WEIGHT, WLOAD, WGET) as they are stored.
// `vload_half` and `vstore_half` are part of OpenCL C without any extension.
#ifdef HALF
#define ELEMENT half
#define WEIGHT half
#define LOAD(p) CAT(vload_half, V)(0, (p))
#define STORE(value, p) CAT(vstore_half, V)((value), 0, (p))
#define GET(p, i) vload_half((i), (p))
#define SET(value, p, i) vstore_half((value), (i), (p))
#else
#define ELEMENT float
#define WEIGHT float
#define LOAD(p) VLOAD(p)
#define STORE(value, p) VSTORE(value, p)
#define GET(p, i) (p)[i]
#define SET(value, p, i) ((p)[i] = (value))
#endif
#define WLOAD(p) LOAD(p)
#define WGET(p, i) GET(p, i)

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
#define OUTSIDE (-(1 << 24))

#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("nounroll")

// A V x V matrix is transposed in registers by log2(V) perfect shuffles of its rows, here one:
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
#define SHARER get_local_id(0)
#define PARTS __local float parts[GROUP];
#define SHARE(F, value)                                                                            \
    {                                                                                              \
        __local float *mine = parts + get_local_id(1) * SHARERS;                                   \
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

// Planar rows begin anywhere, so they are never assumed to be aligned.
#define PLOAD(p) CAT(vload, V)(0, (p))
#define PSTORE(value, p) CAT(vstore, V)((value), 0, (p))
