// Batch norm of maxima over windows of 2x2, and its gradient, each in one pass over the maps.
//
// pooling.py does the same sums in the same order with torch, so that both have the same bits; with
// a ReLU norm_relu.py is the caller.
// Maps are (samples, height, width, channels) in memory, both sides even; a place is 0 to 3, row by
// row within the window.

// The largest of a window's four `values`, or the smallest where `sign` is -1, and its place; of
// equal ones the first.
static inline Vector largest(const Vector* values, Vector sign, Words& place) {
    Vector best = values[0] * sign;
    place = Words{};
#pragma GCC unroll 3
    for (int each = 1; each < 4; ++each) {
        const Vector value = values[each] * sign;
        const Words is_larger = reinterpret_cast<Words>((value > best) | (value != value));
        best = choose(is_larger, value, best);
        place = (place & ~is_larger) | (std::uint32_t(each) & is_larger);
    }
    return best * sign;
}

constexpr std::uint32_t NOWHERE = 4;  // the place of a maximum that ReLU makes zero

// maxima = the largest of each window; pooled = maxima * factor + shift, where that is positive if
// there is a RELU. `sign`, `factor` and `shift` are by channel.
template <bool RELU, class T>
static void pool(const T* maps, T* maxima, T* pooled, std::uint8_t* places, const float* sign,
                 const float* factor, const float* shift, long samples, long channels, long height,
                 long width, int threads) {
    const long across = width / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < samples * height / 2; ++row)
        for (long column = 0; column < across; ++column) {
            const T* window = maps + (2 * row * width + 2 * column) * channels;
            const long at = (row * across + column) * channels;
            for (long channel = 0; channel < channels; channel += LANES) {
                Vector values[4];
                for (int each = 0; each < 4; ++each)
                    values[each] =
                        load(window + (each / 2 * width + each % 2) * channels + channel);
                Words place;
                const Vector best = largest(values, load(sign + channel), place);
                store(maxima + at + channel, best);
                const Vector line = best * load(factor + channel) + load(shift + channel);
                const Words lets_through = RELU ? is_on(line) : ~Words{};
                store(pooled + at + channel, choose(lets_through, line, Vector{}));
                store(places + at + channel, choose(lets_through, place, NOWHERE - Words{}));
            }
        }
}

// of_maps = maps * slope + shift, and where the maxima were, + factor * gradient.
template <class T>
static void unpool(const T* maps, const T* gradient, const std::uint8_t* places, T* of_maps,
                   const float* slope, const float* shift, const float* factor, long samples,
                   long channels, long height, long width, int threads) {
    const long across = width / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long row = 0; row < samples * height / 2; ++row)
        for (long column = 0; column < across; ++column) {
            const long start = (2 * row * width + 2 * column) * channels;
            const long at = (row * across + column) * channels;
            for (long channel = 0; channel < channels; channel += LANES) {
                const Words place = load(places + at + channel);
                const Vector arrived = load(gradient + at + channel) * load(factor + channel);
                for (int each = 0; each < 4; ++each) {
                    const long offset = start + (each / 2 * width + each % 2) * channels + channel;
                    const Words is_here = reinterpret_cast<Words>(place == std::uint32_t(each));
                    store(of_maps + offset, load(maps + offset) * load(slope + channel) +
                          load(shift + channel) + choose(is_here, arrived, Vector{}));
                }
            }
        }
}

#define POOL(NAME, RELU, T)                                                                       \
    extern "C" void NAME##_##T(const T* maps, T* maxima, T* pooled, std::uint8_t* places,         \
                               const float* sign, const float* factor, const float* shift,        \
                               long samples, long channels, long height, long width,              \
                               int threads) {                                                     \
        pool<RELU>(maps, maxima, pooled, places, sign, factor, shift, samples, channels, height,  \
                   width, threads);                                                               \
    }
#define POOLING(T)                                                                                \
    POOL(pool, false, T)                                                                          \
    POOL(pool_relu, true, T)                                                                      \
    extern "C" void unpool_##T(const T* maps, const T* gradient, const std::uint8_t* places,      \
                               T* of_maps, const float* slope, const float* shift,                \
                               const float* factor, long samples, long channels, long height,     \
                               long width, int threads) {                                         \
        unpool(maps, gradient, places, of_maps, slope, shift, factor, samples, channels, height,  \
               width, threads);                                                                   \
    }
POOLING(float)
POOLING(BFloat16)
