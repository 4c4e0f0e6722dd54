// Index i of the output's batches is (i / inner2, i / inner1 % (inner2 / inner1), i % inner1), and each
// part moves on by a step of a and b (0 where they are stretched).
#define BATCH_STEP(i, s0, s1, s2)                                                                  \
    ((ADDRESS)((i) / inner2) * (s0) + (ADDRESS)((i) % inner2 / inner1) * (s1) +                      \
     (ADDRESS)((i) % inner1) * (s2))
