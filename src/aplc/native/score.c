/* Logits of documents through an index of labels by words, and the best of many labels.
 * The twins are in words/index.py.
 *
 * A document's scores are added up in its row of the result, so that nothing but the weights of its own words is read.
 * Documents are shared out among threads; the number of threads changes no bit.
 */
#include <string.h>

#include "native.h"

/* a + b s + c s^2 up to where its slope falls to 1; from there on a line of slope 1. */
static void bend(const float *curve, int64_t n, float *score) {
    const float *a = curve, *b = a + n, *c = b + n, *least = c + n, *most = least + n;
    for (int64_t i = 0; i < n; i++) {
        float s = score[i], bent = s > least[i] ? s : least[i];
        bent = bent < most[i] ? bent : most[i];
        score[i] = a[i] + (b[i] + c[i] * bent) * bent + (s - bent);
    }
}

/* 0 if the index points outside itself: a damaged file, found only where it is read. */
static int logits_of(const void *given, int64_t d) {
    const Logits *it = given;
    int64_t first, last;
    float *out = it->out + d * it->n_labels;
    memcpy(out, it->bias, (size_t)it->n_labels * sizeof *out);
    if (!entries(&it->documents, d, &first, &last)) return 0;
    for (int64_t e = first; e < last; e++) {
        float value = it->documents.value[e] * it->scale;
        int32_t word = it->documents.column[e];
        if (!inside(word, it->documents.n_columns)) return 0;
        int64_t start = it->word_start[word], stop = it->word_start[word + 1];
        if (start < 0 || stop > it->n_weights) return 0;
        for (int64_t i = start; i < stop; i++) {
            int32_t label = it->label[i];
            if (!inside(label, it->n_labels)) return 0;
            out[label] += value * it->weight[i];
        }
    }
    bend(it->curve, it->n_labels, out);
    return 1;
}

KERNEL(logits)(const Logits *it, Team *team, int threads) {
    return each(it->documents.n_rows, 4, logits_of, it, team, threads);
}

static inline int before(float one, int32_t i, float other, int32_t j) {
    return one > other || (one == other && i < j);
}

/* A heap of columns whose root is the worst. */
static void sink(const float *value, int32_t *heap, int64_t n, int64_t at) {
    int32_t kept = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && before(value[heap[child]], heap[child], value[heap[child + 1]], heap[child + 1])) child++;
        if (!before(value[kept], kept, value[heap[child]], heap[child])) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = kept;
}

static int best_of(const void *given, int64_t row) {
    const Best *it = given;
    const float *value = it->value + row * it->n_columns;
    int32_t *heap = it->column + row * it->k;
    for (int64_t i = 0; i < it->k; i++) heap[i] = (int32_t)i;
    for (int64_t i = it->k / 2 - 1; i >= 0; i--) sink(value, heap, it->k, i);
    float worst = value[heap[0]];
    for (int64_t j = it->k; j < it->n_columns; j++) {
        if (value[j] <= worst) continue; /* an equal one comes later, so it is behind */
        heap[0] = (int32_t)j;
        sink(value, heap, it->k, 0);
        worst = value[heap[0]];
    }
    for (int64_t n = it->k - 1; n > 0; n--) {
        int32_t last = heap[n];
        heap[n] = heap[0];
        heap[0] = last;
        sink(value, heap, n, 0);
    }
    return 1;
}

/* The k best columns of each row; of equal ones the first. NaN has no place among them, but does no harm. */
KERNEL(best)(const Best *it, Team *team, int threads) {
    return each(it->n_rows, 16, best_of, it, team, threads);
}
