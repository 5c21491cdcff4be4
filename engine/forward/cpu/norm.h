// The root mean square norm of a row (Zhang & Sennrich 2019). The squares of the row are summed lane
// by lane in one order, so its bits depend on nothing but the row itself. The code is compiled once
// for all callers, and never inlined into them, because a compiler may contract other products and
// sums there.
#pragma once
#include <cmath>

#include "vectors.h"

namespace {

template <class Stored>
__attribute__((noinline)) void normalise_row(const typename Stored::Type* row,
                                             typename Stored::Type* made, long size,
                                             const float* weights, float epsilon) {
  Vector squares{};
  for (long i = 0; i < size; i += LANES) {
    const Vector some = load_some<Stored>(row + i, size - i);
    squares += some * some;
  }
  const float sum = joined(squares, [](Vector a, Vector b) { return a + b; });
  const float scale = 1.0f / std::sqrt(sum / float(size) + epsilon);
  for (long i = 0; i < size; i += LANES) {
    const long rest = size - i;
    const Vector weight = load_some<Float32>(weights + i, rest);
    save_some<Stored>(made + i, load_some<Stored>(row + i, rest) * scale * weight, rest);
  }
}

}  // namespace
