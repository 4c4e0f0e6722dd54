// Sums of products of any length. In half arithmetic these go to `run`, which is added to the floats of
// `acc` once it has RUN of them, and in the end; else to `acc` at once.
//
// An includer declares an array of sums, `VEC acc SUMS_SHAPE`, and defines EACH_SUM(body), which is the
// body for each of them, with its place as SUM_AT.
//
// SUMS           what products are added to
// BEGIN_RUN, END_RUN   behind the declaration, and behind the last product
// PRODUCTS(n)    behind n more of them
// RUNS(b, from, stop, n, body)   a loop of b over a body that adds n of them: `run` is added behind an
//                inner loop, and so is not looked at in each round
#ifdef HALF_ARITHMETIC
#define SUMS run
#define BEGIN_RUN                                                                                  \
    REALV run SUMS_SHAPE;                                                                          \
    int products = 0;                                                                              \
    EACH_SUM({ run SUM_AT = (REALV)(0.0f); })
#define END_RUN                                                                                    \
    {                                                                                              \
        products = 0;                                                                              \
        EACH_SUM({                                                                                 \
            acc SUM_AT += TO_VEC(run SUM_AT);                                                      \
            run SUM_AT = (REALV)(0.0f);                                                            \
        })                                                                                         \
    }
#define PRODUCTS(n) if ((products += (n)) >= RUN) END_RUN
#define RUNS(b, from, stop, n, body)                                                               \
    for (int b = (from); b < (stop);) {                                                            \
        const int begin_ = b, end_ = min(b + RUN / (n), (stop));                                   \
        NO_UNROLL for (; b < end_; b++) body                                                       \
        PRODUCTS((end_ - begin_) * (n))                                                            \
    }
#else
#define SUMS acc
#define BEGIN_RUN
#define END_RUN
#define PRODUCTS(n)
#define RUNS(b, from, stop, n, body) for (int b = (from); b < (stop); b++) body
#endif
