// The middle of a gated feed-forward layer (Shazeer 2020), a vector at a time: an activation of the
// first half of a row times the second half. The code of this file is never inlined into a caller;
// norm.h says why.
#pragma once
#include "vectors.h"

namespace {

enum Activation { SILU, GELU_TANH };

inline Vector sigmoid(Vector x) {
  const auto negative = x < 0;
  const Vector power = exponential(negative ? x : -x);
  return (negative ? power : Vector{} + 1.0f) / (power + 1.0f);
}

// Computes up to LANES numbers of a row of `size` numbers, from `start` on.
template <class Stored, int ACTIVATION>
__attribute__((noinline)) void gate_block(const typename Stored::Type* row, long size,
                                          typename Stored::Type* made, long start) {
  const long rest = size - start;
  const Vector x = load_some<Stored>(row + start, rest);
  const Vector up = load_some<Stored>(row + size + start, rest);
  Vector slope = x;
  if (ACTIVATION == GELU_TANH)  // (1 + tanh y) / 2 is the sigmoid of 2 y
    slope = (x * x * x * 0.044715f + x) * 1.5957691216f;
  save_some<Stored>(made + start, x * sigmoid(slope) * up, rest);
}

}  // namespace
