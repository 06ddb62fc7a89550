// The matrix products of the fast convolutions, with AVX-512. products.py is the caller.
//
// The inner loop keeps some rows of the result in registers, and reads two vectors of the right
// side and one number of the left for each row. So the right side is packed, and a left one that is
// read by columns: a panel, 32 channels of all its rows, lies side by side. A number is a float, or
// a pair of bfloat16 that one instruction multiplies and adds up.

#ifdef __AVX512BW__
#include <immintrin.h>

constexpr int PANEL = 2 * LANES, MOST_ROWS = 8;
using Number = std::uint32_t;  // its bits
using HEIGHTS = std::make_integer_sequence<int, MOST_ROWS>;

struct Floats {
    static inline __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
};

#ifdef __AVX512BF16__
struct Pairs {
    static inline __m512 add(__m512 sum, __m512 a, __m512 b) {
        return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh&>(a), reinterpret_cast<__m512bh&>(b));
    }
};
#endif

// Room for packed numbers, at the start of a cache line: a vector that lies in two is read twice.
struct Numbers {
    std::vector<Vector> vectors;
    Number* at;
    explicit Numbers(long count)
        : vectors(count / LANES), at(reinterpret_cast<Number*>(vectors.data())) {}
};

// Where the numbers of the left side lie: `depth` of them in each row of the result.
struct Left {
    const Number* at;
    long step, row_step, depth;
};

// `ROWS` rows of `left` times the panel `right` of as many rows as `left` has numbers: to a panel
// of `to`, whose rows are `to_step` apart, or added to what is there.
template <class Arithmetic, int ROWS, class To>
static void multiply_rows(const Left& left, const Number* right, To* to, long to_step, bool adds) {
    __m512 sums[ROWS][2];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)
            sums[row][half] = adds ? __m512(load(to + row * to_step + half * LANES)) : __m512{};
    const Number* at = left.at;
    for (long each = 0; each < left.depth; ++each, at += left.step, right += PANEL) {
        const __m512 low = _mm512_loadu_ps(right), high = _mm512_loadu_ps(right + LANES);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(at[row * left.row_step]));
            sums[row][0] = Arithmetic::add(sums[row][0], factor, low);
            sums[row][1] = Arithmetic::add(sums[row][1], factor, high);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)
            store(to + row * to_step + half * LANES, Vector(sums[row][half]));
}

template <class Arithmetic, class To, int... LESS>
static void multiply(Left left, long rows, const Number* right, To* to, long to_step, bool adds,
                     std::integer_sequence<int, LESS...>) {
    static constexpr decltype(&multiply_rows<Arithmetic, 1, To>) of_rows[] = {
        multiply_rows<Arithmetic, LESS + 1, To>...};
    const long blocks = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (long block = 0; block < blocks; ++block) {  // all about as high
        const long height = rows * (block + 1) / blocks - rows * block / blocks;
        of_rows[height - 1](left, right, to, to_step, adds);
        left.at += height * left.row_step;
        to += height * to_step;
    }
}

// Packs a panel of `rows` rows that are `step` apart: as it is, or each two rows as a row of pairs.
static void pack(const float* panel, long rows, long step, Number* to) {
    for (long row = 0; row < rows; ++row)
        std::memcpy(to + row * PANEL, panel + row * step, PANEL * sizeof(Number));
}

static void pack(const BFloat16* panel, long rows, long step, Number* to) {
    alignas(64) std::uint16_t order[2][PANEL];
    for (int each = 0; each < 2 * PANEL; ++each)
        order[each / PANEL][each % PANEL] = each / 2 + each % 2 * PANEL;
    for (long row = 0; row < rows; row += 2) {
        const __m512i one = _mm512_loadu_si512(panel + row * step);
        const __m512i other =
            row + 1 < rows ? _mm512_loadu_si512(panel + (row + 1) * step) : __m512i{};
        for (int half = 0; half < 2; ++half)
            _mm512_storeu_si512(
                to + row / 2 * PANEL + half * LANES,
                _mm512_permutex2var_epi16(one, _mm512_load_si512(order[half]), other));
    }
}

// Where bit S of the lane is not set: a, and b's lanes moved up by S; or the other two quarters.
template <int S, bool UPPER, int... LANE>
static inline Vector mix(Vector a, Vector b, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(
        a, b, (LANE & S ? LANES + LANE - !UPPER * S : LANE + UPPER * S)...);
}

