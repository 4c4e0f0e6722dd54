// One dimension of Winograd's transforms, of values x(0), x(1), ... that go to PUT(i, value) (Lavin &
// Gray): SIDE inputs to as many points, and the sums s(0), ... at the points to TILE outputs. The
// points are the first SIDE - 1 of 0, 1, -1, 2, -2, 1/2, -1/2, and infinity.
//
// SIDE       points a side: 4, 6 or 8; 5 or 9 where the stride is 2
// TILE       output pixels a side: (SIDE - window) / STRIDE + 1
// STRIDE     of the window, 1 or 2; 1 where it is not defined
// IN_PLACE   defined where a tile's points do not fit registers: what is half way transformed lies where
//            the points will
// VALUE      the type of a value
// SMALL      what sums at 2 and -2 are multiplied by where there are eight points; 1 if not defined

#ifndef STRIDE
#define STRIDE 1
#endif
#ifndef SMALL
#define SMALL 1.0f
#endif

#if SIDE == 4
#define FIRST_POINT(x, PUT) PUT(0, x(0) - x(2));
#define INNER_POINTS(x, PUT)                                                                       \
    PUT(1, x(2) + x(1));                                                                           \
    PUT(2, x(2) - x(1));
#define LAST_POINT(x, PUT) PUT(3, x(3) - x(1));
#elif SIDE == 6
#define FIRST_POINT(x, PUT) PUT(0, 4.0f * x(0) - 5.0f * x(2) + x(4));
#define INNER_POINTS(x, PUT)                                                                       \
    {                                                                                              \
        const VALUE even1_ = x(4) - 4.0f * x(2);                                                   \
        const VALUE odd1_ = x(3) - 4.0f * x(1);                                                    \
        const VALUE even2_ = x(4) - x(2);                                                          \
        const VALUE odd2_ = 2.0f * (x(3) - x(1));                                                  \
        PUT(1, even1_ + odd1_);                                                                    \
        PUT(2, even1_ - odd1_);                                                                    \
        PUT(3, even2_ + odd2_);                                                                    \
        PUT(4, even2_ - odd2_);                                                                    \
    }
#define LAST_POINT(x, PUT) PUT(5, 4.0f * x(1) - 5.0f * x(3) + x(5));
#elif SIDE == 8
#define FIRST_POINT(x, PUT) PUT(0, x(0) - x(6) + 5.25f * (x(4) - x(2)));
#define INNER_POINTS(x, PUT)                                                                       \
    {                                                                                              \
        const VALUE even1_ = x(2) + x(6) - 4.25f * x(4);                                           \
        const VALUE odd1_ = x(1) + x(5) - 4.25f * x(3);                                            \
        const VALUE even2_ = x(6) + 0.25f * x(2) - 1.25f * x(4);                                   \
        const VALUE odd2_ = 0.5f * x(1) - 2.5f * x(3) + 2.0f * x(5);                               \
        const VALUE even3_ = x(6) + 4.0f * x(2) - 5.0f * x(4);                                     \
        const VALUE odd3_ = 2.0f * x(1) - 2.5f * x(3) + 0.5f * x(5);                               \
        PUT(1, even1_ + odd1_);                                                                    \
        PUT(2, even1_ - odd1_);                                                                    \
        PUT(3, even2_ + odd2_);                                                                    \
        PUT(4, even2_ - odd2_);                                                                    \
        PUT(5, even3_ + odd3_);                                                                    \
        PUT(6, even3_ - odd3_);                                                                    \
    }
#define LAST_POINT(x, PUT) PUT(7, x(7) - x(1) + 5.25f * (x(3) - x(5)));
// Stride 2 keeps the odd inputs, which meet the middle tap alone, and has the even ones, which meet
// the two outer taps, at 0, 1, -1, 2 (the first TILE) and infinity.
#elif SIDE == 5
#define TO_POINTS(x, PUT)                                                                          \
    {                                                                                              \
        PUT(0, x(0) - x(2));                                                                       \
        PUT(1, x(2));                                                                              \
        PUT(2, x(4) - x(2));                                                                       \
        UNROLLED(i_, TILE, { PUT(TILE + 1 + i_, x(2 * i_ + 1)); })                                 \
    }
#else
#define TO_POINTS(x, PUT)                                                                          \
    {                                                                                              \
        const VALUE even1_ = x(6) - x(2);                                                          \
        PUT(0, even1_ + 2.0f * (x(0) - x(4)));                                                     \
        PUT(1, x(6) - x(4) - 2.0f * x(2));                                                         \
        PUT(2, x(6) - 3.0f * x(4) + 2.0f * x(2));                                                  \
        PUT(3, even1_);                                                                            \
        PUT(4, x(8) - x(4) - 2.0f * even1_);                                                       \
        UNROLLED(i_, TILE, { PUT(TILE + 1 + i_, x(2 * i_ + 1)); })                                 \
    }
