// Weights in codes of 8 or 4 bits: every `group` inputs of an output share a scale and a minimum, and
// a weight is code * scale + minimum, rounded once. A weight is not rounded otherwise, so a product
// is that of the weights as they would be in float32.
#pragma once
#include "vectors.h"

namespace {

template <class Weights>
struct Two {  // the outputs of a panel, in two vectors
  Weights low, high;
};

// Scales and minima lie as [panels, groups, 1 or 2, WIDTH], and so do the supers, float16, which
// multiply those of all groups within `span` inputs. Without minima the minimum is -zero * scale.
struct Grouping {
  const void* scales;
  const uint16_t* supers;  // null where there are no supers
  int64_t group, span;
  int32_t kind;  // type of the scales: FLOAT32, FLOAT16 or BYTES
  int32_t parts;
  float zero;
};

inline Words unsigned_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  return (Words)_mm512_cvtepu8_epi32(read<__m128i>(from));
#elif defined(__AVX2__)
  return (Words)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  typedef uint8_t Small __attribute__((vector_size(LANES)));
  return __builtin_convertvector(read<Small>(from), Words);
#endif
}

struct ByteCodes {  // signed integers
  static constexpr long STEP = 2 * LANES;  // bytes that one input takes
  static Two<Vector> load(const uint8_t* from) {
    const auto* codes = (const int8_t*)from;
    return {Int8::load(codes), Int8::load(codes + LANES)};
  }
};

struct NibbleCodes {  // the first outputs are in the low four bits, the others in the high ones
  static constexpr long STEP = LANES;
  static Two<Vector> load(const uint8_t* from) {
    const Words both = unsigned_bytes(from);
    return {__builtin_convertvector(both & 15, Vector), __builtin_convertvector(both >> 4, Vector)};
  }
};

struct Float8Codes {  // e4m3: the bits are those of a float32, except for a power of two
  static constexpr long STEP = 2 * LANES;
  static Vector number(Words bits) {
    return (Vector)((bits & 128) << 24 | (bits & 127) << 20) * 0x1p120f;
  }
  static Two<Vector> load(const uint8_t* from) {
    return {number(unsigned_bytes(from)), number(unsigned_bytes(from + LANES))};
  }
};

inline Vector scale_at(const void* scales, long place, int kind) {
  if (kind == BYTES) return Int8::load((const int8_t*)scales + place);
  if (kind == FLOAT16) return Float16::load((const uint16_t*)scales + place);
  return Float32::load((const float*)scales + place);
}

// The scales and minima of the groups of inputs from..to of a panel, [groups, 2, WIDTH].
inline void read_scales(const Grouping& grouping, long panel, long inputs, long from, long to,
                        float* found) {
  const long width = 2 * LANES, groups = inputs / grouping.group;
  for (long group = from / grouping.group; group * grouping.group < to; group++) {
    for (long half = 0; half < width; half += LANES) {
      Vector read[2] = {};
      for (long part = 0; part < grouping.parts; part++) {
        const long place = ((panel * groups + group) * grouping.parts + part) * width + half;
        read[part] = scale_at(grouping.scales, place, grouping.kind);
        if (grouping.supers) {
          const long super = panel * (inputs / grouping.span) + group * grouping.group / grouping.span;
          const long above = (super * grouping.parts + part) * width + half;
          read[part] *= Float16::load(grouping.supers + above);
        }
      }
      if (grouping.parts == 1) read[1] = read[0] * -grouping.zero;
      *(Unaligned*)(found + half) = read[0];
      *(Unaligned*)(found + width + half) = read[1];
    }
    found += 2 * width;
  }
}

// The weights of a panel, as `block` reads them: scales that were read from input `start` on.
template <class Codes>
struct GroupedPanel {
  using Input = float;
  struct Scope {
    Two<Vector> scale, minimum;
  };
  const uint8_t* codes;
  const float* scales;
  long group, start;

  long end(long step, long to) const {
    const long next = (step / group + 1) * group;
    return next < to ? next : to;
  }
  Scope scope(long step) const {
    const float* at = scales + (step - start) / group * 4 * LANES;
    return {{read<Vector>(at), read<Vector>(at + LANES)},
            {read<Vector>(at + 2 * LANES), read<Vector>(at + 3 * LANES)}};
  }
  Two<Vector> weights(long step, const Scope& scope) const {
    const auto code = Codes::load(codes + step * Codes::STEP);
    return {code.low * scope.scale.low + scope.minimum.low,
            code.high * scope.scale.high + scope.minimum.high};
  }
  static void add(Vector& sum, float input, const Vector& weights) { sum += input * weights; }
};

}  // namespace
