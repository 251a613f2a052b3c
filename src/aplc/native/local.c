/* Rare labels' neighbourhoods: which documents they hold, and products with these documents' rows of a sparse matrix.
 * The twin is `SlowNeighbourhoods` in words/local.py.
 *
 * Labels are shared out among threads; each label is worked on by one, so that the number of threads changes no bit.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const int64_t *start; /* a row's entries are start[row] to start[row + 1] */
    const int32_t *column;
    const float *value;
} Rows;

typedef struct {
    int64_t n_labels, n_documents, n_words, most; /* most: documents beside a label's own */
    Rows by_document, by_word; /* documents x words, and the same by words */
    const int64_t *own_start; /* a label's own documents */
    const int32_t *own;
    const int64_t *place; /* where a label's neighbourhood begins in `document`: room for its own and `most` more */
    int32_t *document;
    int64_t *count; /* documents of each neighbourhood */
} Choice;

typedef struct {
    int64_t n_labels, n_columns;
    Rows rows;
    const int64_t *start; /* a label's documents are document[start[label]] to document[start[label + 1]] */
    const int32_t *document;
    const float *in; /* a number a document, or a row of n_columns a label */
    float *out; /* the other of the two, or a number a document */
} Neighbourhoods;

/* The value of rank k (0 is the largest) of n; their order is changed. */
static float ranked(float *value, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;
    while (low < high) {
        float middle = value[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (value[i] > middle) i++;
            while (value[j] < middle) j--;
            if (i <= j) {
                float kept = value[i];
                value[i++] = value[j];
                value[j--] = kept;
            }
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return value[k];
}

static int rising(const void *one, const void *other) {
    int32_t a = *(const int32_t *)one, b = *(const int32_t *)other;
    return (a > b) - (a < b);
}

/* A label's own documents, then those that share most with the sum of their words; of equal ones the first. */
static int64_t choose(const Choice *it, int64_t label, float *sum, int32_t *word, float *shared, int32_t *met, float *room) {
    int32_t *document = it->document + it->place[label];
    int64_t n_own = it->own_start[label + 1] - it->own_start[label], n_words = 0, n_met = 0, n = 0, left = it->most;
    const int32_t *own = it->own + it->own_start[label];
    for (int64_t d = 0; d < n_own; d++)
        for (int64_t e = it->by_document.start[own[d]]; e < it->by_document.start[own[d] + 1]; e++) {
            int32_t w = it->by_document.column[e];
            if (sum[w] == 0) word[n_words++] = w;
            sum[w] += it->by_document.value[e];
        }
    for (int64_t i = 0; i < n_words; i++) {
        int32_t w = word[i];
        for (int64_t e = it->by_word.start[w]; e < it->by_word.start[w + 1]; e++) {
            int32_t d = it->by_word.column[e];
            if (shared[d] == 0) met[n_met++] = d;
            shared[d] += sum[w] * it->by_word.value[e];
        }
        sum[w] = 0;
    }
    for (int64_t d = 0; d < n_own; d++) shared[own[d]] = 0;
    for (int64_t i = 0; i < n_met; i++)
        if (shared[met[i]] > 0) room[n++] = shared[met[i]];
    float least = n > it->most ? ranked(room, n, it->most) : 0; /* what is above it has a place */
    memcpy(document, own, (size_t)n_own * sizeof *own);
    document += n_own;
    n = 0;
    for (int64_t i = 0; i < n_met; i++)
        if (shared[met[i]] > least) document[n++] = met[i];
    left -= n;
    if (least > 0 && left > 0) {
        int64_t tied = 0;
        int32_t *ties = word; /* no longer needed; there is room for all documents */
        for (int64_t i = 0; i < n_met; i++)
            if (shared[met[i]] == least) ties[tied++] = met[i];
        qsort(ties, (size_t)tied, sizeof *ties, rising);
        for (int64_t i = 0; i < tied && left > 0; i++, left--) document[n++] = ties[i];
    }
    for (int64_t i = 0; i < n_met; i++) shared[met[i]] = 0;
    qsort(document, (size_t)n, sizeof *document, rising);
    return n_own + n;
}

int aplc_choose(const Choice *it, int threads) {
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        size_t documents = (size_t)it->n_documents, words = (size_t)it->n_words;
        float *sum = calloc(words + 1, sizeof *sum), *shared = calloc(documents + 1, sizeof *shared);
        float *room = malloc((documents + 1) * sizeof *room);
        int32_t *word = malloc((words + documents + 1) * sizeof *word), *met = malloc((documents + 1) * sizeof *met);
        if (!sum || !shared || !room || !word || !met) {
#pragma omp atomic write
            failed = 1;
        } else {
#pragma omp for schedule(dynamic, 4) nowait
            for (int64_t label = 0; label < it->n_labels; label++)
                it->count[label] = choose(it, label, sum, word, shared, met, room);
        }
        free(sum), free(shared), free(room), free(word), free(met);
    }
    return failed;
}

/* out[label] = sum of its documents' rows, times a number each. */
int aplc_gather(const Neighbourhoods *it, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int64_t label = 0; label < it->n_labels; label++) {
        float *out = it->out + label * it->n_columns;
        memset(out, 0, (size_t)it->n_columns * sizeof *out);
        for (int64_t d = it->start[label]; d < it->start[label + 1]; d++)
            for (int64_t e = it->rows.start[it->document[d]]; e < it->rows.start[it->document[d] + 1]; e++)
                out[it->rows.column[e]] += it->in[d] * it->rows.value[e];
    }
    return 0;
}

