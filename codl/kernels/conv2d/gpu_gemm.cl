// Convolution as a matrix product, (pixels x taps and input channels) * (these x output channels),
// without unfolding the input in memory. For GPUs with local memory; V is 4.
//
// A work-group has a tile of TILE_M = TM * ITEMS_M pixels x TILE_N = TN * ITEMS_N channels, of
// which each work-item keeps TM x TN sums in registers. A step multiplies DEPTH blocks of four
// inputs of both factors, out of local memory; those of the next are on their way there meanwhile.
// TEAMS such teams of work-items share the steps of one tile, and work-groups the `splits` of all.
// A_LOADS, B_LOADS   vectors of four of either factor that a work-item brings in for a step
//
// local memory   [two steps][team]{ pixels [DEPTH][TILE_M], weights [DEPTH][4 lanes][TILE_N / 4] }
//                of REALV; afterwards sums of the teams, [team][TM][item], one TN / 4 at a time
// a step         blocks of inputs, counted tap after tap: (ky * kernel_w + kx) * in_blocks + block
// weight         [batch][tile of channels][step][DEPTH][4 lanes][TILE_N], zeros beyond the last
// POINTWISE      defined for 1x1 windows without padding: every tap lies inside
// batches        of products: points of Winograd's with weights of their own (`own_weights` is 1), or
//                images; `apart` is how many pixels lie from one to the next
// FLOAT_FACTORS  defined where input and weights are floats, whatever tensors are stored as
// ROWS           defined where input and output are planar rows of all channels, as matrices are
// RAW            defined where sums go to [split][batch][block][pixel] without bias and activation
// Sizes in pixels of four channels.

#include "conv2d/added.cl"
#include "window.cl"

#define TILE_M (TM * ITEMS_M)
#define TILE_N (TN * ITEMS_N)
#define ITEMS (ITEMS_M * ITEMS_N)
#if TN == 4
#define VECTORS 1
#else
#define VECTORS 2
#endif
#define A_SIZE (DEPTH * TILE_M)
#define B_SIZE (DEPTH * TILE_N)
#define TEAM_SIZE (A_SIZE + B_SIZE)
#define STEP_SIZE (TEAMS * TEAM_SIZE)
#define SUMS_SIZE (TEAMS * ITEMS * TM)
#define LOCAL_SIZE (TEAMS > 1 && 2 * STEP_SIZE < SUMS_SIZE ? SUMS_SIZE : 2 * STEP_SIZE)
#define SUMS_SHAPE [TM][VECTORS]
#define SUM_AT [m][n]
#define EACH_SUM(body) UNROLLED(m, TM, { UNROLLED(n, VECTORS, body) })
#include "runs.cl"

// Which pixels and channels of the tile a work-item has. Neighbours in pairs share pixels, and
// pairs two apart channels: local memory serves them at once.
#define ITEM_M(item) ((item) / 2 % ITEMS_M)
#define ITEM_N(item) ((item) % 2 + (item) / (2 * ITEMS_M) * 2)

// Where the next float4 of pixels that an item brings in comes from.
typedef struct {
    int pixel;              // of the window's top left corner in the input
    int y, x;               // of the same
    int ky, kx, block;      // tap and input block
} Source;

// From one block of inputs to the next, where a tensor begins, and where four outputs lie.
#ifdef ROWS
#define INPUT_STEP 1
#define BEGIN(tensor, offset, batch, apart) ((tensor) + (offset))
#define OUTPUT_OF(block, pixel)                                                                    \
    AT(output, output_offset + ((ADDRESS)(pixel) * out_blocks + (block)) * 4)
#else
#define INPUT_STEP input_stride
#define BEGIN(tensor, offset, batch, apart) ((tensor) + ((ADDRESS)(batch) * (apart) + (offset)) * 4)
#define OUTPUT_OF(block, pixel)                                                                    \
    BLOCK(output, output_offset + (pixel), output_stride, block)
#endif

// Loads are to overlap with products, but compilers tend to move them behind these. So there is a
// barrier between, and the pointers are not `restrict`, as loads through such may cross it; loads
// are free of branches too: an item without one repeats the last, and what lies beside the input is
// cleared afterwards. Halves become floats only behind the products: whoever converts them waits for
// them.
#if defined(HALF) && !defined(FLOAT_FACTORS)
#define FACTOR half
typedef ushort4 STORED;
#define STORED_AT(p) (*(__global const STORED *)(p))
#ifdef HALF_ARITHMETIC
#define FLOATS(x) as_half4(x)
#elif defined(HAS_HALVES)
#define FLOATS(x) convert_float4(as_half4(x))
#else
#define FLOATS(x) vloada_half4(0, (const half *)&(x))
#endif
#else
#define FACTOR float
typedef float4 STORED;
#define STORED_AT(p) VLOAD(p)
#define FLOATS(x) (x)
#endif
#define FACTOR_AT(p, i) AT_OF(FACTOR, p, i)
#ifdef POINTWISE
#define FETCH_A(to, s)                                                                             \
    to = STORED_AT(                                                                                \
        FACTOR_AT(in, ((ADDRESS)min(s.block, in_blocks - 1) * INPUT_STEP + s.pixel) * 4));         \
    s.block += DEPTH;
