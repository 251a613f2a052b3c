/* What the C sources share: the structs that Python fills in, threads, and checks of sparse matrices.
 *
 * `loader.py` declares the same structs. When the library is loaded it compares their sizes and ABI; a change of
 * meaning that changes no size must raise ABI in both files.
 *
 * Kernels are compiled once for each vector unit, with VARIANT as the end of their names: sweep_avx2, sweep_avx512. Each
 * returns DONE, or what went wrong: whatever Python passes, nothing outside of the arrays is read or written.
 */
#ifndef APLC_NATIVE_H
#define APLC_NATIVE_H

#include <stdatomic.h>
#include <stdint.h>

enum { ABI = 4 };
enum { DONE = 0, NO_MEMORY = 1, OUT_OF_RANGE = 2 }; /* OUT_OF_RANGE: an index points outside of what it is for */

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define JOINED(name, variant) name##_##variant
#define NAMED(name, variant) JOINED(name, variant)
#define KERNEL(name) EXPORT int NAMED(name, VARIANT)

/* A sparse matrix by rows. */
typedef struct {
    int64_t n_rows, n_columns, n_entries;
    const int64_t *start; /* a row's entries are start[row] to start[row + 1] */
    const int32_t *column;
    const float *value;
} Rows;

/* sweep.c */
typedef struct {
    int64_t n_labels, n_rows, width, n_positives;
    const float *weight, *bias, *rows;
    const double *row_weight;
    const float *root; /* the logits c of the cluster's root, one a row; NULL for the head */
    const int64_t *label, *row; /* positives, sorted by label */
    float *loss, *grad_weight, *grad_bias, *grad_rows, *grad_root;
} Sweep;

/* product.c */
typedef struct {
    Rows x;
    int64_t width;
    const float *dense; /* x.n_columns x width */
    float *out; /* x.n_rows x width */
} Product;

typedef struct {
    Rows first, second;
    float *out; /* first.n_rows x second.n_columns */
} Cross;

/* transpose.c */
typedef struct {
    Rows x; /* some rows of a matrix */
    int64_t first, n_entries; /* first: the number of x's first row; n_entries: room */
    int64_t *after; /* one a column: where its next entry goes */
    int32_t *row;
    float *value;
} Transpose;

/* local.c */
typedef struct {
    Rows by_document, by_word; /* documents x words, and the same by words */
    int64_t n_labels, n_own, most, reach; /* most: documents beside a label's own; reach: entries looked at */
    const int64_t *own_start; /* a label's own documents */
    const int32_t *own;
    const uint8_t *may; /* 0: a document that is nobody's neighbour */
    const int64_t *place; /* where a label's neighbourhood begins in `document`: room for its own and `most` more */
    int32_t *document;
    int64_t *count; /* documents of each neighbourhood */
} Choice;

typedef struct {
    Rows rows;
    int64_t n_labels, n_documents; /* n_documents: of all neighbourhoods */
    const int64_t *start; /* a label's documents are document[start[label]] to document[start[label + 1]] */
    const int32_t *document;
    const float *in; /* a row of rows.n_columns a label */
    float *out; /* a number a document */
} Spread;

typedef struct {
    Rows own, rows; /* labels x documents; documents x words */
    const float *share, *less; /* share[label] times less[word] is taken off a weight */
    float least; /* smaller weights are left out */
    const int64_t *place; /* where a label's weights begin in `word` and `weight`, and the end: room for all its words */
    int64_t *count; /* weights of each label */
    int32_t *word;
    float *weight;
} Weights;

/* settle.c */
typedef struct {
    Rows rows; /* documents x words */
    int64_t n_labels, n_documents, most; /* n_documents: of all neighbourhoods; most: iterations */
    const int64_t *start; /* as in Spread */
    const int32_t *document;
    const float *diagonal; /* q, a number a row */
    const float *enough; /* the squared residual that a label may end with */
    float *out; /* a, to which c is added, a number a document */
    uint8_t *solved; /* 0: iterations did not suffice */
} Settle;

