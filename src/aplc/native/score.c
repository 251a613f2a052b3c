/* Logits of documents through an index of labels by words, and the best of many labels.
 * The twins are in words/index.py.
 *
 * A document's scores are added up in its row of the result, so that nothing but the weights of its own words is read.
 * Documents are shared out among threads; the number of threads changes no bit.
 */
#include <stdint.h>
#include <string.h>

typedef struct {
    int64_t n_documents, n_words, n_labels, n_weights;
    const int64_t *start; /* a document's words are start[document] to start[document + 1] */
    const int32_t *word;
    const float *value;
    const int64_t *word_start; /* a word's weights */
    const int32_t *label;
    const int16_t *weight; /* times `scale` */
    float scale;
    const float *bias; /* what every document's scores begin with */
    const float *curve; /* 5 x n_labels: a, b, c, and the least and largest score that is bent */
    float *out; /* n_documents x n_labels */
} Logits;

/* a + b s + c s^2 up to where its slope falls to 1; from there on a line of slope 1. */
static void bend(const float *curve, int64_t n, float *score) {
    const float *a = curve, *b = a + n, *c = b + n, *least = c + n, *most = least + n;
    for (int64_t i = 0; i < n; i++) {
        float s = score[i], bent = s > least[i] ? s : least[i];
        bent = bent < most[i] ? bent : most[i];
        score[i] = a[i] + (b[i] + c[i] * bent) * bent + (s - bent);
    }
}

/* 1 if the index points outside itself: a damaged file, found only where it is read. */
int aplc_logits(const Logits *it, int threads) {
    int damaged = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int64_t d = 0; d < it->n_documents; d++) {
        float *out = it->out + d * it->n_labels;
        memcpy(out, it->bias, (size_t)it->n_labels * sizeof *out);
        for (int64_t e = it->start[d]; e < it->start[d + 1]; e++) {
            float value = it->value[e] * it->scale;
            int64_t first = it->word_start[it->word[e]], end = it->word_start[it->word[e] + 1];
            if (first < 0 || end > it->n_weights) {
#pragma omp atomic write
                damaged = 1;
                continue;
            }
            for (int64_t i = first; i < end; i++) {
                if ((uint32_t)it->label[i] >= (uint64_t)it->n_labels) {
#pragma omp atomic write
                    damaged = 1;
                    continue;
                }
                out[it->label[i]] += value * it->weight[i];
            }
        }
        bend(it->curve, it->n_labels, out);
    }
    return damaged;
}

typedef struct {
    int64_t n_rows, n_columns, k;
    const float *value; /* n_rows x n_columns, no NaN */
    int32_t *column; /* n_rows x k, best first */
} Best;

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

/* The k best columns of each row; of equal ones the first. */
void aplc_best(const Best *it, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 16)
    for (int64_t row = 0; row < it->n_rows; row++) {
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
    }
}
