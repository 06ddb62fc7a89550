// Softmax, its logarithm, GELU and their gradients, and functions of each number, with defined bits.
// portable.py is the caller.
//
// Sums of a row: LANES of them, each of every LANES-th number in order, then added by halves. exp is
// 2^n times a polynomial (Cephes' coefficients, Moshier, 1989), log a series in double, so that no
// mathematical library has a say.

static inline Vector exp_of(Vector x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole
    const Words is_nan = reinterpret_cast<Words>(x != x);
    const Vector within = choose(reinterpret_cast<Words>(x < -104.0f), all(-104.0f), x);
    const Vector kept = choose(reinterpret_cast<Words>(within > 89.0f), all(89.0f), within);
    const Vector n = (kept * 1.44269504088896341f + ROUND) - ROUND;
    Vector r = add_product(kept, n, all(-0.693359375f));
    r = add_product(r, n, all(2.12194440e-4f));
    Vector sum = all(1.9875691500e-4f);
    for (float each : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f,
                       5.0000001201e-1f})
        sum = add_product(all(each), sum, r);
    sum = add_product(r + 1.0f, sum, r * r);
    // 2^n in two factors, since results may be denormal.
    using Integers = std::int32_t __attribute__((vector_size(4 * LANES)));
    const Integers power = __builtin_convertvector(n, Integers), half = power >> 1;
    const Integers one = (half + 127) << 23, other = (power - half + 127) << 23;
    sum = sum * reinterpret_cast<const Vector&>(one) * reinterpret_cast<const Vector&>(other);
    return choose(is_nan, x, sum);
}

// Of a positive number, none of them denormal; minus infinity of zero.
static inline double log_of(double x) {
    if (!(x > 0)) return x == 0 ? -__builtin_inf() : __builtin_nan("");
    if (x == __builtin_inf()) return x;
    double mantissa = x;
    std::uint64_t bits;
    std::memcpy(&bits, &mantissa, sizeof bits);
    long power = long(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    std::memcpy(&mantissa, &bits, sizeof bits);
    if (mantissa > 1.4142135623730951) mantissa *= 0.5, ++power;
    const double ratio = (mantissa - 1) / (mantissa + 1), square = ratio * ratio;
    double sum = 0;  // 2 * (1 + square / 3 + square^2 / 5 + ...) * ratio
    for (int each = 19; each > 0; each -= 2) sum = sum * square + 2.0 / each;
    return power * 0.6931471805599453 + sum * ratio;
}

// `count` numbers from `from` on, and `fill` behind.
static inline Vector load_some(const float* from, long count, float fill) {
    Vector values = all(fill);
    std::memcpy(&values, from, std::min<long>(LANES, count) * sizeof(float));
    return values;
}

static inline void store_some(float* to, Vector values, long count) {
    std::memcpy(to, &values, std::min<long>(LANES, count) * sizeof(float));
}

static inline float sum_of(Vector values) {
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; ++lane) values[lane] += values[lane + half];
    return values[0];
}

static inline float largest_of(const float* row, long columns) {
    float best = row[0];
    for (long each = 1; each < columns && best == best; ++each)
        if (!(row[each] <= best)) best = row[each];
    return best;
}

// to (rows, columns) = softmax of each row, or its logarithm if it is LOG.
template <bool LOG>
static void softmax(const float* from, float* to, long rows, long columns, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long each = 0; each < rows; ++each) {
        const float *row = from + each * columns, largest = largest_of(row, columns);
        float* out = to + each * columns;
        Vector sums{};
        for (long at = 0; at < columns; at += LANES) {
            const Vector value =
                exp_of(load_some(row + at, columns - at, -__builtin_inff()) - largest);
            sums += value;
            if (!LOG) store_some(out + at, value, columns - at);
        }
        const float sum = sum_of(sums), log_of_sum = float(log_of(sum));
        for (long at = 0; at < columns; at += LANES)
            store_some(out + at,
                       LOG ? load_some(row + at, columns - at, 0) - largest - log_of_sum
                           : load_some(out + at, columns - at, 0) / sum,
                       columns - at);
    }
}

// The gradient of what softmax, or its logarithm, was computed of, from that of its result `out`.
template <bool LOG>
static void of_softmax(const float* gradient, const float* out, float* to, long rows, long columns,
                       int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long each = 0; each < rows; ++each) {
        const long row = each * columns;
        Vector sums{};
        for (long at = 0; at < columns; at += LANES) {
            const Vector arrived = load_some(gradient + row + at, columns - at, 0);
            sums += LOG ? arrived : arrived * load_some(out + row + at, columns - at, 0);
        }
        const float sum = sum_of(sums);
        for (long at = 0; at < columns; at += LANES) {
            const Vector arrived = load_some(gradient + row + at, columns - at, 0);
            const Vector value = load_some(out + row + at, columns - at, 0);
            store_some(to + row + at,
                       LOG ? arrived - exp_of(value) * sum : (arrived - sum) * value,
                       columns - at);
        }
    }
}