template <int S>
static inline void exchange(Vector* rows) {
    const auto lanes = std::make_integer_sequence<int, LANES>();
    for (int row = 0; row < LANES; ++row)
        if (!(row & S)) {
            const Vector a = rows[row], b = rows[row + S];
            rows[row] = mix<S, false>(a, b, lanes);
            rows[row + S] = mix<S, true>(a, b, lanes);
        }
}

// Packs the transpose of a panel: PANEL rows of `depth` numbers, side by side.
static void pack_transposed(const Number* rows_of, long depth, Number* to) {
    const float* from = reinterpret_cast<const float*>(rows_of);
    for (long first = 0; first < depth; first += LANES)
        for (int half = 0; half < 2; ++half) {
            Vector rows[LANES];
            for (int row = 0; row < LANES; ++row)
                rows[row] = load(from + (half * LANES + row) * depth + first);
            exchange<8>(rows);
            exchange<4>(rows);
            exchange<2>(rows);
            exchange<1>(rows);
            for (int row = 0; row < LANES; ++row)
                std::memcpy(to + (first + row) * PANEL + half * LANES, &rows[row], sizeof(Vector));
        }
}

// to[p][row][k] = sum over c of tiles[p][row][c] * factors[p][c][k]; of factors[p][k][c] where they
// are `transposed`.
template <class Arithmetic, class T>
static void times(const T* tiles, const T* factors, T* to, long products, long rows, long inputs,
                  long outputs, long transposed, int threads) {
    const long depth = inputs * sizeof(T) / sizeof(Number);
#pragma omp parallel num_threads(threads)
    {
        Numbers panel(depth * PANEL);
#pragma omp for collapse(2) schedule(static)
        for (long p = 0; p < products; ++p)
            for (long k = 0; k < outputs; k += PANEL) {
                const T* some = factors + p * inputs * outputs;
                if (transposed)
                    pack_transposed(reinterpret_cast<const Number*>(some + k * inputs), depth,
                                    panel.at);
                else
                    pack(some + k, inputs, outputs, panel.at);
                const Left left{reinterpret_cast<const Number*>(tiles + p * rows * inputs), 1,
                                depth, depth};
                multiply<Arithmetic>(left, rows, panel.at, to + p * rows * outputs + k,
                                     outputs, false, HEIGHTS());
            }
    }
}

// to[p][k][c] = sum over rows of left[p][row][k] * right[p][row][c], or += where `adds`
template <class Arithmetic, class T>
static void outer(const T* left, const T* right, float* to, long products, long rows, long inputs,
                  long outputs, long adds, int threads) {
    constexpr long PER = sizeof(Number) / sizeof(T);
    const long depth = (rows + PER - 1) / PER;
#pragma omp parallel num_threads(threads)
    {
        Numbers panels(depth * inputs), columns(depth * PANEL);
        long packed = -1;  // whose right side is in `panels`
#pragma omp for collapse(2) schedule(static)
        for (long p = 0; p < products; ++p)
            for (long k = 0; k < outputs; k += PANEL) {
                if (packed != p)
                    for (long c = 0; c < inputs; c += PANEL)
                        pack(right + p * rows * inputs + c, rows, inputs, panels.at + c * depth);
                packed = p;
                pack(left + p * rows * outputs + k, rows, outputs, columns.at);
                for (long c = 0; c < inputs; c += PANEL)
                    multiply<Arithmetic>({columns.at, PANEL, 1, depth}, PANEL,
                                         panels.at + c * depth,
                                         to + (p * outputs + k) * inputs + c, inputs, adds,
                                         HEIGHTS());
            }
    }
}

#define PRODUCTS(ARITHMETIC, T)                                                                   \
    extern "C" void times_##T(const T* tiles, const T* factors, T* to, long products, long rows,  \
                              long inputs, long outputs, long transposed, int threads) {          \
        times<ARITHMETIC>(tiles, factors, to, products, rows, inputs, outputs, transposed,        \
                          threads);                                                               \
    }                                                                                             \
    extern "C" void outer_##T(const T* left, const T* right, float* to, long products, long rows, \
                              long inputs, long outputs, long adds, int threads) {                \
        outer<ARITHMETIC>(left, right, to, products, rows, inputs, outputs, adds, threads);       \
    }
PRODUCTS(Floats, float)
#ifdef __AVX512BF16__
PRODUCTS(Pairs, BFloat16)
#endif
#endif
