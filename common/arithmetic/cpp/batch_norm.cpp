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
