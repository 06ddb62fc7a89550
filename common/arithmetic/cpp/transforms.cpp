// The transforms of the fast convolutions of 3x3, each in one pass over memory.
//
// kernels.py appends the matrices of the algorithms. tile_transforms.py does the same sums in the
// same order with torch, so that both have the same bits: keep it so, without contraction of
// a * b + c.
//
// Maps are (samples, size, size, channels) in memory, tiles (products, rows, channels), where a row
// is a tile of a sample. Channels are a multiple of LANES, size of the tiling's TILE.

template <int ROWS_, int COLUMNS_>
struct Matrix {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
    float at[ROWS_][COLUMNS_];
};

template <const auto& M, int ROW, int COLUMN>
static inline void add_term(Vector& sum, bool& is_first, const Vector* in, int step) {
    constexpr float factor = M.at[ROW][COLUMN];
    if constexpr (factor != 0) {
        Vector term = factor == 1 ? in[COLUMN * step] : in[COLUMN * step] * factor;
        sum = is_first ? term : sum + term;
        is_first = false;
    }
}

template <const auto& M, int ROW, int... COLUMN>
static inline Vector row_times(const Vector* in, int step, std::integer_sequence<int, COLUMN...>) {
    Vector sum{};
    bool is_first = true;
    (add_term<M, ROW, COLUMN>(sum, is_first, in, step), ...);
    return sum;
}

// out[row * out_step] = sum over columns of M[row][column] * in[column * in_step]
template <const auto& M, int... ROW>
static inline void times(const Vector* in, int in_step, Vector* out, int out_step,
                         std::integer_sequence<int, ROW...>) {
    using M_ = std::remove_cv_t<std::remove_reference_t<decltype(M)>>;
    ((out[ROW * out_step] = row_times<M, ROW>(
          in, in_step, std::make_integer_sequence<int, M_::COLUMNS>())), ...);
}

// M, on both axes, times each tile of `maps`: tiles of M::COLUMNS positions, TILE apart, the first
// of them BEFORE positions before the map, which is zero outside.
template <const auto& M, int TILE, int BEFORE, class From, class To>
static void spread(const From* maps, To* tiles, long samples, long channels, long size,
                   int threads) {
    using M_ = std::remove_cv_t<std::remove_reference_t<decltype(M)>>;
    constexpr int P = M_::ROWS, L = M_::COLUMNS;
    const long across = size / TILE, rows = across * across * samples;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long each = 0; each < rows; ++each) {
        const long tile = each / samples, sample = each % samples;
        const long top = tile / across * TILE - BEFORE, left = tile % across * TILE - BEFORE;
        const From* map = maps + sample * size * size * channels;
        To* target = tiles + each * channels;
        for (long channel = 0; channel < channels; channel += LANES) {
            Vector in[L][L], half[P][L], out[P];
            for (int y = 0; y < L; ++y)
                for (int x = 0; x < L; ++x) {
                    const long row = top + y, column = left + x;
                    const bool inside = row >= 0 && row < size && column >= 0 && column < size;
                    in[y][x] = inside ? load(map + (row * size + column) * channels + channel)
                                      : Vector{};
                }
            for (int x = 0; x < L; ++x)
                times<M>(&in[0][x], L, &half[0][x], L, std::make_integer_sequence<int, P>());
            for (int p = 0; p < P; ++p) {
                times<M>(&half[p][0], 1, out, 1, std::make_integer_sequence<int, P>());
                for (int q = 0; q < P; ++q)
                    store(target + (p * P + q) * rows * channels + channel, out[q]);
            }
        }
    }
}

// The transposed way: M, on both axes, times the products of each tile, added up where the tiles
// of M::ROWS positions overlap; plus `bias`, where there is one. Channels are the innermost loop:
// a prefetcher follows the P * P streams of one tile, and not those of all tiles at once.
template <const auto& M, int TILE, int BEFORE, class From, class To>
static void gather(const From* tiles, To* maps, const float* bias, long samples, long channels,
                   long size, int threads) {
    using M_ = std::remove_cv_t<std::remove_reference_t<decltype(M)>>;
    constexpr int L = M_::ROWS, P = M_::COLUMNS;
    constexpr bool OVERLAP = L != TILE;
    static_assert(OVERLAP || BEFORE == 0);
    const long across = size / TILE, rows = across * across * samples;
    long wide = channels;  // those of a sample that one thread takes
    while (wide % (2 * LANES) == 0 && channels / wide * samples < threads) wide /= 2;
    const long vectors = wide / LANES;
#pragma omp parallel num_threads(threads)
    {
        std::vector<Vector> sums(OVERLAP ? size * size * vectors : 0);
#pragma omp for collapse(2) schedule(static)
        for (long first = 0; first < channels; first += wide)
            for (long sample = 0; sample < samples; ++sample) {
                const auto put = [=](long position, long vector, Vector sum) {
                    const long at = first + vector * LANES;
                    store(maps + (sample * size * size + position) * channels + at,
                          bias ? sum + load(bias + at) : sum);
                };
                for (Vector& sum : sums) sum = Vector{};
                for (long tile = 0; tile < across * across; ++tile) {
                    const From* source = tiles + (tile * samples + sample) * channels + first;
                    const long top = tile / across * TILE - BEFORE;
                    const long left = tile % across * TILE - BEFORE;
                    for (long vector = 0; vector < vectors; ++vector) {
                        Vector in[P][P], half[L][P], out[L];
                        for (int p = 0; p < P; ++p)
                            for (int q = 0; q < P; ++q)
                                in[p][q] = load(source + (p * P + q) * rows * channels +
                                                vector * LANES);
                        for (int q = 0; q < P; ++q)
                            times<M>(&in[0][q], P, &half[0][q], P,
                                     std::make_integer_sequence<int, L>());
                        for (int y = 0; y < L; ++y) {
                            times<M>(&half[y][0], 1, out, 1, std::make_integer_sequence<int, L>());
                            const long row = top + y;
                            if (row < 0 || row >= size) continue;
                            for (int x = 0; x < L; ++x) {
                                const long column = left + x, position = row * size + column;
                                if constexpr (!OVERLAP)
                                    put(position, vector, Vector{} + out[x]);
                                else if (column >= 0 && column < size)
                                    sums[position * vectors + vector] += out[x];
                            }
                        }
                    }
                }
                if constexpr (OVERLAP)
                    for (long each = 0; each < size * size * vectors; ++each)
                        put(each / vectors, each % vectors, sums[each]);
            }
    }
}

#define FUNCTIONS(NAME, TILE, BEFORE, MAPS, TILES)                                                \
    extern "C" void spread_##NAME##_##MAPS##_##TILES(const MAPS* maps, TILES* tiles,              \
                                                     long samples, long channels, long size,      \
                                                     int threads) {                               \
        spread<NAME, TILE, BEFORE>(maps, tiles, samples, channels, size, threads);                \
    }                                                                                             \
    extern "C" void gather_##NAME##_##MAPS##_##TILES(MAPS* maps, const TILES* tiles,              \
                                                     const float* bias, long samples,             \
                                                     long channels, long size, int threads) {     \
        gather<NAME##_transposed, TILE, BEFORE>(tiles, maps, bias, samples, channels, size,       \
                                                threads);                                         \
    }
