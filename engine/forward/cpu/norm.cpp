// Root mean square norms of rows on a CPU.
#include "norm.h"

namespace {

template <class Stored>
void normalise(const void* rows, long count, long size, const float* weight, float epsilon,
               void* result, int threads) {
  using Type = typename Stored::Type;
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) if (threads > 1)
#endif
  for (long r = 0; r < count; r++)
    normalise_row<Stored>((const Type*)rows + r * size, (Type*)result + r * size, size, weight,
                          epsilon);
}

}  // namespace

extern "C" {

// result [count, size] = rows [count, size] / sqrt(mean of squares + epsilon) * weight [size]; rows
// and result are of `kind`, no integers, the weight float32.
void tandem_norm(const void* rows, long count, long size, const float* weight, float epsilon,
                 void* result, int kind, int threads) {
  if (kind == FLOAT32) normalise<Float32>(rows, count, size, weight, epsilon, result, threads);
  if (kind == BFLOAT16) normalise<Bfloat16>(rows, count, size, weight, epsilon, result, threads);
  if (kind == FLOAT16) normalise<Float16>(rows, count, size, weight, epsilon, result, threads);
}
}
