// A convolution of 3x3, stride 1 and padding 1, of images of few channels, and the batch norm, the
// pooling of 2x2 and the ReLU after it, without the map between them. first_block.py is the caller.
//
// Images are (samples, height, width, CHANNELS) in memory, both sides even. A patch are the 9 *
// CHANNELS numbers that a position of the map sees, by row, column and channel, and a one.

// An image with a border of zeros.
template <int CHANNELS>
struct Framed {
    const long height, width, step = (width + 2) * CHANNELS;
    std::vector<float> numbers;
    Framed(long height, long width)
        : height(height), width(width), numbers((height + 2) * step) {}
    void operator=(const float* image) {
        const long row_size = width * CHANNELS;
        for (long row = 0; row < height; ++row)
            std::memcpy(&numbers[(row + 1) * step + CHANNELS], image + row * row_size,
                        row_size * sizeof(float));
    }
    const float* patch(long row, long column) const {
        return &numbers[row * step + column * CHANNELS];
    }
};

// The sides of the moments, at least a patch; and how many of their rows are added up at a time.
constexpr int SIDE = 2 * LANES, SOME = 8;

// Rows, of the map or of windows, that are added up as float; their sums are as double. A variance
// is a difference of moments: where images vary little about their mean, a small part of them.
constexpr long ROWS = 2;

// Some rows of sums (SIDE, SIDE), the `first` of them and more: += the sum of `count` patches times
// themselves. Without the columns before HALF * LANES.
template <int HALF>
static inline void add_moments(double* sums, const float* patch, int first, long count) {
    Vector sum[SOME][2] = {};
    for (long each = 0; each < count; ++each, patch += SIDE)
#pragma GCC unroll 8
        for (int row = 0; row < SOME; ++row)
#pragma GCC unroll 2
            for (int half = HALF; half < 2; ++half)
                sum[row][half] = add_product(sum[row][half], all(patch[first + row]),
                                             load(patch + half * LANES));
#pragma GCC unroll 8
    for (int row = 0; row < SOME; ++row)
#pragma GCC unroll 2
        for (int half = HALF; half < 2; ++half)
            add_to(sums + (first + row) * SIDE + half * LANES, sum[row][half]);
}

// sums[sample] (SIDE, SIDE) = the sum over patches, with zeros behind, of patch times patch. Of the
// rows from LANES on only the columns from LANES on are: the others are those above the diagonal.
template <int CHANNELS>
static void moments(const float* images, double* sums, long samples, long height, long width,
                    int threads) {
    constexpr int ROW = 3 * CHANNELS;
    static_assert(3 * ROW < SIDE);
#pragma omp parallel num_threads(threads)
    {
        Framed<CHANNELS> framed(height, width);
        std::vector<float> patches(ROWS * width * SIDE);
        for (long at = 0; at < ROWS * width; ++at) patches[at * SIDE + 3 * ROW] = 1;
#pragma omp for schedule(static)
        for (long sample = 0; sample < samples; ++sample) {
            framed = images + sample * height * width * CHANNELS;
            double* to = sums + sample * SIDE * SIDE;
            std::memset(to, 0, SIDE * SIDE * sizeof(double));
            for (long row = 0; row < height; row += ROWS) {
                const long rows = std::min(ROWS, height - row);
                float* patch = patches.data();
                for (long each = row; each < row + rows; ++each)
                    for (long column = 0; column < width; ++column, patch += SIDE)
                        for (int down = 0; down < 3; ++down)
                            std::memcpy(patch + down * ROW, framed.patch(each + down, column),
                                        ROW * sizeof(float));
                for (int first = 0; first <= 3 * ROW; first += SOME)
                    if (first < LANES)
                        add_moments<0>(to, patches.data(), first, rows * width);
                    else
                        add_moments<1>(to, patches.data(), first, rows * width);
            }
        }
    }
}

// By channel: what a patch is multiplied by, and what becomes of the map.
struct Filters {
    const float *taps, *sign, *factor, *shift;
    long count;
};

// A row of windows, the first of whose patches is `patch`; rows of the image are `step` apart.
template <int CHANNELS, int WINDOWS, class To>
static void pool_windows(const float* patch, long step, const Filters& filters, To* pooled,
                         std::uint8_t* places) {
    constexpr int ROW = 3 * CHANNELS, COLUMNS = 2 * WINDOWS;
    for (long k = 0; k < filters.count; k += LANES) {
        const float* taps = filters.taps + k;
        Vector map[2][COLUMNS];
#pragma GCC unroll 8
        for (int column = 0; column < COLUMNS; ++column)
            map[0][column] = map[1][column] = load(taps + 3 * ROW * filters.count);
        for (int down = 0; down < 3; ++down)
            for (int each = 0; each < ROW; ++each, taps += filters.count) {
                const Vector tap = load(taps);
                const float* at = patch + down * step + each;
#pragma GCC unroll 8
                for (int column = 0; column < COLUMNS; ++column) {
                    map[0][column] = add_product(map[0][column], all(at[column * CHANNELS]), tap);
                    map[1][column] =
                        add_product(map[1][column], all(at[step + column * CHANNELS]), tap);
                }
            }
#pragma GCC unroll 4
        for (int window = 0; window < WINDOWS; ++window) {
            const Vector values[4] = {map[0][2 * window], map[0][2 * window + 1],
                                      map[1][2 * window], map[1][2 * window + 1]};
            Words place;
            const Vector best = largest(values, load(filters.sign + k), place);
            const Vector line = best * load(filters.factor + k) + load(filters.shift + k);
            store(pooled + window * filters.count + k, choose(is_on(line), line, Vector{}));
            store(places + window * filters.count + k,
                  choose(is_on(line), place, NOWHERE - Words{}));
        }
    }
}

