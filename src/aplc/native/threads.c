/* Threads of our own, for a process without PyTorch.
 *
 * Python looks up pthread_create and pthread_join: linked at build time they would ask for the C library of the machine
 * that built the wheel (glibc 2.34), though every one has them.
 */
#include <pthread.h>
#include <stddef.h>

#include "native.h"

enum { MOST = 256 };

typedef int Create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int Join(pthread_t, void **);

static Create *create;
static Join *join;

typedef struct {
    void (*work)(void *);
    void *data;
} Call;

static void *run(void *given) {
    Call *call = given;
    call->work(call->data);
    return NULL;
}

EXPORT void aplc_use_threads(Create *created_by, Join *joined_by) {
    create = created_by;
    join = joined_by;
}

/* A `Team`. Where the system has no more threads to give, the others do the work. */
EXPORT void aplc_own_team(void (*work)(void *), void *data, unsigned threads, unsigned flags) {
    pthread_t others[MOST];
    Call call = {work, data};
    unsigned n = 0;
    (void)flags;
    while (create && join && n + 1 < threads && n < MOST && !create(&others[n], NULL, run, &call)) n++;
    work(data);
    while (n > 0) join(others[--n], NULL);
}
