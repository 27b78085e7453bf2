/* Work that several threads share: each takes the next part until none is left, or one has failed. */
#include <stdint.h>

typedef struct {
    int (*work)(const void *given, int64_t first, int64_t last); /* parts first to last - 1; 0, or what failed */
    const void *given;
    int64_t count, step, next; /* parts, how many are taken at once, the first that nobody has */
    int64_t failed;            /* the largest result */
} Task;

void kvmm_take_parts(void *task) {
    Task *t = task;
    while (!__atomic_load_n(&t->failed, __ATOMIC_RELAXED)) {
        const int64_t first = __atomic_fetch_add(&t->next, t->step, __ATOMIC_RELAXED);
        if (first >= t->count) return;
        const int64_t last = t->count - first < t->step ? t->count : first + t->step;
        const int64_t result = t->work(t->given, first, last);
        int64_t seen = __atomic_load_n(&t->failed, __ATOMIC_RELAXED);
        while (result > seen)
            if (__atomic_compare_exchange_n(&t->failed, &seen, result, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
    }
}
