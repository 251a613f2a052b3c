/* Rare labels' neighbourhoods: which documents they hold, and products with these documents' rows of a sparse matrix.
 * The twins are `choose_slowly` and `spread_slowly` in words/local.py and `collect` in words/systems.py.
 *
 * Labels are shared out among threads; each label is worked on by one, so that the number of threads changes no bit.
 */
#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { LABELS_AT_ONCE = 4 };

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

static int rising_64(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

typedef struct {
    const Choice *it;
    Queue queue;
} ChoiceWork;

typedef struct { /* a thread's own memory */
    float *sum, *shared, *room; /* of words; of documents; for ranking */
    int64_t *word; /* words whose sums are not zero: the documents that have one, and its number */
    int32_t *met; /* documents whose sums are not zero */
} ChoiceRoom;

/* Adds the words of a label's own documents; how many there are, or -1. Values are not negative, so that only a word
 * without a place in the list has a sum of zero. */
static int64_t add_words(const Choice *it, int64_t label, ChoiceRoom *room) {
    int64_t n_words = 0, first, last, start, stop;
    for (int64_t d = it->own_start[label]; d < it->own_start[label + 1]; d++) {
        if (!entries(&it->by_document, it->own[d], &first, &last)) return -1;
        for (int64_t e = first; e < last; e++) {
            int32_t w = it->by_document.column[e];
            float value = it->by_document.value[e];
            if (!inside(w, it->by_document.n_columns) || !(value >= 0)) return -1;
            if (value == 0) continue;
            if (room->sum[w] == 0) {
                if (!entries(&it->by_word, w, &start, &stop) || !inside(stop - start, INT32_MAX)) return -1;
                room->word[n_words++] = (stop - start) << 32 | w;
            }
            room->sum[w] += value;
        }
    }
    qsort(room->word, (size_t)n_words, sizeof *room->word, rising_64);
    return n_words;
}

/* What each document shares with these words, the rarest first, as far as `reach` goes; how many share anything, or
 * -1. */
static int64_t add_documents(const Choice *it, int64_t n_words, ChoiceRoom *room) {
    int64_t n_met = 0, looked_at = 0, first, last;
    for (int64_t i = 0; i < n_words; i++) {
        int32_t w = (int32_t)(room->word[i] & INT32_MAX);
        float sum = room->sum[w];
        room->sum[w] = 0;
        looked_at += room->word[i] >> 32;
        if (i && looked_at > it->reach) continue;
        if (!entries(&it->by_word, w, &first, &last)) return -1;
        for (int64_t e = first; e < last; e++) {
            int32_t d = it->by_word.column[e];
            float more = sum * it->by_word.value[e];
            if (!inside(d, it->by_word.n_columns) || !(it->by_word.value[e] >= 0)) return -1;
            if (!(more > 0)) continue; /* too small for a float */
            if (room->shared[d] == 0) room->met[n_met++] = d;
            room->shared[d] += more;
        }
    }
    return n_met;
}

/* A label's own documents, then those that share most with the sum of their words; of equal ones the first. -1 if an
 * index is out of range. */
static int64_t choose(const Choice *it, int64_t label, ChoiceRoom *room) {
    int64_t start = it->own_start[label], n_own = it->own_start[label + 1] - start, n = 0, left = it->most;
    if (start < 0 || n_own < 0 || start + n_own > it->n_own) return -1;
    int64_t n_words = add_words(it, label, room), n_met = n_words < 0 ? -1 : add_documents(it, n_words, room);
    if (n_met < 0) return -1;
    float *shared = room->shared;
    const int32_t *own = it->own + start, *met = room->met;
    int32_t *document = it->document + it->place[label];
    for (int64_t d = 0; d < n_own; d++) shared[own[d]] = 0;
    for (int64_t i = 0; i < n_met; i++) {
        if (!it->may[met[i]]) shared[met[i]] = 0;
        if (shared[met[i]] > 0) room->room[n++] = shared[met[i]];
    }
    float least = n > it->most ? ranked(room->room, n, it->most) : 0; /* what is above it has a place */
    if (n_own) memcpy(document, own, (size_t)n_own * sizeof *own);
    document += n_own;
    n = 0;
    for (int64_t i = 0; i < n_met; i++)
        if (shared[met[i]] > least) document[n++] = met[i];
    left -= n;
    if (least > 0 && left > 0) {
        int64_t tied = 0;
        int32_t *ties = (int32_t *)room->room; /* no longer needed */
        for (int64_t i = 0; i < n_met; i++)
            if (shared[met[i]] == least) ties[tied++] = met[i];
        qsort(ties, (size_t)tied, sizeof *ties, rising);
        for (int64_t i = 0; i < tied && left > 0; i++, left--) document[n++] = ties[i];
    }
    for (int64_t i = 0; i < n_met; i++) shared[met[i]] = 0;
    qsort(document, (size_t)n, sizeof *document, rising);
    return n_own + n;
}

static void choose_some(void *given) {
    ChoiceWork *work = given;
    size_t documents = (size_t)work->it->by_document.n_rows + 1, words = (size_t)work->it->by_document.n_columns + 1;
    ChoiceRoom room = {.sum = calloc(words, sizeof(float)), .shared = calloc(documents, sizeof(float)),
                       .room = malloc(documents * sizeof(float)), .word = malloc(words * sizeof(int64_t)),
                       .met = malloc(documents * sizeof(int32_t))};
    if (!room.sum || !room.shared || !room.room || !room.word || !room.met) {
        work->queue.failure = NO_MEMORY;
    } else {
        for (int64_t first, last; take(&work->queue, &first, &last) && !work->queue.failure;)
            for (int64_t label = first; label < last && !work->queue.failure; label++) {
                work->it->count[label] = choose(work->it, label, &room);
                if (work->it->count[label] < 0) work->queue.failure = OUT_OF_RANGE; /* and its sums are not zero */
            }
    }
    free(room.sum), free(room.shared), free(room.room), free(room.word), free(room.met);
}

KERNEL(choose)(const Choice *it, Team *team, int threads) {
    ChoiceWork work = {it, {.end = it->n_labels, .step = LABELS_AT_ONCE}};
    together(team, threads, choose_some, &work);
    return work.queue.failure;
}

static int spread_label(const void *given, int64_t label) {
    const Spread *it = given;
    int64_t n_columns = it->rows.n_columns, first, last;
    const float *in = it->in + label * n_columns;
    if (it->start[label] < 0 || it->start[label + 1] > it->n_documents) return 0;
    for (int64_t d = it->start[label]; d < it->start[label + 1]; d++) {
        if (!entries(&it->rows, it->document[d], &first, &last)) return 0;
        for (int64_t e = first; e < last; e++)
            if (!inside(it->rows.column[e], n_columns)) return 0;
        it->out[d] = times(it->rows.column + first, it->rows.value + first, last - first, in);
    }
    return 1;
}

/* out[document] = its row times in[label]. */
KERNEL(spread)(const Spread *it, Team *team, int threads) {
    return each(it->n_labels, LABELS_AT_ONCE, spread_label, it, team, threads);
}

typedef struct {
    const Weights *it;
    Queue queue;
} WeightsWork;

typedef struct { /* a thread's own memory, one of each a word */
    float *sum;
    char *seen;
    int32_t *word;
} WeightsRoom;

static int collect_label(const Weights *it, int64_t label, WeightsRoom *room) {
    int64_t n = 0, kept = it->place[label], first, last, start, stop;
    const Rows rows = it->rows; /* copies: for all the compiler knows, a char in `seen` may be a part of them */
    float *sum = room->sum;
    char *seen = room->seen;
    int32_t *word = room->word;
    if (!entries(&it->own, label, &first, &last)) return 0;
    for (int64_t d = first; d < last; d++) {
        float number = it->own.value[d];
        if (!entries(&rows, it->own.column[d], &start, &stop)) return 0;
        for (int64_t e = start; e < stop; e++) {
            int32_t w = rows.column[e];
            if (!inside(w, rows.n_columns)) return 0;
            word[n] = w; /* whether it stays is no branch: none could be foreseen */
            n += !seen[w];
            seen[w] = 1;
            sum[w] += number * rows.value[e];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t w = word[i];
        float weight = sum[w] - it->share[label] * it->less[w];
        sum[w] = 0, seen[w] = 0;
        if (!(weight >= it->least || weight <= -it->least)) continue;
        if (kept >= it->place[label + 1]) return 0;
        it->word[kept] = w, it->weight[kept++] = weight;
    }
    it->count[label] = kept - it->place[label];
    return 1;
}

static void collect_some(void *given) {
    WeightsWork *work = given;
    size_t words = (size_t)work->it->rows.n_columns + 1;
    WeightsRoom room = {calloc(words, sizeof(float)), calloc(words, 1), malloc(words * sizeof(int32_t))};
    if (!room.sum || !room.seen || !room.word) {
        work->queue.failure = NO_MEMORY;
    } else {
        for (int64_t first, last; take(&work->queue, &first, &last) && !work->queue.failure;)
            for (int64_t label = first; label < last && !work->queue.failure; label++)
                if (!collect_label(work->it, label, &room)) work->queue.failure = OUT_OF_RANGE;
    }
    free(room.sum), free(room.seen), free(room.word);
}

/* Of each label the weights X' number less share times less, if they are not small, for the words of its documents. */
KERNEL(collect)(const Weights *it, Team *team, int threads) {
    WeightsWork work = {it, {.end = it->own.n_rows, .step = LABELS_AT_ONCE}};
    together(team, threads, collect_some, &work);
    return work.queue.failure;
}
