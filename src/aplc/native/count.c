/* How often words, word pairs and runs of characters occur in texts, by hash bucket. The twin is `count_slowly` in
 * words/text.py.
 *
 * A text is its words with a space behind each, so that a pair of neighbours is a stretch of bytes like a word is, and
 * nothing has to be copied to be hashed. A text's buckets are sorted digit by digit, and equal ones counted.
 */
#include <string.h>

#include "native.h"

enum { RUN = 4, DIGIT = 9 }; /* characters of a run; bits that are sorted by at a time */
enum { FEW_BYTES = 4 * RUN }; /* room for a run that is put together */

typedef struct { /* the buckets of a text, before they are counted */
    int32_t *bucket;
    int64_t n, room;
} Found;

static uint32_t scrambled(uint32_t k) {
    k *= 0xcc9e2d51u;
    return (k << 15 | k >> 17) * 0x1b873593u;
}

/* MurmurHash3 of Austin Appleby, x86_32, seed 0. */
static uint32_t hash(const uint8_t *key, int64_t n) {
    uint32_t h = 0, tail = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint32_t k = key[i] | (uint32_t)key[i + 1] << 8 | (uint32_t)key[i + 2] << 16 | (uint32_t)key[i + 3] << 24;
        h ^= scrambled(k);
        h = (h << 13 | h >> 19) * 5 + 0xe6546b64u;
    }
    for (int64_t byte = n - 1; byte >= i; byte--) tail = tail << 8 | key[byte];
    h ^= scrambled(tail) ^ (uint32_t)n;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

/* 0 if there is no room. Hashes are taken as signed numbers, without their signs. */
static int add(Found *found, int64_t first, int64_t n_buckets, const uint8_t *key, int64_t n) {
    uint32_t h = hash(key, n);
    if (found->n >= found->room) return 0;
    found->bucket[found->n++] = (int32_t)(first + (h >> 31 ? -h : h) % n_buckets);
    return 1;
}

/* The character behind the one at a place, in UTF-8. */
static const uint8_t *after(const uint8_t *at, const uint8_t *end) {
    do at++;
    while (at < end && (*at & 0xC0) == 0x80);
    return at;
}

/* The runs of characters of <word>. */
static int add_runs(Found *found, int64_t first, int64_t n_buckets, const uint8_t *word, const uint8_t *end) {
    const uint8_t *from = word, *to = word;
    uint8_t joined[FEW_BYTES];
    for (int i = 1; i < RUN; i++) to = to < end ? after(to, end) : end;
    if (to == end) return 1; /* a word that is shorter than a run has none */
    if (to - from >= FEW_BYTES) return 0;
    joined[0] = '<';
    memcpy(joined + 1, from, (size_t)(to - from));
    if (!add(found, first, n_buckets, joined, 1 + (to - from))) return 0;
    while (to < end) {
        to = after(to, end);
        if (!add(found, first, n_buckets, from, to - from)) return 0;
        from = after(from, end);
    }
    if (to - from >= FEW_BYTES) return 0;
    memcpy(joined, from, (size_t)(to - from));
    joined[to - from] = '>';
    return add(found, first, n_buckets, joined, 1 + (to - from));
}

static int add_all(const Count *it, const uint8_t *at, const uint8_t *end, Found *found) {
    for (const uint8_t *before = NULL, *word = at; at < end; at++) {
        if (*at != ' ') continue;
        if (!add(found, 0, it->n_words, word, at - word)) return 0;
        if (before && !add(found, it->n_words, it->n_pairs, before, at - before)) return 0;
        if (it->n_runs && !add_runs(found, it->n_words + it->n_pairs, it->n_runs, word, at)) return 0;
        before = word;
        word = at + 1;
    }
    return 1;
}

/* Into rising order, in `bucket` or `spare`, whichever is returned. */
static int32_t *sorted(int32_t *bucket, int32_t *spare, int64_t n, int64_t n_buckets) {
    for (int shift = 0; (n_buckets - 1) >> shift > 0; shift += DIGIT) {
        int64_t place[(1 << DIGIT) + 1] = {0};
        for (int64_t i = 0; i < n; i++) place[(bucket[i] >> shift & ((1 << DIGIT) - 1)) + 1]++;
        for (int digit = 0; digit < 1 << DIGIT; digit++) place[digit + 1] += place[digit];
        for (int64_t i = 0; i < n; i++) spare[place[bucket[i] >> shift & ((1 << DIGIT) - 1)]++] = bucket[i];
        int32_t *turned = bucket;
        bucket = spare;
        spare = turned;
    }
    return bucket;
}

KERNEL(count)(const Count *it, Team *team, int threads) {
    int64_t n_buckets = it->n_words + it->n_pairs + it->n_runs, n_found = 0;
    (void)team, (void)threads; /* texts follow each other without gaps; splitting them into words takes longer */
    if (it->n_words < 1 || it->n_pairs < 1 || it->n_runs < 0 || n_buckets > INT32_MAX) return OUT_OF_RANGE;
    it->found[0] = 0;
    for (int64_t text = 0; text < it->n_texts; text++) {
        int64_t first = it->start[text], last = it->start[text + 1];
        if (first < 0 || first > last || last > it->n_bytes) return OUT_OF_RANGE;
        Found found = {it->bucket + n_found, 0, it->n_room - n_found};
        if (!add_all(it, it->text + first, it->text + last, &found)) return OUT_OF_RANGE;
        int32_t *kept = it->bucket + n_found, *rising = sorted(kept, it->spare, found.n, n_buckets);
        int64_t n = 0;
        for (int64_t i = 0; i < found.n; i++) {
            int32_t next = rising[i];
            if (n && kept[n - 1] == next) {
                it->count[n_found + n - 1]++;
                continue;
            }
            kept[n] = next;
            it->count[n_found + n++] = 1;
        }
        it->found[text + 1] = n_found += n;
    }
    return DONE;
}
