// ADD_DOT(sum, a, b): a sum and the products of the four bytes of two words, by whatever instruction
// the device has for that. OpenCL's own needs OpenCL C 3.0, the vendors' do not; dp4a came with
// NVIDIA's compute capability 6.1, which `codl.runtime.program_cache` tells.

#if defined(cl_khr_integer_dot_product) && defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#define ADD_DOT(sum, a, b) ((sum) + dot_4x8packed_uu_uint((a), (b)))
#elif defined(cl_arm_integer_dot_product_accumulate_int8) && \
    !defined(WITHOUT_cl_arm_integer_dot_product_accumulate_int8)
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable
#define ADD_DOT(sum, a, b) arm_dot_acc(as_uchar4(a), as_uchar4(b), (sum))
#elif defined(cl_arm_integer_dot_product_int8) && !defined(WITHOUT_cl_arm_integer_dot_product_int8)
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_int8 : enable
#define ADD_DOT(sum, a, b) ((sum) + arm_dot(as_uchar4(a), as_uchar4(b)))
#elif defined(cl_qcom_dot_product8)
#pragma OPENCL EXTENSION cl_qcom_dot_product8 : enable
#define ADD_DOT(sum, a, b) as_uint(qcom_udot8_acc((a), (b), as_int(sum)))
#elif defined(__NV_CL_C_VERSION) && COMPUTE_CAPABILITY >= 61
uint add_dot(uint sum, uint a, uint b)
{
    uint result;
    asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
    return result;
}
#define ADD_DOT(sum, a, b) add_dot((sum), (a), (b))
#else
#define BYTE(x, i) ((x) >> (8u * (i)) & 255u)
#define PRODUCT(a, b, i) (BYTE(a, i) * BYTE(b, i))
#define ADD_DOT(sum, a, b)                                                                         \
    ((sum) + PRODUCT(a, b, 0) + PRODUCT(a, b, 1) + PRODUCT(a, b, 2) + PRODUCT(a, b, 3))
#endif
