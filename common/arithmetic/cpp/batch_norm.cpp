// Batch norm and ReLU as one, and its gradient: norm_relu.py is the caller.
//
// Maps are (positions, channels) in memory. A line, map * factor + shift, is by channel.

// Where ReLU lets the line through: NaN too.
static inline Words is_on(Vector line) { return ~reinterpret_cast<Words>(line <= 0.0f); }

// to = the line where that is positive, and else zero.
template <class T>
static void normalize(const T* maps, T* to, const float* factor, const float* shift, long positions,
                      long channels, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long position = 0; position < positions; ++position)
        for (long channel = 0; channel < channels; channel += LANES) {
            const long at = position * channels + channel;
            const Vector line = load(maps + at) * load(factor + channel) + load(shift + channel);
            store(to + at, choose(is_on(line), line, Vector{}));
        }
}

// sums[block] (2, channels): of the gradient, where ReLU let the line through, and of that times the
// map. Each block of `size` positions has sums of its own, so that threads change none.
template <class T>
static void norm_sums(const T* gradient, const T* maps, float* sums, const float* factor,
                      const float* shift, long positions, long channels, long size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long first = 0; first < positions; first += size) {
        float* of_gradient = sums + first / size * 2 * channels;
        float* of_both = of_gradient + channels;
        std::memset(of_gradient, 0, 2 * channels * sizeof(float));
        for (long position = first; position < std::min(first + size, positions); ++position)
            for (long channel = 0; channel < channels; channel += LANES) {
                const long at = position * channels + channel;
                const Vector map = load(maps + at);
                const Vector line = map * load(factor + channel) + load(shift + channel);
                const Vector arrived = choose(is_on(line), load(gradient + at), Vector{});
                store(of_gradient + channel, load(of_gradient + channel) + arrived);
                store(of_both + channel, add_product(load(of_both + channel), arrived, map));
            }
    }
}

// of_maps = map * slope + constant, and factor * gradient more where ReLU let the line through.
template <class T>
static void unnormalize(const T* gradient, const T* maps, T* of_maps, const float* factor,
                        const float* shift, const float* slope, const float* constant,
                        long positions, long channels, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long position = 0; position < positions; ++position)
        for (long channel = 0; channel < channels; channel += LANES) {
            const long at = position * channels + channel;
            const Vector map = load(maps + at), factors = load(factor + channel);
            const Vector line = map * factors + load(shift + channel);
            const Vector arrived = choose(is_on(line), load(gradient + at), Vector{});
            store(of_maps + at,
                  map * load(slope + channel) + load(constant + channel) + arrived * factors);
        }
}
#define NORM(T)                                                                                   \
    extern "C" void normalize_##T(const T* maps, T* to, const float* factor, const float* shift,  \
                                  long positions, long channels, int threads) {                   \
        normalize(maps, to, factor, shift, positions, channels, threads);                         \
    }                                                                                             \
    extern "C" void norm_sums_##T(const T* gradient, const T* maps, float* sums,                  \
                                  const float* factor, const float* shift, long positions,        \
                                  long channels, long size, int threads) {                        \
        norm_sums(gradient, maps, sums, factor, shift, positions, channels, size, threads);       \
    }                                                                                             \
    extern "C" void unnormalize_##T(const T* gradient, const T* maps, T* of_maps,                 \
                                    const float* factor, const float* shift, const float* slope,  \
                                    const float* constant, long positions, long channels,         \
                                    int threads) {                                                \
        unnormalize(gradient, maps, of_maps, factor, shift, slope, constant, positions, channels, \
                    threads);                                                                     \
    }
NORM(float)
NORM(BFloat16)

// Mean and sum of squared deviations of maps (positions, channels), by channel. Each block of `size`
// positions is added up as float, and what deviates from the block's own mean; blocks as double, in
// their order (Chan, Golub and LeVeque, 1983). `sums` (2, blocks, channels) is room for that.
template <class T>
static void statistics(const T* maps, float* sums, double* mean, double* squares, long positions,
                       long channels, long size, int threads) {
    const long blocks = (positions + size - 1) / size;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (long block = 0; block < blocks; ++block)
            for (long channel = 0; channel < channels; channel += LANES) {
                const long first = block * size, end = std::min(first + size, positions);
                Vector sum{}, around{};
                for (long each = first; each < end; ++each)
                    sum += load(maps + each * channels + channel);
                const Vector middle = sum / float(end - first);
                for (long each = first; each < end; ++each) {
                    const Vector apart = load(maps + each * channels + channel) - middle;
                    around = add_product(around, apart, apart);
                }
                store(sums + block * channels + channel, sum);
                store(sums + (blocks + block) * channels + channel, around);
            }
#pragma omp for schedule(static)
        for (long channel = 0; channel < channels; ++channel) {
            double sum = 0, around = 0;
            for (long block = 0; block < blocks; ++block) sum += sums[block * channels + channel];
            mean[channel] = sum / positions;
            for (long block = 0; block < blocks; ++block) {
                const long count = std::min(size, positions - block * size);
                const double apart = sums[block * channels + channel] / double(count) - mean[channel];
                around += sums[(blocks + block) * channels + channel] + count * (apart * apart);
            }
            squares[channel] = around;
        }
    }
}

#define STATISTICS(T)                                                                             \
    extern "C" void statistics_##T(const T* maps, float* sums, double* mean, double* squares,     \
                                   long positions, long channels, long size, int threads) {       \
        statistics(maps, sums, mean, squares, positions, channels, size, threads);                \
    }
STATISTICS(float)
STATISTICS(BFloat16)
