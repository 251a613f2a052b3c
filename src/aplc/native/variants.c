/* Which of the compiled kernels this processor can run, and what Python compares before it calls any. */
#include "native.h"

EXPORT const int64_t aplc_abi = ABI;
EXPORT const int64_t aplc_sizes[] = {
    sizeof(Rows),   sizeof(Sweep),   sizeof(Product), sizeof(Cross),  sizeof(Transpose), sizeof(Choice),
    sizeof(Spread), sizeof(Weights), sizeof(Settle),  sizeof(Logits), sizeof(Best),      sizeof(Count),
};
EXPORT const char aplc_sources[] = SOURCES; /* the sources' digest: a library of other sources is not used */

/* Names of variants, best first. */
EXPORT const char *aplc_variants(void) {
#ifdef HAS_X86
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? "avx512 avx2 baseline" : avx2 ? "avx2 baseline" : "baseline";
#elif defined(__ARM_NEON)
    return "neon";
#else
    return "baseline";
#endif
}
