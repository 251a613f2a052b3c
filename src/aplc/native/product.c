/* A sparse matrix times a dense one, in float32. The twin is SciPy's product (`Product` in train/ridge.py).
 *
 * The idea: an entry of the sparse matrix asks for a row of the dense one, and rows of hundreds of columns come from
 * main memory each time. So columns are taken in panels, narrow enough for the dense matrix's panel to stay in the cache
 * and for a row of sums to stay in registers. Where rows have few entries, going through them again for every panel
 * would cost more than that saves, and panels are wide.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, NARROW = 4, WIDE = 16, FEW = 16, SHARE = 64 };
typedef float vec __attribute__((vector_size(32)));

typedef struct {
    int64_t n_rows, n_inner, width;
    const int64_t *start; /* a row's entries are start[row] to start[row + 1] */
    const int32_t *column;
    const float *value, *dense; /* dense: n_inner x width */
    float *out; /* n_rows x width */
} Product;

static inline __attribute__((always_inline)) int multiply(const Product *it, int threads, const int vectors) {
    const int64_t wide = LANES * vectors;
    vec *panel = aligned_alloc(sizeof(vec), (size_t)it->n_inner * vectors * sizeof(vec) + sizeof(vec));
    if (!panel) return 1;
#pragma omp parallel num_threads(threads)
    for (int64_t first = 0; first < it->width; first += wide) {
        size_t bytes = sizeof(float) * (size_t)(it->width - first < wide ? it->width - first : wide);
#pragma omp for schedule(static)
        for (int64_t j = 0; j < it->n_inner; j++) {
            memset(panel + j * vectors, 0, vectors * sizeof(vec));
            memcpy(panel + j * vectors, it->dense + j * it->width + first, bytes);
        }
#pragma omp for schedule(dynamic, SHARE)
        for (int64_t i = 0; i < it->n_rows; i++) {
            vec sum[WIDE] = {{0}};
            for (int64_t e = it->start[i]; e < it->start[i + 1]; e++) {
                const vec *row = panel + (int64_t)it->column[e] * vectors;
                float x = it->value[e];
                vec times = {x, x, x, x, x, x, x, x};
                for (int v = 0; v < vectors; v++) sum[v] += times * row[v];
            }
            memcpy(it->out + i * it->width + first, sum, bytes);
        }
    }
    free(panel);
    return 0;
}

int aplc_product(const Product *it, int threads) {
    int few = it->start[it->n_rows] < FEW * it->n_rows;
    return few ? multiply(it, threads, WIDE) : multiply(it, threads, NARROW);
}
