// Matrix products in registers: a tile of ROWS x COLUMNS vectors of the output stays in registers
// while a loop runs over k. A work-item has `strip` consecutive tiles of each of `group` panels of
// columns, and goes through `depth` of k at a time, so that such a block of the panels stays in a near
// cache; between blocks the sums lie in the output, but where that is of halves, which would round them.
//
// A CONSTANT b is read in panels, [panel][k][COLUMNS * V], which were packed before; of another, the
// work-item packs each block itself.
//
// CONSTANT       defined where b is packed before, and has a bias for each column, in whole panels
// TRANS_A        defined where a is stored as (k, m)
// TRANS_B        defined where b, before it is packed, is stored as (n, k)
// BLOCK_SIZE     where b is not constant: elements of as much of `group` panels as `depth` goes
// PARTIAL        defined where sums lie in `sums` between blocks, in rows of whole panels
// a_rows         elements from one stored row of a to the next; b_rows of b, or of a panel

#define PANEL (COLUMNS * V)
#include "matmul/batches.cl"

// Rare ways stay out of the kernel, whose registers and addresses they would take.
#define APART __attribute__((noinline))

#ifdef CONSTANT
#define PACKED __global ELEMENT
#define PACKED_LOAD(p) PLOAD(p)
#else
#define PACKED __local float
#define PACKED_LOAD(p) FLOAD(p)

// Packs `length` of k of the V columns from `column` on, to rows of PANEL elements. Of a vector with
// columns beyond n, the others are whatever: none of what comes of them is stored.
APART void pack_columns(
    __global const ELEMENT *in, PACKED *out, int column, int n, int length, int rows)
{
#ifdef TRANS_B
    __global const ELEMENT *from[V];
    UNROLL for (int j = 0; j < V; j++) from[j] = in + (size_t)min(column + j, n - 1) * rows;
    int first = 0;
    for (; first + V <= length; first += V) {
        VEC m[V], t[V];
        UNROLL for (int j = 0; j < V; j++) m[j] = PLOAD(from[j] + first);
        TRANSPOSE
        UNROLL for (int j = 0; j < V; j++) FSTORE(m[j], out + (first + j) * PANEL);
    }
    for (; first < length; first++)
        for (int j = 0; j < V; j++) out[first * PANEL + j] = GET(from[j], first);
#else
    if (column + V <= n) {
        for (int i = 0; i < length; i++)
            FSTORE(PLOAD(in + (size_t)i * rows + column), out + i * PANEL);
    } else {
        for (int i = 0; i < length; i++)
            for (int j = 0; j < V; j++)
                out[i * PANEL + j] = GET(in, (size_t)i * rows + min(column + j, n - 1));
    }
#endif
}
#endif

// Lanes before `stop` of a vector in the output; the others are zeros.
APART VEC load_lanes(__global const ELEMENT *from, int stop)
{
    float lanes[V];
    for (int j = 0; j < V; j++) lanes[j] = j < stop ? GET(from, j) : 0.0f;
    return FLOAD(lanes);
}

APART void store_lanes(VEC value, __global ELEMENT *to, int stop)
{
    if (stop >= V) {
        PSTORE(value, to);
        return;
    }
    float lanes[V];
    FSTORE(value, lanes);
    for (int j = 0; j < min(stop, V); j++) SET(lanes[j], to, j);
}

#ifdef TRANS_A
#define AT_A(r, i) GET(source[r], (size_t)(i) * a_rows)
#else
#define AT_A(r, i) GET(source[r], i)
#endif
#ifdef CONSTANT
#define PLUS_BIAS(at) +FLOAD(bias + (at))
#else
#define PLUS_BIAS(at)
#endif

#define EACH(WIDE, what)                                                                           \
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int c = 0; c < WIDE; c++) what
// Lanes of vector c that exist.
#define LANES(c) n - begin - (c) * V

// What a tile goes on with, and what it leaves, between blocks.
#ifdef PARTIAL
#define LOAD_SUMS(WIDE)                                                                            \
    {                                                                                              \
        EACH(WIDE, acc[r][c] = FLOAD(KEPT(r) + c * V);)                                            \
    }
#define KEEP_SUMS(WIDE)                                                                            \
    if (first + length < k) {                                                                      \
        EACH(WIDE, FSTORE(acc[r][c], KEPT(r) + c * V);)                                            \
    } else
#define KEPT(r) (sums + ((size_t)batch * m + min(row + r, m - 1)) * panels * PANEL + begin)
#else
#define LOAD_SUMS(WIDE)                                                                            \
    if (is_whole) {                                                                                \
        EACH(WIDE, acc[r][c] = PLOAD(TARGET(r) + c * V);)                                          \
    } else {                                                                                       \
        EACH(WIDE, acc[r][c] = load_lanes(TARGET(r) + c * V, LANES(c));)                           \
    }
