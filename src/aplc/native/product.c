/* A sparse matrix times a dense one, or another sparse one, in float32. The twin is SciPy's product (words/systems.py).
 *
 * An entry of the sparse matrix asks for a row of the dense one, which comes from main memory: what costs is the wait.
 * So rows are asked for some entries ahead, and columns are taken in panels whose sums stay in the nearest cache.
 */
#include <string.h>

#include "native.h"

enum { PANEL = 128, AHEAD = 4, LINE = 16, SHARE = 64 }; /* LINE: floats of a line of the cache */

INLINE int multiply(const Product *it, int64_t i, int64_t panel, int64_t wide) {
    const Rows *x = &it->x;
    const float *dense = it->dense + panel;
    int64_t first, last;
    float sum[PANEL] = {0};
    if (!entries(x, i, &first, &last)) return 0;
    for (int64_t e = first; e < last; e++) {
        int64_t later = x->column[e + AHEAD < x->n_entries ? e + AHEAD : e];
        if (!inside(x->column[e], x->n_columns)) return 0;
        if (inside(later, x->n_columns))
            for (int64_t j = 0; j < wide; j += LINE) __builtin_prefetch(dense + later * it->width + j);
        const float *row = dense + x->column[e] * it->width;
        for (int64_t j = 0; j < wide; j++) sum[j] += x->value[e] * row[j];
    }
    memcpy(it->out + i * it->width + panel, sum, (size_t)wide * sizeof(float));
    return 1;
}

/* Items are rows of the first panel, then of the second, ... */
static int multiply_item(const void *given, int64_t item) {
    const Product *it = given;
    int64_t row = item % it->x.n_rows, panel = item / it->x.n_rows * PANEL, left = it->width - panel;
    return left < PANEL ? multiply(it, row, panel, left) : multiply(it, row, panel, PANEL);
}

KERNEL(product)(const Product *it, Team *team, int threads) {
    int64_t panels = (it->width + PANEL - 1) / PANEL;
    return each(panels * it->x.n_rows, SHARE, multiply_item, it, team, threads);
}

static int cross_row(const void *given, int64_t i) {
    const Cross *it = given;
    int64_t first, last, start, stop, width = it->second.n_columns;
    float *out = it->out + i * width;
    memset(out, 0, (size_t)width * sizeof *out);
    if (!entries(&it->first, i, &first, &last)) return 0;
    const Rows second = it->second;
    for (int64_t e = first; e < last; e++) {
        float value = it->first.value[e];
        if (!entries(&second, it->first.column[e], &start, &stop)) return 0;
        for (int64_t o = start; o < stop; o++) {
            int32_t column = second.column[o];
            if (!inside(column, width)) return 0;
            out[column] += value * second.value[o];
        }
    }
    return 1;
}

KERNEL(cross)(const Cross *it, Team *team, int threads) {
    return each(it->first.n_rows, 8, cross_row, it, team, threads);
}
