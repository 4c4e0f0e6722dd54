// Columns of rows that lie apart: all of WIDE vectors of them, or what is left over one by one.
#define READ_ONE(p) GET(p, 0)
#define WRITE_ONE(value, p) SET(value, p, 0)
#define EACH(COUNT, body) UNROLLED(w, COUNT, body)
#define DOWN for (ADDRESS j = 0; j < (ADDRESS)size * inner; j += inner)

// COLUMNS(type, load, store, count, step) of the columns from `column` on, of which `in` and `out` are
// the first elements.
#define ALL_COLUMNS                                                                                \
    const int stop = min(column + WIDE * V, inner);                                                \
    if (column + WIDE * V <= inner) {                                                              \
        COLUMNS(VEC, PLOAD, PSTORE, WIDE, V)                                                       \
        return;                                                                                    \
    }                                                                                              \
    for (; column + V <= stop; column += V, in += V, out += V) COLUMNS(VEC, PLOAD, PSTORE, 1, V)   \
    for (; column < stop; column++, in++, out++) COLUMNS(float, READ_ONE, WRITE_ONE, 1, 1)
