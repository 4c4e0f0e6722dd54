// Products of a few rows with a packed matrix: those of matmul/gpu_rows.cl, where work-items unpack
// their words.

#include "matmul_nbits/unpack.cl"
#include "matmul/gpu_rows.cl"
