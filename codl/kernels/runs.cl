// Sums of products of any length. In half arithmetic these go to `run`, which is added to the floats of
// `acc` once it has RUN of them, and in the end; else to `acc` at once.
//
// An includer declares an array of sums, `VEC acc SUMS_SHAPE`, and defines EACH_SUM(body), which is the
// body for each of them, with its place as SUM_AT.
//
// SUMS           what products are added to
// BEGIN_RUN, END_RUN   behind the declaration, and behind the last product
// PRODUCTS(n)    behind n more of them
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
#else
#define SUMS acc
#define BEGIN_RUN
#define END_RUN
#define PRODUCTS(n)
#endif
