// Matrix products in registers: a tile of ROWS x COLUMNS vectors of the output stays in registers
// while the loop runs over k. A work-item has `strip` consecutive tiles of one panel of columns.
//
// b is read in panels, [panel][k][COLUMNS * V], which were packed before; or, where DIRECT is
// defined, as it lies: then n is at least a panel, and the last one begins so that it ends with n.
//
// TRANS_A        defined where a is stored as (k, m)
// BIAS           defined where there is one for each column, in whole panels
// a_rows         elements from one stored row of a to the next
// Batches: index i of the output's is (i / inner2, i / inner1 % (inner2 / inner1), i % inner1), and
// each part moves on by a step of a and b (0 where they are stretched).

#define PANEL (COLUMNS * V)
#define BATCH_STEP(i, s0, s1, s2)                                                                  \
    ((size_t)((i) / inner2) * (s0) + (size_t)((i) % inner2 / inner1) * (s1) +                      \
     (size_t)((i) % inner1) * (s2))

// Copies b into panels, columns beyond n as zeros; a work-item has V values of k of one panel.
KERNEL void matmul_pack(
    __global const float *b, int b_offset, int b_stride, __global float *panels,
    int n, int k, int b_rows)
{
    const int panel = get_global_id(1), first = get_global_id(0) * V, many = min(V, k - first);
    if (first >= k) return;
    __global const float *in = b + (b_offset + (size_t)get_global_id(2) * k * n);
    __global float *out =
        panels + ((size_t)(get_global_id(2) * get_global_size(1) + panel) * k + first) * PANEL;
    for (int column = panel * PANEL; column < (panel + 1) * PANEL; column += V, out += V) {
#ifdef TRANS_B
        if (many == V && column + V <= n) {
            VEC m[V], t[V];
            UNROLL for (int i = 0; i < V; i++)
                m[i] = PLOAD(in + ((size_t)(column + i) * b_rows + first));
            TRANSPOSE
            UNROLL for (int i = 0; i < V; i++) PSTORE(m[i], out + i * PANEL);
            continue;
        }
#define AT_B(i, j) in[(size_t)(j) * b_rows + (i)]
#else
        if (column + V <= n) {
            for (int i = 0; i < many; i++)
                PSTORE(PLOAD(in + ((size_t)(first + i) * b_rows + column)), out + i * PANEL);
            continue;
        }
#define AT_B(i, j) in[(size_t)(i) * b_rows + (j)]
#endif
        for (int i = 0; i < many; i++)
            for (int j = 0; j < V; j++)
                out[i * PANEL + j] = column + j < n ? AT_B(first + i, column + j) : 0.0f;
    }
}

KERNEL void matmul_direct(
    __global const float *a, int a_offset, int a_stride,
    __global float *output, int output_offset, int output_stride,
    __global const float *b,
#ifdef DIRECT
    int b_offset, int b_stride,
#endif
#ifdef BIAS
    __global const float *bias,
#endif
    int strip, int m, int n, int k, int a_rows, int b_rows, int inner2, int inner1,
    int a_step0, int a_step1, int a_step2, int b_step0, int b_step1, int b_step2, float alpha)
{
    const int batch = get_global_id(2), column = get_global_id(0) * PANEL;
    __global const float *left = a + a_offset + BATCH_STEP(batch, a_step0, a_step1, a_step2);
    __global const float *right = b + BATCH_STEP(batch, b_step0, b_step1, b_step2);
#ifdef DIRECT
    const int begin = min(column, n - PANEL);
    right += b_offset + begin;
#else
    const int begin = column;
    right += (size_t)column * k;
#endif
    __global float *out = output + output_offset + ((size_t)batch * m * n + begin);
    const int stop = min((int)(get_global_id(1) + 1) * strip * ROWS, m);
    for (int row = get_global_id(1) * strip * ROWS; row < stop; row += ROWS) {
        // Rows beyond the last repeat it, and are not stored.
        __global const float *source[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) {
            const size_t from = min(row + r, m - 1);
#ifdef TRANS_A
            source[r] = left + from;
#else
            source[r] = left + from * a_rows;
#endif
        }
        VEC acc[ROWS][COLUMNS];
        UNROLL for (int r = 0; r < ROWS; r++)
            UNROLL for (int c = 0; c < COLUMNS; c++) acc[r][c] = (VEC)(0.0f);
        __global const float *line = right;
        NO_UNROLL for (int i = 0; i < k; i++, line += b_rows) {
            VEC values[COLUMNS];
            UNROLL for (int c = 0; c < COLUMNS; c++) values[c] = PLOAD(line + c * V);
            UNROLL for (int r = 0; r < ROWS; r++) {
#ifdef TRANS_A
                const float x = source[r][(size_t)i * a_rows];
#else
                const float x = source[r][i];
#endif
                UNROLL for (int c = 0; c < COLUMNS; c++) acc[r][c] += x * values[c];
            }
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (row + r >= m) break;
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                const int at = begin + c * V;
                VEC value = alpha * acc[r][c];
#ifdef BIAS
                value += PLOAD(bias + at);
#endif
                value = ACTIVATE(value);
                __global float *to = out + ((size_t)(row + r) * n + c * V);
                if (at >= column && at + V <= n) {
                    PSTORE(value, to);
                } else {
                    float lanes[V];
                    CAT(vstore, V)(value, 0, lanes);
                    for (int j = max(column - at, 0); j < min(V, n - at); j++) to[j] = lanes[j];
                }
            }
        }
    }
}