/* score.c */
typedef struct {
    Rows documents; /* documents x words */
    int64_t n_labels, n_weights;
    const int64_t *word_start; /* a word's weights */
    const int32_t *label;
    const int16_t *weight; /* times `scale` */
    float scale;
    const float *bias; /* what every document's scores begin with */
    const float *curve; /* 5 x n_labels: a, b, c, and the least and largest score that is bent */
    float *out; /* documents x n_labels */
} Logits;

typedef struct {
    int64_t n_rows, n_columns, k;
    const float *value; /* n_rows x n_columns */
    int32_t *column; /* n_rows x k, best first */
} Best;

/* count.c */
typedef struct {
    int64_t n_texts, n_bytes, n_room;
    int64_t n_words, n_pairs, n_runs; /* buckets of each, one group behind the other; n_runs = 0: no runs */
    const uint8_t *text; /* words in UTF-8, a space behind each */
    const int64_t *start; /* a text's bytes are text[start[i]] to text[start[i + 1]] */
    int64_t *found; /* a text's buckets are bucket[found[i]] to bucket[found[i + 1]], rising */
    int32_t *bucket, *spare; /* n_room each */
    float *count;
} Count;

/* Calls work(data) on up to `threads` threads at the same time, and returns when all have. GOMP_parallel is one: Python
 * passes that of PyTorch's own OpenMP, because other threads would have to wait while PyTorch's look for work. So the
 * library needs no OpenMP, and never brings a second one into the process. */
typedef void Team(void (*work)(void *), void *data, unsigned threads, unsigned flags);

INLINE void together(Team *team, int threads, void (*work)(void *), void *data) {
    if (threads > 1 && team) team(work, data, (unsigned)threads, 0);
    else work(data);
}

/* Work that threads share out: each takes the next `step` items. */
typedef struct {
    _Atomic int64_t next;
    int64_t end, step;
    _Atomic int failure;
} Queue;

INLINE int take(Queue *queue, int64_t *first, int64_t *last) {
    *first = atomic_fetch_add(&queue->next, queue->step);
    *last = queue->end - *first < queue->step ? queue->end : *first + queue->step;
    return *first < queue->end;
}

/* For items that need no memory of the thread's own. */
typedef int Item(const void *it, int64_t i); /* 0 if an index is out of range */

typedef struct {
    Item *item;
    const void *it;
    Queue queue;
} Items;

static inline void do_some(void *given) {
    Items *items = given;
    for (int64_t first, last; take(&items->queue, &first, &last);)
        for (int64_t i = first; i < last; i++)
            if (!items->item(items->it, i)) items->queue.failure = OUT_OF_RANGE;
}

static inline int each(int64_t n, int64_t step, Item *item, const void *it, Team *team, int threads) {
    Items items = {item, it, {.end = n, .step = step}};
    together(team, threads, do_some, &items);
    return items.queue.failure;
}

/* Where a row's entries are; 0 if there is no such row, or they would be outside of the matrix. */
INLINE int entries(const Rows *x, int64_t row, int64_t *first, int64_t *last) {
    if ((uint64_t)row >= (uint64_t)x->n_rows) return 0;
    *first = x->start[row];
    *last = x->start[row + 1];
    return *first >= 0 && *last <= x->n_entries;
}

INLINE int inside(int64_t index, int64_t n) { return (uint64_t)index < (uint64_t)n; }

/* The sum of value[i] dense[column[i]]. One sum would wait for itself, four don't. */
INLINE float times(const int32_t *column, const float *value, int64_t n, const float *dense) {
    float sum[4] = {0};
    for (int64_t i = 0; i < n / 4 * 4; i++) sum[i % 4] += value[i] * dense[column[i]];
    for (int64_t i = n / 4 * 4; i < n; i++) sum[0] += value[i] * dense[column[i]];
    return sum[0] + sum[1] + (sum[2] + sum[3]);
}

#endif
