// Batch norm of maxima over windows of 2x2, and its gradient, each in one pass over the maps.
//
// pooling.py does the same sums in the same order with torch, so that both have the same bits.
// Maps are (samples, height, width, channels) in memory, both sides even; a place is 0 to 3, row by
// row within the window.

using Bytes = std::uint8_t __attribute__((vector_size(LANES)));

static inline Vector choose(Words mask, Vector one, Vector other) {
    Words chosen = (reinterpret_cast<Words&>(one) & mask) | (reinterpret_cast<Words&>(other) & ~mask);
    return reinterpret_cast<Vector&>(chosen);
}

// maxima = the largest of each window, or the smallest where `sign` is -1; the first of equal ones;
// pooled = maxima * factor + shift. `sign`, `factor` and `shift` are by channel.
template <class T>
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
                const Vector signs = load(sign + channel);
                Vector best = load(window + channel) * signs;
                Words place{};
                for (int each = 1; each < 4; ++each) {
                    const long offset = (each / 2 * width + each % 2) * channels + channel;
                    const Vector value = load(window + offset) * signs;
                    const Words is_larger = reinterpret_cast<Words>((value > best) | (value != value));
                    best = choose(is_larger, value, best);
                    place = (place & ~is_larger) | (std::uint32_t(each) & is_larger);
                }
                best = best * signs;
                store(maxima + at + channel, best);
                store(pooled + at + channel, best * load(factor + channel) + load(shift + channel));
                const Bytes bytes = __builtin_convertvector(place, Bytes);
                std::memcpy(places + at + channel, &bytes, sizeof bytes);
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
                Bytes bytes;
                std::memcpy(&bytes, places + at + channel, sizeof bytes);
                const Words place = __builtin_convertvector(bytes, Words);
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

#define POOLING(T)                                                                                \
    extern "C" void pool_##T(const T* maps, T* maxima, T* pooled, std::uint8_t* places,           \
                             const float* sign, const float* factor, const float* shift,          \
                             long samples, long channels, long height, long width, int threads) { \
        pool(maps, maxima, pooled, places, sign, factor, shift, samples, channels, height, width, \
             threads);                                                                            \
    }                                                                                             \
    extern "C" void unpool_##T(const T* maps, const T* gradient, const std::uint8_t* places,      \
                               T* of_maps, const float* slope, const float* shift,                \
                               const float* factor, long samples, long channels, long height,     \
                               long width, int threads) {                                         \
        unpool(maps, gradient, places, of_maps, slope, shift, factor, samples, channels, height,  \
               width, threads);                                                                   \
    }
POOLING(float)
POOLING(BFloat16)
