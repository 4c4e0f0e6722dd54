// A planar tensor beside one in blocks or images, of halves where PLANAR_HALF is defined. Its rows
// begin anywhere, so they are never assumed to be aligned.

#ifdef PLANAR_HALF
#define PLANAR half
#define PLANAR_LOAD(p) CAT(vload_half, V)(0, (p))
#define PLANAR_STORE(value, p) CAT(vstore_half, V)((value), 0, (p))
#define PLANAR_GET(p) vload_half(0, (p))
#define PLANAR_SET(value, p) vstore_half((value), 0, (p))
#else
#define PLANAR float
#define PLANAR_LOAD(p) CAT(vload, V)(0, (p))
#define PLANAR_STORE(value, p) CAT(vstore, V)((value), 0, (p))
#define PLANAR_GET(p) (*(p))
#define PLANAR_SET(value, p) (*(p) = (value))
#endif
