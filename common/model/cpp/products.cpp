// The matrix products of the fast convolutions, on tiles in panels of 32 channels; with AVX-512.
//
// All of the reduction is read along rows of a panel, so the inner loop needs no packing: it keeps
// some rows of the result in registers, reads two vectors of the right side and one number of the
// left for each row. products.py is the caller. A number is a float, or a pair of bfloat16 that lie
// side by side, which one instruction multiplies and adds up.

#ifdef __AVX512BW__
#include <algorithm>
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

// Where the numbers of the left side lie: `panels` panels of `depth` numbers in each row.
struct Left {
    const Number* at;
    long step, panel_step, panels, depth;
};

// `ROWS` rows of `left` times the panel `right` of as many rows as `left` has numbers: to `to`, or
// added to what is there.
template <class Arithmetic, int ROW_STEP, int ROWS, class To>
static void multiply_rows(const Left& left, const Number* right, To* to, bool adds) {
    __m512 sums[ROWS][2];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)
            sums[row][half] = adds ? __m512(load(to + row * PANEL + half * LANES)) : __m512{};
    for (long panel = 0; panel < left.panels; ++panel) {
        const Number* at = left.at + panel * left.panel_step;
        for (long each = 0; each < left.depth; ++each, at += left.step, right += PANEL) {
            const __m512 low = _mm512_loadu_ps(right), high = _mm512_loadu_ps(right + LANES);
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; ++row) {
                const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(at[row * ROW_STEP]));
                sums[row][0] = Arithmetic::add(sums[row][0], factor, low);
                sums[row][1] = Arithmetic::add(sums[row][1], factor, high);
            }
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)
            store(to + row * PANEL + half * LANES, Vector(sums[row][half]));
}

template <class Arithmetic, int ROW_STEP, class To, int... LESS>
static void multiply(Left left, long rows, const Number* right, To* to, bool adds,
                     std::integer_sequence<int, LESS...>) {
    static constexpr decltype(&multiply_rows<Arithmetic, ROW_STEP, 1, To>) of_rows[] = {
        multiply_rows<Arithmetic, ROW_STEP, LESS + 1, To>...};
    const long blocks = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (long block = 0; block < blocks; ++block) {  // all about as high
        const long height = rows * (block + 1) / blocks - rows * block / blocks;
        of_rows[height - 1](left, right, to, adds);
        left.at += height * ROW_STEP;
        to += height * PANEL;
    }
}

// A panel as numbers: itself, or each two rows of it as a row of pairs, in `space`.
static inline const Number* numbers(const float* panel, long, std::vector<Number>&) {
    return reinterpret_cast<const Number*>(panel);
}

static inline const Number* numbers(const BFloat16* panel, long rows, std::vector<Number>& space) {
    alignas(64) std::uint16_t order[2][PANEL];
    for (int each = 0; each < 2 * PANEL; ++each)
        order[each / PANEL][each % PANEL] = each / 2 + each % 2 * PANEL;
    space.resize((rows + 1) / 2 * PANEL);
    for (long row = 0; row < rows; row += 2) {
        const __m512i one = _mm512_loadu_si512(panel + row * PANEL);
        const __m512i other =
            row + 1 < rows ? _mm512_loadu_si512(panel + (row + 1) * PANEL) : __m512i{};
        for (int half = 0; half < 2; ++half)
            _mm512_storeu_si512(
                &space[row / 2 * PANEL + half * LANES],
                _mm512_permutex2var_epi16(one, _mm512_load_si512(order[half]), other));
    }
    return space.data();
}

// Inputs that are read at a time, so that their panel of the right side stays in the first cache.
// Sums of bfloat16 are rounded once, so all their inputs are read at a time.
template <class T>
constexpr long DEPTH = sizeof(T) == sizeof(float) ? 128 : 1 << 30;

// to[p][j][row] = sum over c of tiles[p][c / 32][row][c % 32] * filters[p][j][c]
template <class Arithmetic, class T>
static void times(const T* tiles, const T* filters, T* to, long products, long rows, long inputs,
                  long outputs, int threads) {
    constexpr long PER = sizeof(Number) / sizeof(T), WIDTH = PANEL / PER;
#pragma omp parallel num_threads(threads)
    {
        std::vector<Number> space;
#pragma omp for collapse(2) schedule(static)
        for (long p = 0; p < products; ++p)
            for (long j = 0; j < outputs; j += PANEL) {
                const Number* panel =
                    numbers(filters + (p * outputs + j) * inputs, inputs, space);
                T* sums = to + (p * outputs + j) * rows;
                for (long c = 0; c < inputs; c += DEPTH<T>) {
                    const long depth = std::min(DEPTH<T>, inputs - c);
                    const Left left{reinterpret_cast<const Number*>(tiles + (p * inputs + c) * rows),
                                    1, rows * WIDTH, depth / PANEL, WIDTH};
                    multiply<Arithmetic, WIDTH>(left, rows, panel + c / PER * PANEL, sums, c > 0,
                                                HEIGHTS());
                }
            }
    }
}

// to[p][j][k] = sum over rows of left[p][k / 32][row][k % 32] * right[p][j][row], or += where `adds`
template <class Arithmetic, class T>
static void outer(const T* left, const T* right, float* to, long products, long rows, long inputs,
                  long outputs, long adds, int threads) {
    constexpr long PER = sizeof(Number) / sizeof(T);
#pragma omp parallel num_threads(threads)
    {
        std::vector<Number> left_space, right_space;
#pragma omp for collapse(2) schedule(static)
        for (long p = 0; p < products; ++p)
            for (long j = 0; j < inputs; j += PANEL) {
                const Number* panel = numbers(right + (p * inputs + j) * rows, rows, right_space);
                for (long k = 0; k < outputs; k += PANEL) {
                    const Left rows_of{numbers(left + (p * outputs + k) * rows, rows, left_space),
                                       PANEL, 0, 1, (rows + PER - 1) / PER};
                    multiply<Arithmetic, 1>(rows_of, PANEL, panel,
                                            to + (p * inputs + j) * outputs + k * PANEL, adds,
                                            HEIGHTS());
                }
            }
    }
}

#define PRODUCTS(ARITHMETIC, T)                                                                   \
    extern "C" void times_##T(const T* tiles, const T* filters, T* to, long products, long rows,  \
                              long inputs, long outputs, int threads) {                           \
        times<ARITHMETIC>(tiles, filters, to, products, rows, inputs, outputs, threads);          \
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