#endif

// All points. Of stride 1 the first one is of the even inputs but for the last, and the last of the odd ones.
#ifndef TO_POINTS
#define TO_POINTS(x, PUT)                                                                          \
    {                                                                                              \
        FIRST_POINT(x, PUT)                                                                        \
        INNER_POINTS(x, PUT)                                                                       \
        LAST_POINT(x, PUT)                                                                         \
    }
#endif

// The input's transform of a work-item that has one channel of a tile, at `in`; POINT_AT(row, column) is
// where a point goes. Pixels beside the input are loaded from its edge and left out, without a branch,
// which work-items in lockstep would take both ways.
#define ROW(i) row[i]
#define COLUMN(i) column[i]
#define LOAD_ROW(r)                                                                                \
    float row[SIDE];                                                                               \
    const int y = clamp(y0 + (r), 0, in_h - 1);                                                    \
    UNROLLED(c, SIDE, {                                                                            \
        const int x = clamp(x0 + c, 0, in_w - 1);                                                  \
        const float read = GET(in, (y * in_w + x) * V);                                            \
        row[c] = (y == y0 + (r)) & (x == x0 + c) ? read : 0.0f;                                    \
    })
#define KEEP_POINT(i, value) *POINT_AT(i, c) = (value)
#ifdef IN_PLACE
#define KEEP_ROW(i, value) *POINT_AT(r, i) = (value)
#define TRANSFORM_INPUT                                                                            \
    NO_UNROLL for (int r = 0; r < SIDE; r++) {                                                     \
        LOAD_ROW(r)                                                                                \
        TO_POINTS(ROW, KEEP_ROW)                                                                   \
    }                                                                                              \
    NO_UNROLL for (int c = 0; c < SIDE; c++) {                                                     \
        float column[SIDE];                                                                        \
        UNROLLED(r, SIDE, { column[r] = *POINT_AT(r, c); })                                        \
        TO_POINTS(COLUMN, KEEP_POINT)                                                              \
    }
#else
#define KEEP_ROW(i, value) rows[r][i] = (value)
#define DOWN_ROWS(r) rows[r][c]
#define TRANSFORM_INPUT                                                                            \
    float rows[SIDE][SIDE];                                                                        \
    UNROLLED(r, SIDE, {                                                                            \
        LOAD_ROW(r)                                                                                \
        TO_POINTS(ROW, KEEP_ROW)                                                                   \
    })                                                                                             \
    UNROLLED(c, SIDE, { TO_POINTS(DOWN_ROWS, KEEP_POINT) })
#endif

// And back to TILE outputs: output i is the sum over all points p of p^i times the product there,
// the last one with infinity's. EVEN and ODD are without 0 and infinity, for 2^i.
#if SIDE == 4
#define EVEN(s, two) even1_
#define ODD(s, two) odd1_
#elif SIDE == 6
#define EVEN(s, two) (even1_ + (two) * (s(3) + s(4)))
#define ODD(s, two) (odd1_ + (two) * (s(3) - s(4)))
#elif SIDE == 8
#define EVEN(s, two) (even1_ + (two) * SMALL * (s(3) + s(4)) + 1.0f / (two) * (s(5) + s(6)))
#define ODD(s, two) (odd1_ + (two) * SMALL * (s(3) - s(4)) + 1.0f / (two) * (s(5) - s(6)))
#elif SIDE == 5
#define EVEN(s, two) s(1)
#define ODD(s, two) s(1)
#else
#define EVEN(s, two) (even1_ + (two) * s(3))
#define ODD(s, two) (odd1_ + (two) * s(3))
#endif
#define FROM_POINTS(s, PUT)                                                                        \
    {                                                                                              \
        const VALUE even1_ = s(1) + s(2);                                                          \
        const VALUE odd1_ = s(1) - s(2);                                                           \
        UNROLLED(i_, TILE, {                                                                       \
            VALUE sum_ = i_ % 2 ? ODD(s, (float)(1 << i_)) : EVEN(s, (float)(1 << i_));            \
            if (i_ == 0) sum_ += s(0);                                                             \
            if (i_ == TILE - 1) sum_ += s(STRIDE == 2 ? TILE : SIDE - 1);                          \
            if (STRIDE == 2) sum_ += s(TILE + 1 + i_);                                             \
            PUT(i_, sum_);                                                                         \
        })                                                                                         \
    }
