/* One sweep over the labels of a cluster: loss and gradients in float32. The twin of `chunked_sweep` in fused.py.
 *
 * The idea: matrix libraries copy a chunk of weights into a layout of their own before each of the three products, and
 * with a few dozen rows the copies take longer than the products. Here a block of BLOCK labels stays in the core's own
 * cache while everything is done with it: its logits, their loss and gradient, its weights' gradient, its share of the
 * rows' gradient. Weights are read once and their gradients written once; only the rows, which are few, are laid out
 * anew, in panels of eight.
 *
 * Vectors are the compiler's (GCC, Clang), so this is plain C for any processor. A tile keeps its sums in registers:
 * 12 vectors of eight are sums, the other four of AVX2's sixteen feed them. (NEON's 32 hold half a vector each.)
 *
 * The C library's exp is not used: since glibc 2.29 it has a new version, which systems that PyTorch runs on lack.
 *
 * Names: weight (n_labels x width), rows (n_rows x width), z the block's logits (BLOCK x stride), later dL/dz.
 */
#include <math.h>
#include <stdlib.h>

#include "native.h"

enum { LANES = 8, BLOCK = 72, DEPTH = 512, RECENT = 32, MAX_THREADS = 64 };
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef float loose __attribute__((vector_size(32), aligned(4), may_alias)); /* anywhere in memory */

typedef struct {
    const Sweep *all;
    int64_t start, stop, stride; /* its labels; rows rounded up to whole vectors */
    const float *in, *out; /* rows in panels: of eight rows; of eight columns, times the rows' weights */
    const float *root, *no_root; /* sigmoid(c), sigmoid(-c) */
    float *z, *saved, *grad_rows; /* saved: the positives' logits */
    float *recent; /* the latest blocks' part of grad_rows: a large sum loses digits of small numbers */
    double *loss, *pull; /* one a row; pull: the sum of d/dc */
} Share;

INLINE vec load(const float *from) { return (vec)*(const loose *)from; }
INLINE void store(float *to, vec x) { *(loose *)to = (loose)x; }
INLINE vec all(float x) { return (vec){x, x, x, x, x, x, x, x}; }
INLINE vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

INLINE vec exponential(vec x) {
    x = pick(x < all(-87.0f), all(-87.0f), x); /* comparisons with NaN are false: it stays */
    x = pick(x > all(88.0f), all(88.0f), x);
    vec shift = all(12582912.0f), n = (x * all(1.44269504f) + shift) - shift; /* rounds to an integer */
    vec r = x - n * all(0.693359375f) + n * all(2.12194440e-4f), y = all(1.0f / 5040);
    y = y * r + all(1.0f / 720);
    y = y * r + all(1.0f / 120);
    y = y * r + all(1.0f / 24);
    y = y * r + all(1.0f / 6);
    y = y * r + all(0.5f);
    y = y * r + all(1.0f);
    y = y * r + all(1.0f);
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return y * (vec)power;
}

/* log(1 + x) for x >= 0: 2 atanh(s) with s = x / (2 + x) up to 1; beyond, from the exponent and mantissa of 1 + x. */
INLINE vec log_one_plus(vec x) {
    vec u = all(1.0f) + x;
    ivec bits = (ivec)u - 0x3f3504f3, large = x > all(1.0f); /* mantissa between sqrt(1/2) and sqrt(2) */
    vec exponent = __builtin_convertvector(bits >> 23, vec), m = (vec)((bits & 0x7fffff) + 0x3f3504f3);
    vec s = pick(large, m - all(1.0f), x) / pick(large, m + all(1.0f), all(2.0f) + x), q = s * s, y = all(1.0f / 15);
    y = y * q + all(1.0f / 13);
    y = y * q + all(1.0f / 11);
    y = y * q + all(1.0f / 9);
    y = y * q + all(1.0f / 7);
    y = y * q + all(1.0f / 5);
    y = y * q + all(1.0f / 3);
    y = y * q + all(1.0f);
    return all(2.0f) * s * y + pick(large, exponent * all(0.69314718f), all(0.0f));
}

/* to[i][j] = or += sum over k < depth of a[i][k] b[k][j], for `n_tall` i and 8 `n_wide` j. a's elements are `a_row` and
 * `a_step` apart, b comes in panels of eight columns, `b_panel` apart. Both counts are constants where it is called, so
 * that the sums stay in registers. `next`, if not NULL, has the shape of `to`; it and what follows `to` are asked for early. */