// pooled = the largest of each window times factor, plus shift, where that is positive; places are
// 0 to 3, or NOWHERE where it is not.
template <int CHANNELS, class To, int... LESS>
static void convolve_pool(const float* images, const Filters& filters, To* pooled,
                          std::uint8_t* places, long samples, long height, long width, int threads,
                          std::integer_sequence<int, LESS...>) {
    static constexpr decltype(&pool_windows<CHANNELS, 1, To>) of_windows[] = {
        pool_windows<CHANNELS, LESS + 1, To>...};
    constexpr long MOST = sizeof...(LESS);
    const long across = width / 2;
#pragma omp parallel num_threads(threads)
    {
        Framed<CHANNELS> framed(height, width);
#pragma omp for schedule(static)
        for (long sample = 0; sample < samples; ++sample) {
            framed = images + sample * height * width * CHANNELS;
            for (long row = 0; row < height / 2; ++row)
                for (long column = 0; column < across; column += MOST) {
                    const long at =
                        ((sample * (height / 2) + row) * across + column) * filters.count;
                    of_windows[std::min(MOST, across - column) - 1](
                        framed.patch(2 * row, 2 * column), framed.step, filters, pooled + at,
                        places + at);
                }
        }
    }
}

// sum[each] += what arrived at a window times `each` of the patch at its place, the first of whose
// patches is `patch`; rows of the image are `step` apart.
template <int CHANNELS>
static inline void arrive(Vector* sum, const float* patch, long step, Words place,
                          Vector arrived) {
    constexpr int ROW = 3 * CHANNELS;
    Vector by_place[4];
#pragma GCC unroll 4
    for (int each = 0; each < 4; ++each)
        by_place[each] =
            choose(reinterpret_cast<Words>(place == std::uint32_t(each)), arrived, Vector{});
    sum[3 * ROW] += choose(reinterpret_cast<Words>(place < NOWHERE), arrived, Vector{});
#pragma GCC unroll 27
    for (int each = 0; each < 3 * ROW; ++each)
#pragma GCC unroll 4
        for (int from = 0; from < 4; ++from)
            sum[each] = add_product(sum[each], by_place[from],
                                    all(patch[(each / ROW + from / 2) * step + each % ROW +
                                              from % 2 * CHANNELS]));
}

// sums[sample][each][k] = the sum over windows of gradient[k] times `each` of the patch at place k.
template <int CHANNELS, class T>
static void arrivals(const float* images, const T* gradient, const std::uint8_t* places,
                     double* sums, long samples, long height, long width, long outputs,
                     int threads) {
    constexpr int ROW = 3 * CHANNELS;
    const long across = width / 2;
#pragma omp parallel num_threads(threads)
    {
        Framed<CHANNELS> framed(height, width);
#pragma omp for schedule(static)
        for (long sample = 0; sample < samples; ++sample) {
            framed = images + sample * height * width * CHANNELS;
            double* to = sums + sample * (3 * ROW + 1) * outputs;
            std::memset(to, 0, (3 * ROW + 1) * outputs * sizeof(double));
            for (long k = 0; k < outputs; k += LANES)
                for (long first = 0; first < height / 2; first += ROWS) {
                    Vector sum[3 * ROW + 1] = {};
                    for (long row = first; row < std::min(first + ROWS, height / 2); ++row)
                        for (long column = 0; column < across; ++column) {
                            const long at =
                                ((sample * (height / 2) + row) * across + column) * outputs + k;
                            arrive<CHANNELS>(sum, framed.patch(2 * row, 2 * column), framed.step,
                                             load(places + at), load(gradient + at));
                        }
#pragma GCC unroll 28
                    for (int each = 0; each <= 3 * ROW; ++each)
                        add_to(to + each * outputs + k, sum[each]);
                }
        }
    }
}

#define OF_CHANNELS(C)                                                                            \
    extern "C" void moments_##C(const float* images, double* sums, long samples, long height,     \
                                long width, int threads) {                                        \
        moments<C>(images, sums, samples, height, width, threads);                                \
    }                                                                                             \
    BLOCK(C, float)                                                                               \
    BLOCK(C, BFloat16)
#define BLOCK(C, T)                                                                               \
    extern "C" void convolve_pool_##C##_##T(                                                      \
        const float* images, const float* taps, const float* sign, const float* factor,           \
        const float* shift, T* pooled, std::uint8_t* places, long samples, long height,           \
        long width, long outputs, int threads) {                                                  \
        convolve_pool<C>(images, Filters{taps, sign, factor, shift, outputs}, pooled, places,     \
                         samples, height, width, threads, std::make_integer_sequence<int, 4>());  \
    }                                                                                             \
    extern "C" void arrivals_##C##_##T(const float* images, const T* gradient,                    \
                                       const std::uint8_t* places, double* sums, long samples,    \
                                       long height, long width, long outputs, int threads) {      \
        arrivals<C>(images, gradient, places, sums, samples, height, width, outputs, threads);    \
    }
OF_CHANNELS(1)
OF_CHANNELS(3)
