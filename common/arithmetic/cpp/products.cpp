// Matrix products whose bits are defined, for any sizes. products.py is the caller, and defines them.
//
// The inner loop keeps some rows of the result in registers, and reads two vectors of the right
// side and one number of the left for each row. So the right side is packed, and a left one that is
// read by columns: a panel, PANEL columns of all its rows, lies side by side, with zeros where there
// are fewer. A number is a float, or a pair of bfloat16 that one instruction multiplies and adds up.

constexpr int PANEL = 2 * WIDE, MOST_ROWS = WIDE == 16 ? 8 : 6;  // all sums lie in registers
// What is packed at a time, and the rows that meet it: both stay in a core's cache.
constexpr long DEEP = 512, BLOCK = 256;
using Number = std::uint32_t;  // its bits
using HEIGHTS = std::make_integer_sequence<int, MOST_ROWS>;

static inline Wide wide(const void* from) {
    Wide values;
    std::memcpy(&values, from, sizeof values);
    return values;
}

struct Floats {
    static inline Wide add(Wide sum, Number a, Wide b) {
        float factor;
        std::memcpy(&factor, &a, sizeof factor);
        return add_wide(sum, factor - Wide{}, b);
    }
};

#ifdef __AVX512BF16__
struct Pairs {
    static inline Wide add(Wide sum, Number a, Wide b) {
        const __m512i pair = _mm512_set1_epi32(a);
        return Wide(_mm512_dpbf16_ps(__m512(sum), reinterpret_cast<const __m512bh&>(pair),
                                     reinterpret_cast<__m512bh&>(b)));
    }
};
#endif

// Room for packed numbers, at the start of a cache line: a vector that lies in two is read twice.
struct Numbers {
    std::vector<Vector> vectors;
    Number* at;
    explicit Numbers(long count)
        : vectors((count + LANES - 1) / LANES), at(reinterpret_cast<Number*>(vectors.data())) {}
};

// Where the numbers of the left side lie: `depth` of them in each row of the result.
struct Left {
    const Number* at;
    long step, row_step, depth;
};

// `ROWS` rows of `left` times the panel `right` of as many rows as `left` has numbers: to a panel
// of `to`, whose rows are `to_step` apart, or added to what is there.
template <class Arithmetic, int ROWS>
static void multiply_rows(const Left& left, const Number* right, float* to, long to_step,
                          bool adds) {
    Wide sums[ROWS][2];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)
            sums[row][half] = adds ? wide(to + row * to_step + half * WIDE) : Wide{};
    const Number* at = left.at;
    for (long each = 0; each < left.depth; ++each, at += left.step, right += PANEL) {
        const Wide low = wide(right), high = wide(right + WIDE);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            const Number factor = at[row * left.row_step];
            sums[row][0] = Arithmetic::add(sums[row][0], factor, low);
            sums[row][1] = Arithmetic::add(sums[row][1], factor, high);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half)  // one move of both would keep the sums in memory
            std::memcpy(to + row * to_step + half * WIDE, &sums[row][half], sizeof(Wide));
}

// All rows, by blocks of about equal height.
template <class Arithmetic, int... LESS>
static void multiply(Left left, long rows, const Number* right, float* to, long to_step, bool adds,
                     std::integer_sequence<int, LESS...>) {
    static constexpr decltype(&multiply_rows<Arithmetic, 1>) of_rows[] = {
        multiply_rows<Arithmetic, LESS + 1>...};
    const long blocks = (rows + MOST_ROWS - 1) / MOST_ROWS;
    for (long block = 0; block < blocks; ++block) {
        const long height = rows * (block + 1) / blocks - rows * block / blocks;
        of_rows[height - 1](left, right, to, to_step, adds);
        left.at += height * left.row_step;
        to += height * to_step;
    }
}