INLINE void tile(int n_tall, int n_wide, int64_t depth, const float *a, int64_t a_row, int64_t a_step, const float *b,
                 int64_t b_panel, float *to, int64_t to_row, int add, const float *next) {
    vec sum[12], wide[2];
    for (int i = 0; i < n_tall; i++) {
        if (next) __builtin_prefetch(next + i * to_row, 0, 2);
        if (next) __builtin_prefetch(to + i * to_row + 2 * LANES, 1);
        for (int j = 0; j < n_wide; j++) sum[i * n_wide + j] = add ? load(to + i * to_row + j * LANES) : all(0.0f);
    }
    for (int64_t k = 0; k < depth; k++) {
        for (int j = 0; j < n_wide; j++) wide[j] = load(b + j * b_panel + k * LANES);
        for (int i = 0; i < n_tall; i++) {
            vec x = all(a[i * a_row + k * a_step]);
            for (int j = 0; j < n_wide; j++) sum[i * n_wide + j] += x * wide[j];
        }
    }
    for (int i = 0; i < n_tall; i++)
        for (int j = 0; j < n_wide; j++) store(to + i * to_row + j * LANES, sum[i * n_wide + j]);
}

/* The same for any number of i and one panel or two, in tiles of six and what is left: rather four and three than six
 * and one, which would be too few sums to keep the processor busy. */
INLINE void column(int64_t n_tall, int64_t n_wide, int64_t depth, const float *a, int64_t a_row, int64_t a_step,
                   const float *b, int64_t b_panel, float *to, int64_t to_row, int add, const float *next) {
    for (int64_t n; n_tall > 0; n_tall -= n) {
        n = n_tall <= 6 ? n_tall : n_tall <= 8 ? 4 : 6;
#define TILE(tall, wide) tile(tall, wide, depth, a, a_row, a_step, b, b_panel, to, to_row, add, next)
#define TALL(tall)                                                                                                     \
    case tall:                                                                                                         \
        if (n_wide == 1) TILE(tall, 1);                                                                                \
        else TILE(tall, 2);                                                                                            \
        break;
        switch (n) { TALL(1) TALL(2) TALL(3) TALL(4) TALL(5) TALL(6) }
        a += n * a_row;
        to += n * to_row;
        if (next) next += n * to_row;
    }
}

/* z = weight rows', by two panels of rows at a time, in pieces of `DEPTH` that stay in the first cache. */
static void logits(const Share *s, const float *weight, int64_t n) {
    int64_t width = s->all->width, panels = s->stride / LANES;
    for (int64_t p = 0; p < panels; p += 2)
        for (int64_t k = 0; k == 0 || k < width; k += DEPTH) { /* once without a width, too: it sets zeros */
            int64_t depth = width - k < DEPTH ? width - k : DEPTH;
            const float *b = s->in + (p * width + k) * LANES;
            float *to = s->z + p * LANES;
            column(n, panels - p, depth, weight + k, width, 1, b, width * LANES, to, s->stride, k > 0, NULL);
        }
}

/* The block's weight gradient, z rows, and its share of the rows' gradient, z' weight; the next block is fetched. */
static void gradients(const Share *s, const float *weight, float *grad_weight, int64_t n, const float *next) {
    const Sweep *w = s->all;
    int64_t width = w->width, panels = width / LANES, n_rows = w->n_rows, wide;
    float strip[2 * BLOCK * LANES];
    for (int64_t p = 0; p < panels; p += 2) {
        wide = panels - p < 2 ? 1 : 2;
        const float *b = s->out + p * n_rows * LANES, *ahead = next ? next + p * LANES : NULL;
        column(n, wide, n_rows, s->z, s->stride, 1, b, n_rows * LANES, grad_weight + p * LANES, width, 0, ahead);
        for (int64_t l = 0; l < n; l++) /* side by side: rows of weights would push each other out of the first cache */
            for (int64_t j = 0; j < wide; j++)
                store(strip + (j * BLOCK + l) * LANES, load(weight + l * width + (p + j) * LANES));
        column(n_rows, wide, n, s->z, 1, s->stride, strip, BLOCK * LANES, s->recent + p * LANES, width, 1, NULL);
    }
    for (int64_t d = panels * LANES; d < width; d++) /* columns that fill no vector */
        for (int64_t l = 0; l < n; l++) {
            float sum = 0;
            for (int64_t r = 0; r < n_rows; r++) {
                float z = s->z[l * s->stride + r];
                sum += z * (float)w->row_weight[r] * w->rows[r * width + d];
                s->recent[r * width + d] += z * weight[l * width + d];
            }
            grad_weight[l * width + d] = sum;
        }
}

