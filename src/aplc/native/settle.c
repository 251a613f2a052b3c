/* Rare words among a label's neighbours: (diag(q) + O) c = -O a by conjugate gradients, O = X X' without its diagonal, X
 * the rows of the label's documents. The twin is `settle_slowly` in words/local.py.
 *
 * O knows a word only if two of the documents have it, which is a small part of all. These words are numbered anew for
 * each label, so that what an iteration reads fits in the nearest caches. The number of threads changes no bit.
 */
#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { LABELS_AT_ONCE = 4 };
enum { ONCE = 1, TWICE = 2 }; /* how often a word was met; the first to be met twice is TWICE, the next TWICE + 1, ... */

typedef struct {
    const Settle *it;
    Queue queue;
} SettleWork;

typedef struct { /* a thread's own memory */
    int32_t *met; /* one a word; zero between labels */
    int64_t n_documents, n_entries; /* what there is room for */
    int64_t *start; /* a document's entries that are kept */
    int32_t *column; /* words with their new numbers */
    float *value, *sum; /* sum: one a new number */
    float *square, *residual, *direction, *product; /* one a document */
} SettleRoom;

static int resize(void *array, int64_t n, size_t size) {
    void **place = array, *larger = realloc(*place, (size_t)n * size);
    if (larger) *place = larger;
    return larger != NULL;
}

static int enlarge(SettleRoom *room, int64_t n_documents, int64_t n_entries) {
    if (n_documents > room->n_documents) {
        int64_t n = room->n_documents = 2 * n_documents;
        if (!resize(&room->start, n + 1, sizeof *room->start) || !resize(&room->square, n, sizeof(float)) ||
            !resize(&room->residual, n, sizeof(float)) || !resize(&room->direction, n, sizeof(float)) ||
            !resize(&room->product, n, sizeof(float)))
            return 0;
    }
    if (n_entries > room->n_entries) {
        int64_t n = room->n_entries = 2 * n_entries;
        if (!resize(&room->column, n, sizeof(int32_t)) || !resize(&room->value, n, sizeof(float)) ||
            !resize(&room->sum, n, sizeof(float)))
            return 0;
    }
    return 1;
}

/* Numbers the words that two and more of n documents have; how many there are, or -1. No branch in a loop over entries:
 * none could be foreseen. */
static int64_t number(const Settle *it, const int32_t *document, int64_t n, SettleRoom *room, int64_t *n_entries) {
    int64_t first, last;
    int32_t n_words = 0, *met = room->met;
    *n_entries = 0;
    for (int64_t d = 0; d < n; d++) {
        if (!entries(&it->rows, document[d], &first, &last)) return -1;
        for (int64_t e = first; e < last; e++) {
            int32_t w = it->rows.column[e];
            if (!inside(w, it->rows.n_columns)) return -1;
            int32_t before = met[w], again = before == ONCE;
            met[w] = again ? TWICE + n_words : before == 0 ? ONCE : before;
            n_words += again;
        }
        *n_entries += last > first ? last - first : 0;
    }
    return n_words;
}

/* Keeps these words' entries, and forgets the words. */
static void keep(const Settle *it, const int32_t *document, int64_t n, SettleRoom *room) {
    int64_t kept = 0, first = 0, last = 0;
    int32_t *met = room->met, *column = room->column;
    float *value = room->value;
    for (int64_t d = 0; d < n; d++) {
        float square[4] = {0};
        entries(&it->rows, document[d], &first, &last);
        room->start[d] = kept;
        for (int64_t e = first; e < last; e++) {
            int32_t found = met[it->rows.column[e]];
            float v = it->rows.value[e];
            column[kept] = found - TWICE, value[kept] = v;
            kept += found >= TWICE;
            square[e % 4] += found >= TWICE ? v * v : 0;
        }
        room->square[d] = square[0] + square[1] + (square[2] + square[3]);
    }
    room->start[n] = kept;
    for (int64_t d = 0; d < n; d++) {
        entries(&it->rows, document[d], &first, &last);
        for (int64_t e = first; e < last; e++) met[it->rows.column[e]] = 0;
    }
}

/* out = O in. */
static void others(SettleRoom *room, int64_t n, int64_t n_words, const float *in, float *out) {
    memset(room->sum, 0, (size_t)n_words * sizeof(float));
    for (int64_t d = 0; d < n; d++)
        for (int64_t e = room->start[d]; e < room->start[d + 1]; e++)
            room->sum[room->column[e]] += in[d] * room->value[e];
    for (int64_t d = 0; d < n; d++) {
        int64_t first = room->start[d], n_kept = room->start[d + 1] - first;
        float all = times(room->column + first, room->value + first, n_kept, room->sum);
        out[d] = all - room->square[d] * in[d];
    }
}

static double dot(const float *one, const float *other, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++) sum += (double)one[d] * other[d];
    return sum;
}

/* Adds c to a. */
static int settle(const Settle *it, int64_t label, SettleRoom *room) {
    int64_t first = it->start[label], n = it->start[label + 1] - first;
    it->solved[label] = 0;
    if (first < 0 || n < 0 || first + n > it->n_documents) return OUT_OF_RANGE;
    const int32_t *document = it->document + first;
    int64_t n_entries, n_words = number(it, document, n, room, &n_entries);
    if (n_words < 0) return OUT_OF_RANGE;
    if (!enlarge(room, n, n_entries + 1)) return NO_MEMORY; /* one more: an entry is written before it is dropped */
    keep(it, document, n, room);
    float *a = it->out + first, *residual = room->residual, *direction = room->direction, *product = room->product;
    double before = 0;
    others(room, n, n_words, a, residual);
    for (int64_t d = 0; d < n; d++) residual[d] = -residual[d], direction[d] = 0;
    for (int64_t i = 0; i <= it->most; i++) {
        if (dot(residual, residual, n) <= it->enough[label]) {
            it->solved[label] = 1;
            break;
        }
        double rho = 0;
        for (int64_t d = 0; d < n; d++) rho += (double)residual[d] * residual[d] / it->diagonal[document[d]];
        float beta = before > 0 ? (float)(rho / before) : 0;
        for (int64_t d = 0; d < n; d++) direction[d] = residual[d] / it->diagonal[document[d]] + beta * direction[d];
        others(room, n, n_words, direction, product);
        for (int64_t d = 0; d < n; d++) product[d] += it->diagonal[document[d]] * direction[d];
        double below = dot(direction, product, n);
        float alpha = below > 0 ? (float)(rho / below) : 0;
        for (int64_t d = 0; d < n; d++) a[d] += alpha * direction[d], residual[d] -= alpha * product[d];
        before = rho;
    }
    return DONE;
}

static void settle_some(void *given) {
    SettleWork *work = given;
    size_t words = (size_t)work->it->rows.n_columns + 1;
    SettleRoom room = {.met = calloc(words, sizeof(int32_t))};
    if (!room.met || !enlarge(&room, 1, 1)) work->queue.failure = NO_MEMORY;
    for (int64_t first, last; !work->queue.failure && take(&work->queue, &first, &last);)
        for (int64_t label = first; label < last && !work->queue.failure; label++) {
            int failure = settle(work->it, label, &room);
            if (failure) work->queue.failure = failure; /* and marks may be left behind */
        }
    free(room.met), free(room.start), free(room.column), free(room.value), free(room.sum);
    free(room.square), free(room.residual), free(room.direction), free(room.product);
}

KERNEL(settle)(const Settle *it, Team *team, int threads) {
    SettleWork work = {it, {.end = it->n_labels, .step = LABELS_AT_ONCE}};
    together(team, threads, settle_some, &work);
    return work.queue.failure;
}