#define SOFTMAX(NAME, LOG)                                                                        \
    extern "C" void NAME(const float* from, float* to, long rows, long columns, int threads) {    \
        softmax<LOG>(from, to, rows, columns, threads);                                           \
    }                                                                                             \
    extern "C" void of_##NAME(const float* gradient, const float* out, float* to, long rows,      \
                              long columns, int threads) {                                        \
        of_softmax<LOG>(gradient, out, to, rows, columns, threads);                               \
    }
SOFTMAX(softmax, false)
SOFTMAX(log_softmax, true)

// The part of a normal distribution below x: half of erfc(-x / sqrt(2)), by Chebyshev's fit with a
// relative error of 1.2e-7 (Press et al., Numerical Recipes, 1992, erfcc).
static inline Vector below(Vector x) {
    const Vector y = x * -0.70710678118654752f;
    const Words is_negative = reinterpret_cast<Words>(y < 0.0f);
    const Vector size = choose(is_negative, -y, y), t = 1.0f / (1.0f + 0.5f * size);
    Vector sum = all(0.17087277f);
    for (float each : {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                       0.09678418f, 0.37409196f, 1.00002368f, -1.26551223f})
        sum = add_product(all(each), sum, t);
    const Vector tail = 0.5f * (t * exp_of(add_product(sum, -size, size)));
    return choose(is_negative, 1.0f - tail, tail);
}

// x * sigmoid(2u) of u = sqrt(2 / pi) * (x + 0.044715 * x^3): the tanh form of GELU.
static inline Vector twice_u(Vector x) {
    return x * (1.5957691216057308f + 0.0713548162726f * (x * x));
}
static inline Vector sigmoid_of(Vector x) { return 1.0f / (1.0f + exp_of(-x)); }

// The GELU of `count` numbers, or its derivative times the gradient where there is one.
extern "C" void gelu(const float* from, const float* gradient, float* to, long count, long by_tanh,
                     int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long at = 0; at < count; at += LANES) {
        const Vector x = load_some(from + at, count - at, 0);
        const Vector part = by_tanh ? sigmoid_of(twice_u(x)) : below(x);
        Vector value = x * part;
        if (gradient) {
            const Vector slope =
                by_tanh ? part * (1.0f - part) * (1.5957691216057308f +
                                                  0.2140644488178f * (x * x))
                        : 0.39894228040143268f * exp_of(x * x * -0.5f);
            value = (part + x * slope) * load_some(gradient + at, count - at, 0);
        }
        store_some(to + at, value, count - at);
    }
}

// Near zero a polynomial (Cephes' coefficients).
static inline Vector tanh_of(Vector x) {
    const Vector square = x * x;
    Vector sum = all(-5.70498872745e-3f);
    for (float each : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                       -3.33332819422e-1f})
        sum = add_product(all(each), sum, square);
    const Vector near = add_product(x, sum * square, x);
    const Vector far = 1.0f - 2.0f / (exp_of(x + x) + 1.0f);
    return choose(reinterpret_cast<Words>(square < 0.390625f), near, far);
}

static inline Vector log_of_each(Vector x) {
    for (int lane = 0; lane < LANES; ++lane) x[lane] = float(log_of(double(x[lane])));
    return x;
}

// log(1 / (1 + exp(-x))), of both signs without overflow.
static inline Vector log_sigmoid_of(Vector x) {
    const Vector size = choose(reinterpret_cast<Words>(x < 0.0f), x, -x), small = exp_of(size);
    Vector value = choose(reinterpret_cast<Words>(x < 0.0f), x, Vector{});
    for (int lane = 0; lane < LANES; ++lane)
        value[lane] = float(value[lane] - log_of(1.0 + double(small[lane])));
    return value;
}

#define OF_EACH(NAME, FUNCTION)                                                                   \
    extern "C" void NAME(const float* from, float* to, long count, int threads) {                 \
        _Pragma("omp parallel for num_threads(threads) schedule(static)")                         \
        for (long at = 0; at < count; at += LANES)                                                \
            store_some(to + at, FUNCTION(load_some(from + at, count - at, 0)), count - at);       \
    }
OF_EACH(each_exp, exp_of)
OF_EACH(each_log, log_of_each)
OF_EACH(each_tanh, tanh_of)
OF_EACH(each_sigmoid, sigmoid_of)
OF_EACH(each_log_sigmoid, log_sigmoid_of)

// Rounded to the nearest by the processor's own instruction, which MKL's vector function is not.
extern "C" void each_sqrt(const float* from, float* to, long count, int threads) {
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (long each = 0; each < count; ++each) to[each] = __builtin_sqrtf(from[each]);
}
