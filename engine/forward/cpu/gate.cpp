// The middle of a gated feed-forward layer on a CPU. Every number is computed by the same vector
// operations, wherever it lies, so bits depend neither on other rows nor on threads.
#include "gate.h"

namespace {

template <class Stored, int ACTIVATION>
void gate(const void* rows, long count, long size, void* result, int threads) {
  using Type = typename Stored::Type;
  const long blocks = (size + LANES - 1) / LANES;
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) if (threads > 1)
#endif
  for (long item = 0; item < count * blocks; item++) {
    const long row = item / blocks;
    gate_block<Stored, ACTIVATION>((const Type*)rows + row * 2 * size, size,
                                   (Type*)result + row * size, item % blocks * LANES);
  }
}

template <class Stored>
void gate(const void* rows, long count, long size, void* result, int activation, int threads) {
  if (activation == SILU) gate<Stored, SILU>(rows, count, size, result, threads);
  if (activation == GELU_TANH) gate<Stored, GELU_TANH>(rows, count, size, result, threads);
}

}  // namespace

extern "C" {

// result [count, size] = activation(rows [count, first half]) * rows [count, second half], each half
// `size` wide; rows and result are of `kind`, no integers.
void tandem_gate(const void* rows, long count, long size, void* result, int activation, int kind,
                 int threads) {
  if (kind == FLOAT32) gate<Float32>(rows, count, size, result, activation, threads);
  if (kind == BFLOAT16) gate<Bfloat16>(rows, count, size, result, activation, threads);
  if (kind == FLOAT16) gate<Float16>(rows, count, size, result, activation, threads);
}
}