// As `multiply`, to a panel of which only `columns` are there. Sums that are bfloat16 in memory are
// rounded when all is added up.
template <class Arithmetic, class To>
static void multiply_panel(const Left& left, long rows, const Number* right, To* to, long to_step,
                           long columns, bool adds) {
    if constexpr (sizeof(To) == sizeof(float))
        if (columns == PANEL)
            return multiply<Arithmetic>(left, rows, right, to, to_step, adds, HEIGHTS());
    alignas(64) float sums[MOST_ROWS * PANEL];
    for (long row = 0; row < rows; row += MOST_ROWS) {
        const long some = std::min<long>(MOST_ROWS, rows - row);
        if constexpr (sizeof(To) == sizeof(float))
            for (long each = 0; adds && each < some; ++each)
                std::memcpy(sums + each * PANEL, to + (row + each) * to_step,
                            columns * sizeof(float));
        multiply<Arithmetic>({left.at + row * left.row_step, left.step, left.row_step, left.depth},
                             some, right, sums, PANEL, adds, HEIGHTS());
        for (long each = 0; each < some; ++each) {
            alignas(64) To rounded[PANEL];
            for (int vector = 0; vector < PANEL; vector += LANES)
                store(rounded + vector, load(sums + each * PANEL + vector));
            std::memcpy(to + (row + each) * to_step, rounded, columns * sizeof(To));
        }
    }
}

// Packs `columns` of `rows` rows that are `step` apart: as it is, or each two rows as one of pairs.
static void pack(const float* panel, long rows, long step, long columns, Number* to) {
    if (columns == PANEL)  // a size that the compiler knows: a few moves, and no call
        for (long row = 0; row < rows; ++row)
            std::memcpy(to + row * PANEL, panel + row * step, PANEL * sizeof(Number));
    else for (long row = 0; row < rows; ++row, to += PANEL) {
        std::memcpy(to, panel + row * step, columns * sizeof(Number));
        std::memset(to + columns, 0, (PANEL - columns) * sizeof(Number));
    }
}

