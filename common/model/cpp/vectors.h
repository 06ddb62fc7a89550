// Sixteen channels at a time, as float; in memory as float or as bfloat16.

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

constexpr int LANES = 16;
using Vector = float __attribute__((vector_size(4 * LANES)));
using Words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = std::uint16_t __attribute__((vector_size(2 * LANES)));
struct BFloat16 { std::uint16_t bits; };

static inline Vector load(const float* from) {
    Vector values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

static inline void store(float* to, Vector values) { std::memcpy(to, &values, sizeof values); }

static inline Vector load(const BFloat16* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    Words words = __builtin_convertvector(halves, Words) << 16;
    return reinterpret_cast<Vector&>(words);
}

static inline Halves rounded(Vector values) {
    Words words = reinterpret_cast<Words&>(values);
    Words halves = (words + 0x7FFF + ((words >> 16) & 1)) >> 16;
    Words is_nan = reinterpret_cast<Words>(values != values);
    return __builtin_convertvector((halves & ~is_nan) | (0x7FC0 & is_nan), Halves);
}

// Rounds to the nearest, ties to even; a NaN stays one.
static inline void store(BFloat16* to, Vector values) {
    Halves halves;
#ifdef __AVX512BF16__
    // One instruction, but it takes denormal numbers for zero, and a NaN has its digits.
    const __m256bh by_instruction = _mm512_cvtneps_pbh(__m512(values));
    std::memcpy(&halves, &by_instruction, sizeof halves);
    constexpr int QUIET_NAN = 0x01, DENORMAL = 0x20, SIGNALING_NAN = 0x80;
    if (_mm512_fpclass_ps_mask(__m512(values), QUIET_NAN | DENORMAL | SIGNALING_NAN))
#endif
        halves = rounded(values);
    std::memcpy(to, &halves, sizeof halves);
}