/* p = sigmoid(z): -log(1 - p) = softplus(z), d/dz = p. */
static void head_terms(const Share *s, int64_t n) {
    for (int64_t r = 0; r < s->stride; r += LANES) {
        vec loss = all(0.0f);
        for (int64_t l = 0; l < n; l++) {
            float *place = s->z + l * s->stride + r;
            vec z = load(place);
            ivec positive = z > all(0.0f);
            vec e = exponential(pick(positive, -z, z)), p = all(1.0f) / (all(1.0f) + e);
            loss += pick(positive, z, all(0.0f)) + log_one_plus(e);
            store(place, pick(positive, p, e * p));
        }
        for (int j = 0; j < LANES; j++) s->loss[r + j] += loss[j];
    }
}

/* p = sigmoid(c) sigmoid(z) with odds o = sigmoid(c) / (e^-z + sigmoid(-c)):
 * -log(1 - p) = log(1 + o), d/dz = o sigmoid(-z), d/dc = o sigmoid(-c). */
static void tail_terms(const Share *s, int64_t n) {
    for (int64_t r = 0; r < s->stride; r += LANES) {
        vec loss = all(0.0f), pull = all(0.0f), root = load(s->root + r), no_root = load(s->no_root + r);
        for (int64_t l = 0; l < n; l++) {
            float *place = s->z + l * s->stride + r;
            vec e = exponential(-load(place)), odds = root / (e + no_root);
            loss += log_one_plus(odds);
            pull += odds;
            store(place, odds * (e / (all(1.0f) + e)));
        }
        for (int j = 0; j < LANES; j++) {
            s->loss[r + j] += loss[j];
            s->pull[r + j] += pull[j] * no_root[j];
        }
    }
}

static double sigmoid(double x) { return 1 / (2 + expm1(-x)); }
static double softplus(double x) { return (x > 0 ? x : 0) + log1p(1 / (1 + expm1(fabs(x)))); }

/* 0 if it has more positives than pairs of a label and a row: some come twice. */
static int block(const Share *s, int64_t start, int64_t n, int64_t *positive) {
    const Sweep *w = s->all;
    int64_t width = w->width, first = *positive, last = first;
    const float *weight = w->weight + start * width;

    logits(s, weight, n);
    if (w->bias)
        for (int64_t l = 0; l < n; l++)
            for (int64_t r = 0; r < s->stride; r++) s->z[l * s->stride + r] += w->bias[start + l];

    /* Positives are replaced by logits without loss or gradient, and put back with their own. */
    while (last < w->n_positives && w->label[last] < start + n) last++;
    if (last - first > n * s->stride) return 0;
    for (int64_t i = first; i < last; i++) {
        float *place = s->z + (w->label[i] - start) * s->stride + w->row[i];
        s->saved[i - first] = *place;
        *place = -1e30f;
    }
    if (w->root) tail_terms(s, n);
    else head_terms(s, n);
    for (int64_t i = first; i < last; i++) {
        double z = s->saved[i - first];
        int64_t r = w->row[i];
        s->loss[r] += softplus(-z) + (w->root ? softplus(-(double)w->root[r]) : 0);
        s->pull[r] -= s->no_root[r];
        s->z[(w->label[i] - start) * s->stride + r] = (float)-sigmoid(-z);
    }
    *positive = last;

    const float *next = start + 2 * BLOCK <= s->stop ? weight + BLOCK * width : NULL;
    gradients(s, weight, w->grad_weight + start * width, n, next);
    if (w->bias)
        for (int64_t l = 0; l < n; l++) {
            float sum = 0;
            for (int64_t r = 0; r < w->n_rows; r++) sum += s->z[l * s->stride + r] * (float)w->row_weight[r];
            w->grad_bias[start + l] = sum;
        }
    return 1;
}