#define KEEP_SUMS(WIDE)
#endif

// The tile of WIDE vectors of columns whose first row is `row`. Rows beyond the last repeat it: what
// is stored there is stored twice.
#define TILE(WIDE)                                                                                 \
    {                                                                                              \
        const int is_whole = begin + WIDE * V <= n;                                                \
        VEC acc[ROWS][WIDE];                                                                       \
        if (first == 0) {                                                                          \
            EACH(WIDE, acc[r][c] = (VEC)(0.0f);)                                                   \
        } else                                                                                     \
            LOAD_SUMS(WIDE)                                                                        \
        const PACKED *line = lines;                                                                \
        NO_UNROLL for (int i = 0; i < length; i++, line += PANEL) {                                \
            VEC values[WIDE];                                                                      \
            UNROLL for (int c = 0; c < WIDE; c++) values[c] = PACKED_LOAD(line + c * V);           \
            UNROLL for (int r = 0; r < ROWS; r++) {                                                \
                const float x = AT_A(r, i);                                                        \
                UNROLL for (int c = 0; c < WIDE; c++) acc[r][c] += x * values[c];                  \
            }                                                                                      \
        }                                                                                          \
        if (first + length == k) {                                                                 \
            EACH(WIDE, acc[r][c] = alpha * acc[r][c] PLUS_BIAS(begin + c * V);)                    \
            EACH(WIDE, acc[r][c] = ACTIVATE(acc[r][c]);)                                           \
        }                                                                                          \
        KEEP_SUMS(WIDE)                                                                            \
        if (is_whole) {                                                                            \
            EACH(WIDE, PSTORE(acc[r][c], TARGET(r) + c * V);)                                      \
        } else {                                                                                   \
            EACH(WIDE, store_lanes(acc[r][c], TARGET(r) + c * V, LANES(c));)                       \
        }                                                                                          \
    }
#define TARGET(r) (out + (size_t)min(row + r, m - 1) * n + begin)

KERNEL void matmul_direct(
    __global const ELEMENT *a, int a_offset, int a_stride,
    __global ELEMENT *output, int output_offset, int output_stride,
    __global const ELEMENT *b,
#ifdef CONSTANT
    __global const float *bias,
#else
    int b_offset, int b_stride,
#endif
#ifdef PARTIAL
    __global float *sums,
#endif
    int strip, int group, int m, int n, int k, int depth, int a_rows, int b_own_rows, int inner2,
    int inner1, int a_step0, int a_step1, int a_step2, int b_step0, int b_step1, int b_step2,
    float alpha)
{
    const int batch = get_global_id(2), panels = (n + PANEL - 1) / PANEL;
    const int first_panel = get_global_id(0) * group;
    const int stop_panel = min(first_panel + group, panels);
    __global const ELEMENT *left = a + a_offset + BATCH_STEP(batch, a_step0, a_step1, a_step2);
    __global const ELEMENT *right = b + BATCH_STEP(batch, b_step0, b_step1, b_step2);
#ifndef CONSTANT
    right += b_offset;
    __local float block[BLOCK_SIZE];
#endif
    __global ELEMENT *out = output + output_offset + (size_t)batch * m * n;
    const int stop = min((int)(get_global_id(1) + 1) * strip * ROWS, m);
    for (int first = 0; first < k; first += depth) {
        const int length = min(depth, k - first);
#ifndef CONSTANT
#ifdef TRANS_B
        __global const ELEMENT *in = right + first;
#else
        __global const ELEMENT *in = right + (size_t)first * b_own_rows;
#endif
        for (int column = first_panel * PANEL; column < min(stop_panel * PANEL, n); column += V) {
            const int panel = column / PANEL;
            __local float *to = block + (panel - first_panel) * length * PANEL + column % PANEL;
            pack_columns(in, to, column, n, length, b_own_rows);
        }
#endif
        for (int row = get_global_id(1) * strip * ROWS; row < stop; row += ROWS) {
            __global const ELEMENT *source[ROWS];
            UNROLL for (int r = 0; r < ROWS; r++) {
                const size_t from = min(row + r, m - 1);
#ifdef TRANS_A
                source[r] = left + (size_t)first * a_rows + from;
#else
                source[r] = left + from * a_rows + first;
#endif
            }
            for (int panel = first_panel; panel < stop_panel; panel++) {
                const int begin = panel * PANEL;
#ifdef CONSTANT
                __global const ELEMENT *lines = right + ((size_t)begin * k + first * PANEL);
#else
                __local const float *lines = block + (panel - first_panel) * length * PANEL;
#endif
#if COLUMNS > 1
                if (n - begin <= V) {
                    TILE(1)
                    continue;
                }
#endif
                TILE(COLUMNS)
            }
        }
    }
}
