// Convolution as a matrix product, (pixels x taps and input channels) * (these x output channels),
// without unfolding the input in memory. For GPUs with local memory; V is 4.
//
// A work-group has a tile of TILE_M = TM * ITEMS_M pixels x TILE_N = TN * ITEMS_N channels, of which
// each work-item keeps TM x TN sums in registers. A step brings DEPTH blocks of four inputs of both
// factors to local memory while the step before is multiplied, so that local memory holds two. TEAMS
// such teams of work-items share the steps of one tile, and work-groups the `splits` of all of them.
//
// local memory   [two steps][team]{ pixels [DEPTH][TILE_M], weights [DEPTH][4 lanes][TILE_N / 4] }
//                of float4; afterwards the teams' sums, [team][TM * TN / 4][item]
// a step         blocks of inputs, counted tap after tap: (tap y * kernel w + tap x) * blocks + block
// weight         [batch][tile of channels][step][DEPTH][4 lanes][TILE_N], zeros beyond the last
// POINTWISE      defined for 1x1 windows without padding: every tap lies inside
// RAW            defined where sums go to [split][batch][block][pixel] without bias and activation
// Sizes in pixels of four channels.

#define TILE_M (TM * ITEMS_M)
#define TILE_N (TN * ITEMS_N)
#define ITEMS (ITEMS_M * ITEMS_N)
#define VECTORS (TN / 4)
#define A_SIZE (DEPTH * TILE_M)
#define B_SIZE (DEPTH * TILE_N)
#define A_LOADS ((A_SIZE + ITEMS - 1) / ITEMS)
#define B_LOADS ((B_SIZE + ITEMS - 1) / ITEMS)
#define STEP_SIZE (TEAMS * (A_SIZE + B_SIZE))
#define SUMS_SIZE (TEAMS / 2 * ITEMS * TM * VECTORS)
#define LOCAL_SIZE (2 * STEP_SIZE > SUMS_SIZE ? 2 * STEP_SIZE : SUMS_SIZE)

// Where the next float4 of pixels that an item brings in comes from.
typedef struct {
    int pixel;      // POINTWISE: in the input; otherwise the output pixel exists
    int y, x;       // the top left corner of the window
    int ky, kx, block;
} Source;

__kernel __attribute__((reqd_work_group_size(ITEMS * TEAMS, 1, 1))) void conv2d_gemm(
    __global const float *restrict input, int input_offset, int input_stride,
    __global float *restrict output, int output_offset, int output_stride,
    __global const float *restrict weight, __global const float *restrict bias, int splits,
    int steps, int in_blocks, int out_blocks, int out_pixels, int in_h, int in_w, int out_w,
    int kernel_w, int stride_h, int stride_w, int pad_top, int pad_left, int dilation_h,
    int dilation_w)
{
    __local float4 shared[LOCAL_SIZE];
    const int team = get_local_id(0) / ITEMS, item = get_local_id(0) % ITEMS;
    // Neighbours in pairs share pixels: local memory serves them at once.
    const int item_m = item / 2 % ITEMS_M, item_n = item % 2 + item / (2 * ITEMS_M) * 2;
    const int first_pixel = get_group_id(0) * TILE_M, tile_n = get_group_id(1);
    const int batches = get_num_groups(2) / splits;
    const int batch = get_group_id(2) % batches, split = get_group_id(2) / batches;
    // Steps of every tile, and those of this team.
    const int all_steps = steps * TEAMS * splits, first_step = (split * TEAMS + team) * steps;

    __global const float *in =
        input + ((size_t)batch * in_blocks * input_stride + input_offset) * 4;
    __global const float *weights = weight +
        (((size_t)batch * get_num_groups(1) + tile_n) * all_steps + first_step) * B_SIZE * 4;
    Source sources[A_LOADS];
    UNROLL for (int i = 0; i < A_LOADS; i++) {
        const int at = item + i * ITEMS, pixel = first_pixel + at % TILE_M;
        const int inside = min(pixel, out_pixels - 1), k = first_step * DEPTH + at / TILE_M;
        const int y = inside / out_w, x = inside - y * out_w, tap = k / in_blocks;
        sources[i].y = y * stride_h - pad_top;
        sources[i].x = x * stride_w - pad_left;
        sources[i].pixel = sources[i].y * in_w + sources[i].x;
        sources[i].ky = tap / kernel_w;
        sources[i].kx = tap - sources[i].ky * kernel_w;
        sources[i].block = k - tap * in_blocks;
    }

    float4 a[A_LOADS], b[B_LOADS];

// The next step from global memory to registers.
#ifdef POINTWISE
#define FETCH_A(s)                                                                                 \
    VLOAD(in + ((size_t)min((s).block, in_blocks - 1) * input_stride + (s).pixel) * 4);            \
    (s).block += DEPTH
#else
#define FETCH_A(s)                                                                                 \
    (float4)(0.0f);                                                                                \
    {                                                                                              \
        const int y = (s).y + (s).ky * dilation_h, x = (s).x + (s).kx * dilation_w;                \
        if (y >= 0 && y < in_h && x >= 0 && x < in_w)                                              \
            a[i] = VLOAD(in + ((size_t)(s).block * input_stride + y * in_w + x) * 4);              \
        (s).block += DEPTH;                                                                        \
        while ((s).block >= in_blocks) {                                                           \
            (s).block -= in_blocks;                                                                \
            if (++(s).kx == kernel_w) {                                                            \
                (s).kx = 0;                                                                        \
                (s).ky++;                                                                          \
            }                                                                                      \
        }                                                                                          \
    }
#endif
#define FETCH                                                                                      \
    UNROLL for (int i = 0; i < A_LOADS; i++)                                                       \
        if (A_SIZE % ITEMS == 0 || item + i * ITEMS < A_SIZE) {                                    \
            a[i] = FETCH_A(sources[i]);                                                            \
        }                                                                                          \
    UNROLL for (int i = 0; i < B_LOADS; i++)                                                       \
        if (B_SIZE % ITEMS == 0 || item + i * ITEMS < B_SIZE)                                      \
            b[i] = VLOAD(weights + (item + i * ITEMS) * 4);                                        \
    weights += B_SIZE * 4;

// From registers to the half of local memory that is not being read.
#define KEEP(buffer)                                                                                 \
    {                                                                                              \
        __local float4 *to = shared + (buffer) * STEP_SIZE + team * (A_SIZE + B_SIZE);               \
        UNROLL for (int i = 0; i < A_LOADS; i++)                                                   \
            if (A_SIZE % ITEMS == 0 || item + i * ITEMS < A_SIZE) to[item + i * ITEMS] = a[i];     \
        UNROLL for (int i = 0; i < B_LOADS; i++)                                                   \
            if (B_SIZE % ITEMS == 0 || item + i * ITEMS < B_SIZE)                                  \
                to[A_SIZE + item + i * ITEMS] = b[i];                                              \
    }

    float4 sums[TM][VECTORS];
    UNROLL for (int m = 0; m < TM; m++)
        UNROLL for (int n = 0; n < VECTORS; n++) sums[m][n] = (float4)(0.0f);

    FETCH
    KEEP(0)
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) { FETCH }
        const __local float4 *pixels =
            shared + (step & 1) * STEP_SIZE + team * (A_SIZE + B_SIZE) + item_m;
        const __local float4 *channels = pixels - item_m + A_SIZE + item_n;
        UNROLL for (int k = 0; k < DEPTH; k++) {
            float4 w[4][VECTORS];
            UNROLL for (int lane = 0; lane < 4; lane++)
                UNROLL for (int n = 0; n < VECTORS; n++)
                    w[lane][n] = channels[(k * 4 + lane) * (TILE_N / 4) + n * ITEMS_N];
            UNROLL for (int m = 0; m < TM; m++) {
                const float4 x = pixels[k * TILE_M + m * ITEMS_M];
                UNROLL for (int n = 0; n < VECTORS; n++) {
                    sums[m][n] += x.s0 * w[0][n];
                    sums[m][n] += x.s1 * w[1][n];
                    sums[m][n] += x.s2 * w[2][n];
                    sums[m][n] += x.s3 * w[3][n];
                }
            }
        }
        if (step + 1 < steps) KEEP((step + 1) & 1)
        barrier(CLK_LOCAL_MEM_FENCE);
    }

