// Root mean square normalisation (Zhang & Sennrich 2019) of rows on a CPU. A row's squares are
// summed lane by lane in one order, so its bits depend on nothing but itself.
#include <cmath>

#include "vectors.h"

namespace {

struct Call {
  const void* rows;
  void* result;
  long count, size;
  const float* weight;
  float epsilon;
};

template <class Stored>
void normalise(const Call& call, int threads) {
  using Type = typename Stored::Type;
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) if (threads > 1)
#endif
  for (long r = 0; r < call.count; r++) {
    const Type* row = (const Type*)call.rows + r * call.size;
    Type* made = (Type*)call.result + r * call.size;
    Vector squares{};
    for (long i = 0; i < call.size; i += LANES) {
      const Vector some = load_some<Stored>(row + i, call.size - i);
      squares += some * some;
    }
    const float sum = joined(squares, [](Vector a, Vector b) { return a + b; });
    const float scale = 1.0f / std::sqrt(sum / float(call.size) + call.epsilon);
    for (long i = 0; i < call.size; i += LANES) {
      const long rest = call.size - i;
      const Vector weight = load_some<Float32>(call.weight + i, rest);
      save_some<Stored>(made + i, load_some<Stored>(row + i, rest) * scale * weight, rest);
    }
  }
}

}  // namespace

extern "C" {

// result [count, size] = rows [count, size] / sqrt(mean of squares + epsilon) * weight [size]; rows
// and result are of `kind`, no integers, the weight float32.
void tandem_norm(const void* rows, long count, long size, const float* weight, float epsilon,
                 void* result, int kind, int threads) {
  const Call call{rows, result, count, size, weight, epsilon};
  if (kind == FLOAT32) normalise<Float32>(call, threads);
  if (kind == BFLOAT16) normalise<Bfloat16>(call, threads);
  if (kind == FLOAT16) normalise<Float16>(call, threads);
}
}