#else
#define FETCH_A(to, s)                                                                             \
    const int dy = s.ky * dilation_h;                                                              \
    const int dx = s.kx * dilation_w;                                                              \
    const int inside = (uint)(s.y + dy) < (uint)in_h && (uint)(s.x + dx) < (uint)in_w;             \
    const int from = s.block * input_stride + s.pixel + dy * in_w + dx;                            \
    const STORED value = STORED_AT(FACTOR_AT(in, (ADDRESS)(inside ? from : 0) * 4));               \
    to = inside ? value : (STORED)(0);                                                             \
    s.block += step_block;                                                                         \
    const int next_tap = s.block >= in_blocks;                                                     \
    s.block -= next_tap ? in_blocks : 0;                                                           \
    s.kx += step_kx + next_tap;                                                                    \
    const int next_row = s.kx >= kernel_w;                                                         \
    s.kx -= next_row ? kernel_w : 0;                                                               \
    s.ky += step_ky + next_row;
#endif

// A step, or the last where there are no more, from global memory to registers.
#define FETCH(step)                                                                                \
    {                                                                                              \
        UNROLLED(i, A_LOADS, { FETCH_A(a[i], sources[i]) })                                        \
        const ADDRESS from = (ADDRESS)min(step, steps - 1) * B_SIZE;                               \
        UNROLLED(i, B_LOADS, {                                                                     \
            b[i] = STORED_AT(FACTOR_AT(weights, (from + min(item + i * ITEMS, B_SIZE - 1)) * 4));  \
        })                                                                                         \
    }

// From registers to one of the two steps in local memory.
#define KEEP(buffer)                                                                               \
    {                                                                                              \
        __local REALV *to = shared + (buffer) * STEP_SIZE + team * TEAM_SIZE + item;              \
        UNROLLED(i, A_LOADS, {                                                                     \
            if (A_SIZE % ITEMS == 0 || item + i * ITEMS < A_SIZE)                                  \
                to[i * ITEMS] = FLOATS(a[i]);                                                      \
        })                                                                                         \
        UNROLLED(i, B_LOADS, {                                                                     \
            if (B_SIZE % ITEMS == 0 || item + i * ITEMS < B_SIZE)                                  \
                to[A_SIZE + i * ITEMS] = FLOATS(b[i]);                                             \
        })                                                                                         \
    }

#ifdef RAW
#define SUM float
#define PUT(value, p) VSTORE(value, p)
#define FINISH(sum, block, pixel) (sum)
#define FINISHED_ARGS
#define OUT(block, pixel)                                                                          \
    FLOAT_AT(output, (((ADDRESS)GROUP_ID(2) * out_blocks + (block)) * out_pixels + (pixel)) * 4)
#else
#define SUM ELEMENT
#define PUT(value, p) STORE(value, p)
#define FINISH(sum, block, pixel)                                                                  \
    ACTIVATE((sum) + VLOAD(bias + (block) * 4) PLUS_ADDED(block, pixel))
#define FINISHED_ARGS ADDED_ALL_ARGS
#define OUT(block, pixel) OUTPUT_OF(block, pixel)
#endif
// Stores the sum of pixel m and channels n of an item.
#define KEEP_SUM(sum, m, n, item)                                                                  \
    {                                                                                              \
        const int pixel = first_pixel + (m) * ITEMS_M + ITEM_M(item);                              \
        const int block = tile_n * (TILE_N / 4) + (n) * ITEMS_N + ITEM_N(item);                    \
        if (pixel < out_pixels && block < out_blocks)                                              \
            PUT(FINISH(sum, block, pixel), OUT(block, pixel));                                     \
    }

