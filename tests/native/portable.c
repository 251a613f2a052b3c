/* Every kernel on the same random numbers; prints what it finds. For processors that Python does not run on here:
 * test_platforms.py compiles it with the kernels for each, and compares. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

#define DECLARE(name, type) int NAMED(name, VARIANT)(const type *, Team *, int);
DECLARE(sweep, Sweep)
DECLARE(product, Product)
DECLARE(cross, Cross)
DECLARE(transpose, Transpose)
DECLARE(choose, Choice)
DECLARE(spread, Spread)
DECLARE(collect, Weights)
DECLARE(settle, Settle)
DECLARE(logits, Logits)
DECLARE(best, Best)
DECLARE(count, Count)
#define CALL(name, struct) (failed |= NAMED(name, VARIANT)(&(struct), NULL, 1))

enum { LABELS = 301, ROWS = 13, WIDTH = 37, WORDS = 90, EACH = 6 };

static uint64_t state = 1;
static float number(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(state >> 40) / (1 << 24);
}
static float *numbers(int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = number() - 0.25f;
    return x;
}
static void print(const char *name, const float *x, int64_t n) {
    double sum = 0, weighted = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i], weighted += x[i] * (double)(i % 17);
    printf("%s %.9g %.9g %.9g\n", name, sum, weighted, x[n - 1]);
}
static Rows rows(int64_t n_rows, int64_t n_columns) {
    int64_t *start = malloc((size_t)(n_rows + 1) * sizeof *start), n = n_rows * EACH;
    int32_t *column = malloc((size_t)n * sizeof *column);
    float *value = malloc((size_t)n * sizeof *value);
    for (int64_t i = 0; i <= n_rows; i++) start[i] = i * EACH;
    for (int64_t e = 0; e < n; e++) column[e] = (int32_t)(number() * n_columns), value[e] = 0.1f + number();
    return (Rows){n_rows, n_columns, n, start, column, value};
}

int main(void) {
    int failed = 0;
    int64_t label[] = {0, 5, 71, 72, 300}, row[] = {3, 12, 0, 7, 12};
    double row_weight[ROWS];
    for (int r = 0; r < ROWS; r++) row_weight[r] = 0.5 + number();
    for (int tail = 0; tail < 2; tail++) {
        float loss, grad_weight[LABELS * WIDTH], grad_bias[LABELS], grad_rows[ROWS * WIDTH], grad_root[ROWS];
        Sweep it = {LABELS, ROWS, WIDTH, 5, numbers(LABELS * WIDTH), numbers(LABELS), numbers(ROWS * WIDTH), row_weight,
                    tail ? numbers(ROWS) : NULL, label, row, &loss, grad_weight, grad_bias, grad_rows, grad_root};
        CALL(sweep, it);
        print("loss", &loss, 1), print("weight", grad_weight, LABELS * WIDTH), print("bias", grad_bias, LABELS);
        print("rows", grad_rows, ROWS * WIDTH);
        if (tail) print("root", grad_root, ROWS);
    }
    Rows x = rows(LABELS, WORDS), by_word = rows(WORDS, LABELS), own = rows(ROWS, LABELS);
    float out[LABELS * LABELS], found[LABELS * WIDTH];
    Product product = {x, WIDTH, numbers(WORDS * WIDTH), out};
    CALL(product, product), print("product", out, LABELS * WIDTH);
    Cross cross = {x, by_word, out};
    CALL(cross, cross), print("cross", out, LABELS * LABELS);

    int64_t after[WORDS] = {0};
    int32_t transposed[LABELS * EACH];
    for (int64_t e = 0; e < x.n_entries; e++)
        for (int w = x.column[e] + 1; w < WORDS; w++) after[w]++;
    Transpose transpose = {x, 5, x.n_entries, after, transposed, out};
    CALL(transpose, transpose), print("transpose", out, x.n_entries);
    printf("transposed %d %d\n", (int)transposed[0], (int)transposed[x.n_entries - 1]);

    int64_t place[ROWS + 1], count[ROWS];
    uint8_t may[LABELS];
    for (int i = 0; i < LABELS; i++) may[i] = i != 3;
    int32_t document[ROWS * (EACH + 20)];
    for (int i = 0; i <= ROWS; i++) place[i] = i * (EACH + 20);
    Choice choice = {x, by_word, ROWS, own.n_entries, 20, 100, own.start, own.column, may, place, document, count};
    CALL(choose, choice);
    for (int i = 0; i < ROWS; i++) printf("chosen %d %d\n", (int)count[i], (int)document[place[i] + count[i] - 1]);
    Spread spread = {x, ROWS, own.n_entries, own.start, own.column, numbers(ROWS * WORDS), out};
    CALL(spread, spread), print("spread", out, own.n_entries);
    int32_t word[ROWS * WORDS];
    for (int i = 0; i <= ROWS; i++) place[i] = i * WORDS;
    Weights weights = {own, x, numbers(ROWS), numbers(WORDS), 0.02f, place, count, word, found};
    CALL(collect, weights);
    for (int i = 0; i < ROWS; i++) print("collect", found + place[i], count[i]);
    float diagonal[LABELS], enough[ROWS], *a = numbers(own.n_entries);
    uint8_t solved[ROWS];
    for (int i = 0; i < LABELS; i++) diagonal[i] = 20;
    for (int i = 0; i < ROWS; i++) enough[i] = 1e-6f;
    Settle settle = {x, ROWS, own.n_entries, 100, own.start, own.column, diagonal, enough, a, solved};
    CALL(settle, settle), print("settle", a, own.n_entries);
    for (int i = 0; i < ROWS; i++) printf("solved %d\n", solved[i]);

    int16_t small[WORDS * EACH];
    for (int i = 0; i < WORDS * EACH; i++) small[i] = (int16_t)(i * 37 % 1000 - 500);
    Logits logits = {x, LABELS, by_word.n_entries, by_word.start, by_word.column, small, 1e-3f,
                     numbers(LABELS), numbers(5 * LABELS), out};
    CALL(logits, logits), print("logits", out, LABELS * LABELS);
    int32_t column[LABELS * 5];
    Best best = {LABELS, LABELS, 5, out, column};
    CALL(best, best);
    int64_t places = 0;
    for (int i = 0; i < LABELS * 5; i++) places += column[i] * (i % 5 + 1);
    printf("best %lld\n", (long long)places);

    const char *text = "a fox foxes the fox a fox \xc3\xbc" "ber-all \xe6\x9d\xb1 rain ";
    int64_t start[] = {0, 26, 26, (int64_t)strlen(text)}, n[4];
    int32_t bucket[128], spare[128];
    float often[128];
    Count counted = {3, start[3], 128, 1 << 10, 1 << 12, 1 << 10, (const uint8_t *)text, start, n, bucket, spare, often};
    CALL(count, counted);
    for (int i = 1; i < 4; i++) printf("text %d\n", (int)n[i]);
    for (int i = 0; i < n[3]; i++) printf("bucket %d %g\n", (int)bucket[i], often[i]);
    printf("failed %d\n", failed);
    return failed;
}