#if TEAMS > 1
    // The upper half of the teams hands its sums to the lower half, until one team is left.
    for (int left = TEAMS / 2; left > 0; left /= 2) {
        __local float4 *parts = shared + team % left * (ITEMS * TM * VECTORS) + item;
        if (team >= left && team < 2 * left)
            UNROLL for (int m = 0; m < TM; m++)
                UNROLL for (int n = 0; n < VECTORS; n++)
                    parts[(m * VECTORS + n) * ITEMS] = sums[m][n];
        barrier(CLK_LOCAL_MEM_FENCE);
        if (team < left)
            UNROLL for (int m = 0; m < TM; m++)
                UNROLL for (int n = 0; n < VECTORS; n++)
                    sums[m][n] += parts[(m * VECTORS + n) * ITEMS];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (team > 0) return;
#endif

#ifdef RAW
    __global float *out = output + (size_t)get_group_id(2) * out_blocks * out_pixels * 4;
#endif
    UNROLL for (int n = 0; n < VECTORS; n++) {
        const int block = tile_n * (TILE_N / 4) + n * ITEMS_N + item_n;
        if (block >= out_blocks) continue;
#ifdef RAW
        __global float *to = out + (size_t)block * out_pixels * 4;
#else
        __global float *to = BLOCK(output, output_offset, output_stride, block);
        const float4 start = VLOAD(bias + block * 4);
#endif
        UNROLL for (int m = 0; m < TM; m++) {
            const int pixel = first_pixel + m * ITEMS_M + item_m;
            if (pixel >= out_pixels) continue;
#ifdef RAW
            VSTORE(sums[m][n], to + (size_t)pixel * 4);
#else
            VSTORE(ACTIVATE(sums[m][n] + start), to + (size_t)pixel * 4);
#endif
        }
    }
}

// Adds what the splits of all steps left: one work-item a pixel and block.
__kernel void conv2d_gemm_sum(
    __global const float *restrict parts, __global float *restrict output, int output_offset,
    int output_stride, __global const float *restrict bias, int splits, int out_blocks,
    int out_pixels)
{
    const int pixel = get_global_id(0), block = get_global_id(1);
    if (pixel >= out_pixels) return;
    float4 sum = VLOAD(bias + block * 4);
    for (int split = 0; split < splits; split++)
        sum += VLOAD(parts + (((size_t)split * out_blocks + block) * out_pixels + pixel) * 4);
    VSTORE(ACTIVATE(sum), BLOCK(output, output_offset, output_stride, block) + (size_t)pixel * 4);
}
