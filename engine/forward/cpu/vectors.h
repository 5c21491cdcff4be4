// Vectors as wide as the processor's registers, and how numbers are stored in memory.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__) || __ARM_FEATURE_SVE_BITS == 256
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

enum Kind { FLOAT32, BFLOAT16, FLOAT16, PAIRS, BYTES, NIBBLES, FLOAT8 };

inline long bytes(int kind) { return kind == FLOAT32 ? 4 : 2; }  // bytes of a number

template <class To>
To read(const void* from) {
  To value;
  memcpy(&value, from, sizeof value);
  return value;
}

struct Float32 {
  using Type = float;
  static Vector load(const Type* from) { return read<Vector>(from); }
  static Vector save(Vector value) { return value; }
};

struct Bfloat16 {
  using Type = uint16_t;
  static Vector load(const Type* from) { return (Vector)(words(from) << 16); }
#if defined(__AVX512F__)
  static Words words(const Type* from) { return (Words)_mm512_cvtepu16_epi32(read<__m256i>(from)); }
#elif defined(__AVX2__)
  static Words words(const Type* from) { return (Words)_mm256_cvtepu16_epi32(read<__m128i>(from)); }
#else
  static Words words(const Type* from) { return __builtin_convertvector(read<Halves>(from), Words); }
#endif
  static Halves save(Vector value) {  // rounds to the nearest, ties to even
    const Words bits = (Words)value, rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    return __builtin_convertvector((value != value ? Words{} + 0x7FC00000 : rounded) >> 16, Halves);
  }
};

struct Float16 {
  using Type = uint16_t;
#if defined(__AVX512F__)
  static Vector load(const Type* from) { return _mm512_cvtph_ps(read<__m256i>(from)); }
  static Halves save(Vector value) { return (Halves)_mm512_cvtps_ph(value, 0); }
#elif defined(__AVX2__)
  static Vector load(const Type* from) { return _mm256_cvtph_ps(read<__m128i>(from)); }
  static Halves save(Vector value) { return (Halves)_mm256_cvtps_ph(value, 0); }
#else
  typedef __fp16 Small __attribute__((vector_size(2 * LANES)));
  static Vector load(const Type* from) { return __builtin_convertvector(read<Small>(from), Vector); }
  static Halves save(Vector value) { return (Halves)__builtin_convertvector(value, Small); }
#endif
};

struct Int8 {
  using Type = int8_t;
#if defined(__AVX512F__)
  static Vector load(const Type* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(read<__m128i>(from)));
  }
#elif defined(__AVX2__)
  static Vector load(const Type* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
  }
#else
  static Vector load(const Type* from) {
    return __builtin_convertvector(__builtin_convertvector(read<Bytes>(from), Words), Vector);
  }
#endif
};

// The first `count` numbers of a vector, the rest zeros.
template <class Stored>
Vector load_some(const typename Stored::Type* from, long count) {
  if (count >= LANES) return Stored::load(from);
  typename Stored::Type some[LANES] = {};
  if (count == LANES / 2)
    memcpy(some, from, LANES / 2 * sizeof *some);
  else
    memcpy(some, from, count * sizeof *some);
  return Stored::load(some);
}

template <class Stored>
void save_some(typename Stored::Type* to, Vector value, long count) {
  const auto all = Stored::save(value);
  memcpy(to, &all, (count < LANES ? count : LANES) * sizeof *to);
}

template <class Stored>
void widen(const void* from, float* to, long count) {
  const auto* given = (const typename Stored::Type*)from;
  for (long i = 0; i < count; i += LANES)
    save_some<Float32>(to + i, load_some<Stored>(given + i, count - i), count - i);
}

template <class Stored>
void narrow(const float* from, void* to, long count) {
  auto* made = (typename Stored::Type*)to;
  for (long i = 0; i < count; i += LANES)
    save_some<Stored>(made + i, load_some<Float32>(from + i, count - i), count - i);
}

// e^x for x <= 0, to about an ulp; the result is 0 far below.
inline Vector exponential(Vector x) {
  const Vector least = Vector{} - 87.0f, magic = Vector{} + 12582912.0f;
  const auto tiny = x < least;
  x = tiny ? least : x;
  const Vector n = (x * 1.44269504f + magic) - magic;
  const Vector r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vector p = Vector{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Vector power = (Vector)((__builtin_convertvector(n, Words) + 127) << 23);
  return tiny ? Vector{} : p * power;
}

// tanh, with an error of about a millionth.
inline Vector bounded(Vector x) {
  const auto negative = x < 0;
  const Vector power = exponential((negative ? x : -x) * 2.0f);
  const Vector size = (1.0f - power) / (power + 1.0f);
  return negative ? -size : size;
}

using Lanes = std::make_integer_sequence<int, LANES>;

template <int... FROM>
// lanes by number; those of the second vector begin at LANES
Vector shuffled(Vector low, Vector high) {
#if defined(__clang__)
  return __builtin_shufflevector(low, high, FROM...);
#else
  return __builtin_shuffle(low, high, Words{FROM...});
#endif
}

// Exchanges lanes of two vectors: one vector gives the other its lanes whose number has the bit, for
// those without it.
template <int BIT, int... LANE>
void exchange(Vector& low, Vector& high, std::integer_sequence<int, LANE...>) {
  const Vector a = low, b = high;
  low = shuffled<(LANE & BIT ? (LANE ^ BIT) + LANES : LANE)...>(a, b);
  high = shuffled<(LANE & BIT ? LANE + LANES : LANE ^ BIT)...>(a, b);
}

template <int BY, int... LANE>
Vector exchanged(Vector from, std::integer_sequence<int, LANE...>) {
  return shuffled<(LANE ^ BY)...>(from, from);
}

template <int BY = LANES / 2, class Join>
float joined(Vector values, Join join) {  // sums all lanes by halving
  if constexpr (BY == 0)
    return values[0];
  else
    return joined<BY / 2>(join(values, exchanged<BY>(values, Lanes{})), join);
}

}  // namespace