static inline float times(const Rows *rows, int32_t document, const float *dense) {
    float sum = 0;
    for (int64_t e = rows->start[document]; e < rows->start[document + 1]; e++)
        sum += rows->value[e] * dense[rows->column[e]];
    return sum;
}

/* out[document] = its row times in[label]. */
int aplc_spread(const Neighbourhoods *it, int threads) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
    for (int64_t label = 0; label < it->n_labels; label++)
        for (int64_t d = it->start[label]; d < it->start[label + 1]; d++)
            it->out[d] = times(&it->rows, it->document[d], it->in + label * it->n_columns);
    return 0;
}

/* out = X X' in for each label, X its documents' rows. */
int aplc_meet(const Neighbourhoods *it, int threads) {
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        float *sum = calloc((size_t)it->n_columns + 1, sizeof *sum);
        if (!sum) {
#pragma omp atomic write
            failed = 1;
        } else {
#pragma omp for schedule(dynamic, 4) nowait
            for (int64_t label = 0; label < it->n_labels; label++) {
                const Rows *rows = &it->rows;
                for (int64_t d = it->start[label]; d < it->start[label + 1]; d++)
                    for (int64_t e = rows->start[it->document[d]]; e < rows->start[it->document[d] + 1]; e++)
                        sum[rows->column[e]] += it->in[d] * rows->value[e];
                for (int64_t d = it->start[label]; d < it->start[label + 1]; d++)
                    it->out[d] = times(rows, it->document[d], sum);
                for (int64_t d = it->start[label]; d < it->start[label + 1]; d++)
                    for (int64_t e = rows->start[it->document[d]]; e < rows->start[it->document[d] + 1]; e++)
                        sum[rows->column[e]] = 0;
            }
        }
        free(sum);
    }
    return failed;
}

typedef struct {
    int64_t n_labels, n_columns;
    Rows rows; /* documents x words */
    const int64_t *start; /* a label's documents, and a number each */
    const int32_t *document;
    const float *number;
    const float *share, *less; /* share[label] times less[word] is taken off a weight */
    float least; /* smaller weights are left out */
    int64_t *out_start; /* if `word` is null, how many weights each label has is left behind it */
    int32_t *word;
    float *weight;
} Weights;

/* Of each label the weights X' number less share times less, if they are not small, for the words of its documents. */
int aplc_collect(const Weights *it, int threads) {
    int failed = 0;
#pragma omp parallel num_threads(threads)
    {
        float *sum = calloc((size_t)it->n_columns + 1, sizeof *sum);
        char *seen = calloc((size_t)it->n_columns + 1, 1);
        int32_t *word = malloc(((size_t)it->n_columns + 1) * sizeof *word);
        if (!sum || !seen || !word) {
#pragma omp atomic write
            failed = 1;
        } else {
#pragma omp for schedule(dynamic, 4) nowait
            for (int64_t label = 0; label < it->n_labels; label++) {
                int64_t n = 0, kept = it->word ? it->out_start[label] : 0;
                for (int64_t d = it->start[label]; d < it->start[label + 1]; d++)
                    for (int64_t e = it->rows.start[it->document[d]]; e < it->rows.start[it->document[d] + 1]; e++) {
                        int32_t w = it->rows.column[e];
                        if (!seen[w]) seen[w] = 1, word[n++] = w;
                        sum[w] += it->number[d] * it->rows.value[e];
                    }
                for (int64_t i = 0; i < n; i++) {
                    int32_t w = word[i];
                    float weight = sum[w] - it->share[label] * it->less[w];
                    if (weight >= it->least || weight <= -it->least) {
                        if (it->word) it->word[kept] = w, it->weight[kept] = weight;
                        kept++;
                    }
                    sum[w] = 0, seen[w] = 0;
                }
                if (!it->word) it->out_start[label + 1] = kept;
            }
        }
        free(sum), free(seen), free(word);
    }
    return failed;
}
