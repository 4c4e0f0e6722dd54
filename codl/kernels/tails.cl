// Stores the first lanes of a vector to planar elements that begin anywhere: `count` of them, or all.
#define STORE_LANES(value, to, count)                                                              \
    if ((count) >= V) {                                                                            \
        PSTORE(value, to);                                                                         \
    } else {                                                                                       \
        float lanes[V];                                                                            \
        FSTORE(value, lanes);                                                                      \
        for (int j = 0; j < (count); j++) SET(lanes[j], to, j);                                    \
    }
