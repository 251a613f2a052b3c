/* A sparse matrix times a dense one, or another sparse one, in float32. The twin is SciPy's product (words/systems.py).
 *
 * An entry of the sparse matrix asks for a row of the dense one, which comes from main memory: what costs is the wait.
 * So rows are asked for some entries ahead, and columns are taken in panels whose sums stay in the nearest cache.
 */
#include <stdint.h>
#include <string.h>

enum { PANEL = 128, AHEAD = 4, LINE = 16, SHARE = 64 }; /* LINE: floats of a line of the cache */

typedef struct {
    int64_t n_rows, width;
    const int64_t *start; /* a row's entries are start[row] to start[row + 1] */
    const int32_t *column;
    const float *value, *dense; /* dense: as many rows as the sparse matrix has columns, x width */
    float *out; /* n_rows x width */
} Product;

static inline __attribute__((always_inline)) void multiply(const Product *it, int64_t i, int64_t first, int64_t wide) {
    const float *dense = it->dense + first;
    int64_t last = it->start[it->n_rows] - 1;
    float sum[PANEL] = {0};
    for (int64_t e = it->start[i]; e < it->start[i + 1]; e++) {
        const float *row = dense + it->column[e] * it->width;
        const float *later = dense + it->column[e + AHEAD < last ? e + AHEAD : last] * it->width;
        for (int64_t j = 0; j < wide; j += LINE) __builtin_prefetch(later + j);
        for (int64_t j = 0; j < wide; j++) sum[j] += it->value[e] * row[j];
    }
    memcpy(it->out + i * it->width + first, sum, (size_t)wide * sizeof(float));
}

void aplc_product(const Product *it, int threads) {
#pragma omp parallel num_threads(threads)
    for (int64_t first = 0; first < it->width; first += PANEL) {
        int64_t left = it->width - first;
#pragma omp for schedule(dynamic, SHARE)
        for (int64_t i = 0; i < it->n_rows; i++) {
            if (left < PANEL)
                multiply(it, i, first, left);
            else
                multiply(it, i, first, PANEL);
        }
    }
}

typedef struct {
    int64_t n_rows, width;
    const int64_t *start; /* n_rows of the first matrix */
    const int32_t *column;
    const float *value;
    const int64_t *other_start; /* the second one, `width` columns */
    const int32_t *other_column;
    const float *other_value;
    float *out; /* n_rows x width, dense */
} Cross;

void aplc_cross(const Cross *it, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 8)
    for (int64_t i = 0; i < it->n_rows; i++) {
        float *out = it->out + i * it->width;
        memset(out, 0, (size_t)it->width * sizeof *out);
        for (int64_t e = it->start[i]; e < it->start[i + 1]; e++) {
            float value = it->value[e];
            for (int64_t o = it->other_start[it->column[e]]; o < it->other_start[it->column[e] + 1]; o++)
                out[it->other_column[o]] += value * it->other_value[o];
        }
    }
}
