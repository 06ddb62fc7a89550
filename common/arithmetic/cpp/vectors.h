// Sixteen channels at a time, as float; in memory as float or as bfloat16.
//
// Bits must not depend on the instruction set: a * b + c is rounded twice where it is written so, and
// once in add_product, everywhere.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#endif

constexpr int LANES = 16;
using Vector = float __attribute__((vector_size(4 * LANES)));

// The floats of a register.
#ifdef __AVX512F__
constexpr int WIDE = 16;
#else
constexpr int WIDE = 8;
#endif
using Wide = float __attribute__((vector_size(4 * WIDE)));
using Words = std::uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = std::uint16_t __attribute__((vector_size(2 * LANES)));
struct BFloat16 { std::uint16_t bits; };

static inline Vector load(const float* from) {
    Vector values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

static inline void store(float* to, Vector values) { std::memcpy(to, &values, sizeof values); }

// sums += values.
static inline void add_to(double* sums, Vector values) {
    using Doubles = double __attribute__((vector_size(8 * LANES)));
    Doubles added;
    std::memcpy(&added, sums, sizeof added);
    added += __builtin_convertvector(values, Doubles);
    std::memcpy(sums, &added, sizeof added);
}

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

static inline Vector all(float value) { return value - Vector{}; }

// sum + a * b, rounded once.
static inline Wide add_wide(Wide sum, Wide a, Wide b) {
#if defined(__AVX512F__)
    return Wide(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(sum)));
#elif defined(__FMA__)
    return Wide(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(sum)));
#else
    for (int lane = 0; lane < WIDE; ++lane)
        sum[lane] = __builtin_fmaf(a[lane], b[lane], sum[lane]);
    return sum;
#endif
}

static inline Vector add_product(Vector sum, Vector a, Vector b) {
    Wide sums[LANES / WIDE], as[LANES / WIDE], bs[LANES / WIDE];
    std::memcpy(sums, &sum, sizeof sum);
    std::memcpy(as, &a, sizeof a);
    std::memcpy(bs, &b, sizeof b);
    for (int part = 0; part < LANES / WIDE; ++part)
        sums[part] = add_wide(sums[part], as[part], bs[part]);
    std::memcpy(&sum, sums, sizeof sum);
    return sum;
}

static inline Words choose(Words mask, Words one, Words other) {
    return (one & mask) | (other & ~mask);
}

static inline Vector choose(Words mask, Vector one, Vector other) {
    return reinterpret_cast<Vector>(
        choose(mask, reinterpret_cast<Words>(one), reinterpret_cast<Words>(other)));
}

// As many bytes, between numbers of four times their size.
using Bytes = std::uint8_t __attribute__((vector_size(LANES)));

static inline Words load(const std::uint8_t* from) {
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Words);
}

static inline void store(std::uint8_t* to, Words values) {
    const Bytes bytes = __builtin_convertvector(values, Bytes);
    std::memcpy(to, &bytes, sizeof bytes);
}