__kernel __attribute__((reqd_work_group_size(ITEMS * TEAMS, 1, 1))) void conv2d_gemm(
    __global const FACTOR *input, int input_offset, int input_stride,
    __global SUM *output, int output_offset, int output_stride,
    __global const FACTOR *weight, __global const float *bias, int splits, int steps,
    int in_blocks, int out_blocks, int out_pixels, WINDOW_ARGS, int own_weights, int input_apart,
    int output_apart FINISHED_ARGS)
{
    __local REALV shared[LOCAL_SIZE * (int)(sizeof(float) / sizeof(REAL))]
        __attribute__((aligned(16)));
    const int team = LOCAL_ID(0) / ITEMS, item = LOCAL_ID(0) % ITEMS;
    const int first_pixel = GROUP_ID(0) * TILE_M, tile_n = GROUP_ID(1);
    const int batches = GROUPS(2) / splits;
    const int batch = GROUP_ID(2) % batches, split = GROUP_ID(2) / batches;
    // Steps of every tile, and the first of this team.
    const int all_steps = steps * TEAMS * splits, first_step = (split * TEAMS + team) * steps;

    __global const FACTOR *in = BEGIN(input, input_offset, batch, input_apart);
    __global const FACTOR *weights = weight +
        (((ADDRESS)batch * own_weights * GROUPS(1) + tile_n) * all_steps + first_step) *
            B_SIZE * 4;
#ifndef POINTWISE
    // What DEPTH blocks on means in taps and blocks.
    const int step_tap = DEPTH / in_blocks, step_block = DEPTH - step_tap * in_blocks;
    const int step_ky = step_tap / kernel_w, step_kx = step_tap - step_ky * kernel_w;
#endif
    Source sources[A_LOADS];
    UNROLLED(i, A_LOADS, {
        const int at = min(item + i * ITEMS, A_SIZE - 1);
        const int pixel = min(first_pixel + at % TILE_M, out_pixels - 1);
        const int y = pixel / out_w;
        const int x = pixel - y * out_w;
        const int k = first_step * DEPTH + at / TILE_M;
        const int tap = k / in_blocks;
        sources[i].y = y * stride_h - pad_top;
        sources[i].x = x * stride_w - pad_left;
        sources[i].pixel = sources[i].y * in_w + sources[i].x;
        sources[i].ky = tap / kernel_w;
        sources[i].kx = tap - sources[i].ky * kernel_w;
        sources[i].block = k - tap * in_blocks;
    })

    float4 acc[TM][VECTORS];
    STORED a[A_LOADS], b[B_LOADS];
    UNROLLED(m, TM, { UNROLLED(n, VECTORS, { acc[m][n] = (float4)(0.0f); }) })
    BEGIN_RUN

    FETCH(0)
    KEEP(0)
    RUNS(step, 0, steps, DEPTH * 4, {
        FETCH(step + 1)
        barrier(CLK_LOCAL_MEM_FENCE);
        const __local REALV *pixels =
            shared + (step & 1) * STEP_SIZE + team * TEAM_SIZE + ITEM_M(item);
        const __local REALV *channels =
            shared + (step & 1) * STEP_SIZE + team * TEAM_SIZE + A_SIZE + ITEM_N(item);
        UNROLLED(k, DEPTH, {
            REALV w[4][VECTORS];
            UNROLLED(lane, 4, {
                UNROLLED(n, VECTORS, {
                    w[lane][n] = channels[(k * 4 + lane) * (TILE_N / 4) + n * ITEMS_N];
                })
            })
            UNROLLED(m, TM, {
                const REALV x = pixels[k * TILE_M + m * ITEMS_M];
                UNROLLED(n, VECTORS, {
                    SUMS[m][n] += x.s0 * w[0][n];
                    SUMS[m][n] += x.s1 * w[1][n];
                    SUMS[m][n] += x.s2 * w[2][n];
                    SUMS[m][n] += x.s3 * w[3][n];
                })
            })
        })
        KEEP((step + 1) & 1)
    })
    END_RUN

#ifndef RAW
    output_offset += batch * output_apart;
    ADDED_OF(batch)
#endif
#if TEAMS == 1
    UNROLLED(n, VECTORS, { UNROLLED(m, TM, { KEEP_SUM(acc[m][n], m, n, item) }) })
#else
    // All work-items add what the teams hold, a part each.
    __local float4 *held = (__local float4 *)shared;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLLED(n, VECTORS, {
        UNROLLED(m, TM, { held[(team * TM + m) * ITEMS + item] = acc[m][n]; })
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int at = LOCAL_ID(0); at < TM * ITEMS; at += ITEMS * TEAMS) {
            float4 sum = held[at];
            UNROLL for (int i = 1; i < TEAMS; i++) sum += held[i * TM * ITEMS + at];
            KEEP_SUM(sum, at / ITEMS, n, at % ITEMS)
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    })
#endif
}

// Adds what the splits of all steps left: one work-item a pixel and block of an image.
__kernel void conv2d_gemm_sum(
    __global const float *restrict parts, __global ELEMENT *restrict output, int output_offset,
    int output_stride, __global const float *restrict bias, int splits, int out_blocks,
    int out_pixels, int output_apart ADDED_ALL_ARGS)
{
    OF_IMAGE(output_offset, output_apart)
    ADDED_OF(IMAGE_ID)
    const int block = GLOBAL_ID(0) / out_pixels;
    const int pixel = GLOBAL_ID(0) - block * out_pixels;
    if (block >= out_blocks) return;
    float4 sum = VLOAD(bias + block * 4);
    for (int split = 0; split < splits; split++) {
        const ADDRESS plane = ((ADDRESS)split * GLOBAL_SIZE(2) + IMAGE_ID) * out_blocks + block;
        sum += VLOAD(parts + (plane * out_pixels + pixel) * 4);
    }
    STORE(ACTIVATE(sum PLUS_ADDED(block, pixel)), OUTPUT_OF(block, pixel));
}