static int share(const void *shares, int64_t t) {
    const Share *s = (const Share *)shares + t;
    int64_t positive = 0, high = s->all->n_positives;
    while (positive < high) { /* the first positive of its labels */
        int64_t middle = (positive + high) / 2;
        if (s->all->label[middle] < s->start) positive = middle + 1;
        else high = middle;
    }
    for (int64_t at = s->start, n_blocks = 1; at < s->stop; at += BLOCK, n_blocks++) {
        if (!block(s, at, s->stop - at < BLOCK ? s->stop - at : BLOCK, &positive)) return 0;
        if (n_blocks % RECENT == 0 || at + BLOCK >= s->stop)
            for (int64_t i = 0; i < s->all->n_rows * s->all->width; i++) {
                s->grad_rows[i] += s->recent[i];
                s->recent[i] = 0;
            }
    }
    return 1;
}

static int positives_fit(const Sweep *w) {
    for (int64_t i = 0; i < w->n_positives; i++) {
        int64_t least = i ? w->label[i - 1] : 0; /* labels rise */
        if (w->label[i] < least || w->label[i] >= w->n_labels || !inside(w->row[i], w->n_rows)) return 0;
    }
    return 1;
}

KERNEL(sweep)(const Sweep *w, Team *team, int n_threads) {
    int64_t stride = (w->n_rows + LANES - 1) / LANES * LANES, width = w->width, panels = width / LANES;
    int64_t n_blocks = (w->n_labels + BLOCK - 1) / BLOCK;
    int64_t grad_size = w->n_rows * width, z_size = BLOCK * stride, own_size = 2 * (grad_size + z_size);
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    if (n_threads > n_blocks) n_threads = (int)n_blocks;
    if (n_threads < 1) n_threads = 1;
    if (!positives_fit(w)) return OUT_OF_RANGE;
    float *in = calloc((size_t)(stride * width + 2 * stride + 1), sizeof(float));
    float *out = malloc((size_t)(grad_size + 1) * sizeof(float));
    float *owned = calloc((size_t)(n_threads * own_size + 1), sizeof(float));
    double *sums = calloc((size_t)(n_threads * 2 * stride + 1), sizeof(double));
    int failure = !in || !out || !owned || !sums ? NO_MEMORY : DONE;
    Share shares[MAX_THREADS];
    if (failure) goto done;

    float *root = in + stride * width, *no_root = root + stride;
    for (int64_t r = 0; r < w->n_rows; r++) {
        for (int64_t d = 0; d < width; d++) {
            float x = w->rows[r * width + d];
            in[(r / LANES * width + d) * LANES + r % LANES] = x;
            if (d < panels * LANES) out[(d / LANES * w->n_rows + r) * LANES + d % LANES] = x * (float)w->row_weight[r];
        }
        if (w->root) {
            root[r] = (float)sigmoid(w->root[r]);
            no_root[r] = (float)sigmoid(-(double)w->root[r]);
        }
    }
    for (int t = 0; t < n_threads; t++) {
        int64_t start = n_blocks * t / n_threads * BLOCK, stop = n_blocks * (t + 1) / n_threads * BLOCK;
        float *own = owned + t * own_size;
        shares[t] = (Share){.all = w, .start = start, .stop = stop < w->n_labels ? stop : w->n_labels, .stride = stride,
                            .in = in, .out = out, .root = root, .no_root = no_root, .z = own, .saved = own + z_size,
                            .grad_rows = own + 2 * z_size, .recent = own + 2 * z_size + grad_size,
                            .loss = sums + 2 * t * stride, .pull = sums + (2 * t + 1) * stride};
    }
    failure = each(n_threads, 1, share, shares, team, n_threads);
    if (failure) goto done;

    double loss = 0;
    for (int64_t r = 0; r < w->n_rows; r++) {
        double pull = 0, row_weight = w->row_weight[r];
        for (int t = 0; t < n_threads; t++) {
            loss += shares[t].loss[r] * row_weight;
            pull += shares[t].pull[r] * row_weight;
        }
        if (w->root) w->grad_root[r] = (float)pull;
        for (int64_t d = 0; d < width; d++) {
            float sum = 0;
            for (int t = 0; t < n_threads; t++) sum += shares[t].grad_rows[r * width + d];
            w->grad_rows[r * width + d] = sum * (float)row_weight;
        }
    }
    *w->loss = (float)loss;
done:
    free(in);
    free(out);
    free(owned);
    free(sums);
    return failure;
}
