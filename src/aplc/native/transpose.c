/* Rows of a sparse matrix into the same matrix by columns. The twin is `transpose_slowly` in words/matrices.py. */
#include "native.h"

/* Rows come in order, so that those of a column do, too: one thread. */
KERNEL(transpose)(const Transpose *it, Team *team, int threads) {
    (void)team, (void)threads;
    for (int64_t row = 0; row < it->x.n_rows; row++) {
        int64_t first, last;
        if (!entries(&it->x, row, &first, &last)) return OUT_OF_RANGE;
        for (int64_t e = first; e < last; e++) {
            int32_t column = it->x.column[e];
            if (!inside(column, it->x.n_columns)) return OUT_OF_RANGE;
            int64_t place = it->after[column];
            if (!inside(place, it->n_entries)) return OUT_OF_RANGE;
            it->after[column] = place + 1;
            it->row[place] = (int32_t)(it->first + row);
            it->value[place] = it->x.value[e];
        }
    }
    return DONE;
}