#ifdef __AVX512BF16__
static void pack(const BFloat16* panel, long rows, long step, long, Number* to) {
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
#endif

// Where bit S of the lane is not set: a, and b's lanes moved up by S; or the other two quarters.
template <int S, bool UPPER, int... LANE>
static inline Wide mix(Wide a, Wide b, std::integer_sequence<int, LANE...>) {
    return __builtin_shufflevector(
        a, b, (LANE & S ? WIDE + LANE - !UPPER * S : LANE + UPPER * S)...);
}

template <int S>
static inline void exchange(Wide* rows) {
    const auto lanes = std::make_integer_sequence<int, WIDE>();
    for (int row = 0; row < WIDE; ++row)
        if (!(row & S)) {
            const Wide a = rows[row], b = rows[row + S];
            rows[row] = mix<S, false>(a, b, lanes);
            rows[row + S] = mix<S, true>(a, b, lanes);
        }
    if constexpr (S > 1) exchange<S / 2>(rows);
}

// Writes `some` columns of WIDE rows, each to half a row of the panel.
static inline void put_transposed(Wide* rows, long some, Number* to) {
    exchange<WIDE / 2>(rows);
#pragma GCC unroll 16
    for (int row = 0; row < some; ++row) std::memcpy(to + row * PANEL, &rows[row], sizeof(Wide));
}

// Packs the transpose of a panel: `columns` rows of `depth` numbers, `step` apart.
static void pack_transposed(const Number* from, long depth, long step, long columns, Number* to) {
    for (long first = 0; first < depth; first += WIDE)
        for (int half = 0; half < PANEL; half += WIDE) {
            const Number* here = from + half * step + first;
            const long some = std::min<long>(WIDE, depth - first);
            Wide rows[WIDE];
            if (some == WIDE && half + WIDE <= columns) {  // of a known size: all in registers
#pragma GCC unroll 16
                for (int row = 0; row < WIDE; ++row) rows[row] = wide(here + row * step);
                put_transposed(rows, WIDE, to + first * PANEL + half);
                continue;
            }
            for (int row = 0; row < WIDE; ++row) {
                rows[row] = Wide{};
                if (half + row < columns)
                    std::memcpy(&rows[row], here + row * step, some * sizeof(Number));
            }
            put_transposed(rows, some, to + first * PANEL + half);
        }
}

// to[p][row][k] = sum over c of tiles[p][row][c] * factors[p][c][k]; of factors[p][k][c] where they
// are `transposed`.
template <class Arithmetic, class T>
static void times(const T* tiles, const T* factors, T* to, long products, long rows, long inputs,
                  long outputs, long transposed, int threads) {
    constexpr long PER = sizeof(Number) / sizeof(T);
    const long depth = inputs / PER, panels = (outputs + PANEL - 1) / PANEL;
    const long deep = PER == 1 ? DEEP : depth;  // bfloat16 sums are rounded but once
    const long blocks = (rows + BLOCK - 1) / BLOCK;
#pragma omp parallel num_threads(threads)
    {
        Numbers panel(depth * PANEL);
        long packed = -1;
#pragma omp for collapse(3) schedule(static)
        for (long p = 0; p < products; ++p)
            for (long of = 0; of < panels; ++of)
                for (long block = 0; block < blocks; ++block) {
                    const long k = of * PANEL, columns = std::min<long>(PANEL, outputs - k);
                    const T* some = factors + p * inputs * outputs;
                    if (packed != p * panels + of) {
                        if (transposed)
                            pack_transposed(reinterpret_cast<const Number*>(some + k * inputs),
                                            depth, depth, columns, panel.at);
                        else
                            pack(some + k, inputs, outputs, columns, panel.at);
                        packed = p * panels + of;
                    }
                    const long row = p * rows + block * BLOCK;
                    const long height = std::min(BLOCK, rows - block * BLOCK);
                    const Number* left = reinterpret_cast<const Number*>(tiles + row * inputs);
                    for (long at = 0; at == 0 || at < depth; at += deep)
                        multiply_panel<Arithmetic>(
                            {left + at, 1, depth, std::min(deep, depth - at)}, height,
                            panel.at + at * PANEL, to + row * outputs + k, outputs, columns,
                            at > 0);
                }
    }
}

// to[p][k][c] = sum over rows of left[p][row][k] * right[p][row][c], or += where `adds`
template <class Arithmetic, class T>
static void outer(const T* left, const T* right, float* to, long products, long rows, long inputs,
                  long outputs, long adds, int threads) {
    constexpr long PER = sizeof(Number) / sizeof(T);
    const long panels = (inputs + PANEL - 1) / PANEL, most = std::min(DEEP, rows);
#pragma omp parallel num_threads(threads)
    {
        const long room = (most + PER - 1) / PER * PANEL;
        Numbers rights(room * panels), columns(room);
        for (long first = 0; first == 0 || first < rows; first += DEEP) {
            const long some = std::min(DEEP, rows - first), depth = (some + PER - 1) / PER;
            long packed = -1;  // whose right side is in `rights`
#pragma omp for collapse(2) schedule(static)
            for (long p = 0; p < products; ++p)
                for (long k = 0; k < outputs; k += PANEL) {
                    const long row = p * rows + first, height = std::min<long>(PANEL, outputs - k);
                    if (packed != p)
                        for (long of = 0; of < panels; ++of)
                            pack(right + row * inputs + of * PANEL, some, inputs,
                                 std::min<long>(PANEL, inputs - of * PANEL),
                                 rights.at + of * depth * PANEL);
                    packed = p;
                    pack(left + row * outputs + k, some, outputs, height, columns.at);
                    for (long of = 0; of < panels; ++of)
                        multiply_panel<Arithmetic>(
                            {columns.at, PANEL, 1, depth}, height, rights.at + of * depth * PANEL,
                            to + (p * outputs + k) * inputs + of * PANEL, inputs,
                            std::min<long>(PANEL, inputs - of * PANEL), adds || first > 0);
                }
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
