// Linear layers for few rows on a CPU: as fast as the weights can be read, and each row the same,
// bit for bit, whatever is multiplied with it and by however many threads. Many layers at once, each
// for some of the rows, are those of experts.
//
// Weights lie in panels of WIDTH outputs, inputs ascending; a panel is read once for all rows. An
// output of a row is one chain of multiply-adds over ascending inputs, in float32, so neither the
// number of rows nor who computes a panel can change its bits.
#include <algorithm>
#include <vector>

#include "vectors.h"

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 12;  // at once: two sums for each fill the registers
#elif defined(__AVX2__)
constexpr int ROWS = 6;
#else
constexpr int ROWS = 8;
#endif
constexpr int WIDTH = 2 * LANES;
constexpr long CHUNK = 256;  // steps of a panel that all rows take before the next
constexpr long BLOCK = 480;  // rows whose sums are kept beside a panel, a multiple of all ROWS

// One input in a step, whatever weights are stored as.
template <class Format>
struct Single : Format {
  using Input = float;
  static constexpr int PER = 1;
  static void add(Vector& sum, Input input, const Vector& weights) { sum += input * weights; }
};

#if defined(__AVX512BF16__)
struct Pairs {  // bfloat16 by the processor's own instruction, two inputs at once
  using Type = uint16_t;
  using Input = uint32_t;
  static constexpr int PER = 2;
  static __m512i load(const Type* from) { return read<__m512i>(from); }
  static void add(Vector& sum, Input input, const __m512i& weights) {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(int(input)), (__m512bh)weights);
  }
};
#endif

// Steps from..to of a panel for COUNT rows, one every `stride` inputs, added to their sums. Meanwhile
// `ahead` bytes from `next` on are fetched for each step.
template <class Stored, int COUNT>
void block(const typename Stored::Input* __restrict rows, long stride,
           const typename Stored::Type* panel, float* __restrict sums, long from, long to,
           const char* next, long ahead) {
  Vector low[COUNT], high[COUNT];
#pragma GCC unroll 12
  for (int i = 0; i < COUNT; i++) {
    low[i] = from ? read<Vector>(sums + i * WIDTH) : Vector{};
    high[i] = from ? read<Vector>(sums + i * WIDTH + LANES) : Vector{};
  }
  for (long k = from; k < to; k++) {
    const auto* weights = panel + k * WIDTH * Stored::PER;
    const auto first = Stored::load(weights), second = Stored::load(weights + LANES * Stored::PER);
    __builtin_prefetch(next);
    if (ahead > 64) __builtin_prefetch(next + 64);
    next += ahead;
#pragma GCC unroll 12
    for (int i = 0; i < COUNT; i++) {
      const auto input = rows[i * stride + k];
      Stored::add(low[i], input, first);
      Stored::add(high[i], input, second);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < COUNT; i++) {
    *(Unaligned*)(sums + i * WIDTH) = low[i];
    *(Unaligned*)(sums + i * WIDTH + LANES) = high[i];
  }
}

template <class Stored, int COUNT = ROWS, class... Given>
void block_of(int count, Given... given) {
  if constexpr (COUNT > 1)
    if (count < COUNT) return block_of<Stored, COUNT - 1>(count, given...);
  block<Stored, COUNT>(given...);
}

struct Call {
  const void *rows, *weights;
  const float *scales, *bias;
  void* result;
  long count, steps, outputs;
  int result_kind;
};

template <class Stored>
void panels(const Call& call, long from, long to) {
  using Type = typename Stored::Type;
  alignas(64) static thread_local float sums[BLOCK * WIDTH];
  const auto* rows = (const typename Stored::Input*)call.rows;
  const long blocks = (call.count + ROWS - 1) / ROWS, each = (call.count + blocks - 1) / blocks;
  constexpr long SIZE = WIDTH * Stored::PER * sizeof(Type);  // of a step, in bytes
  for (long p = from; p < to; p++) {
    const Type* panel = (const Type*)call.weights + p * call.steps * WIDTH * Stored::PER;
    for (long start = 0; start < call.steps; start += CHUNK) {
      const long end = std::min(call.steps, start + CHUNK), ahead = SIZE / blocks;
      const char *here = (const char*)panel + start * SIZE, *after = (const char*)panel + end * SIZE;
      for (long r = 0, b = 0; r < call.count; r += each, b++)  // together they fetch the next chunk
        block_of<Stored>(int(std::min(each, call.count - r)), rows + r * call.steps, call.steps,
                         panel, sums + r * WIDTH, start, end,
                         blocks == 1 ? here + 2048 : after + b * (end - start) * ahead, ahead);
    }
    const long first = p * WIDTH, some = std::min<long>(WIDTH, call.outputs - first);
    for (long r = 0; r < call.count; r++) {
      float* found = sums + r * WIDTH;
      for (long n = 0; n < some; n++) {
        const float sum = found[n] * (call.scales ? call.scales[first + n] : 1.0f);
        found[n] = sum + (call.bias ? call.bias[first + n] : 0.0f);
      }
      const long place = r * call.outputs + first;
      const int kind = call.result_kind;
      if (kind == FLOAT32) memcpy((float*)call.result + place, found, some * sizeof *found);
      if (kind == BFLOAT16) narrow<Bfloat16>(found, (uint16_t*)call.result + place, some);
      if (kind == FLOAT16) narrow<Float16>(found, (uint16_t*)call.result + place, some);
    }
  }
}

// One thread's share of the panels of all calls, which have as many each. To read a panel takes about
// as long as to multiply ROWS rows with it.
template <class Stored>
void share(const std::vector<Call>& calls, long thread, long threads) {
  const long each = (calls[0].outputs + WIDTH - 1) / WIDTH;
  long all = 0, before = 0;
  for (const Call& call : calls) all += each * (ROWS + call.count);
  for (const Call& call : calls) {
    const long cost = ROWS + call.count;
    const auto panel = [&](long number) {  // the first one that is not before a thread's share
      const long rest = all * number / threads - before;
      return std::clamp((rest + cost - 1) / cost, 0L, each);
    };
    panels<Stored>(call, panel(thread), panel(thread + 1));
    before += each * cost;
  }
}

template <class Stored>
void all_panels(const std::vector<Call>& calls, int threads) {
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    share<Stored>(calls, omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  share<Stored>(calls, 0, 1);
}

}  // namespace

extern "C" {

// Of which sources this was built.
unsigned tandem_sources() { return SOURCES; }

// Outputs of a panel.
int tandem_width() { return WIDTH; }

// Whether rows of bfloat16 are multiplied two inputs at once.
int tandem_pairs() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

// result [count, outputs] = rows [count, inputs] x weights' * scales + bias, for each of `layers`
// layers: the rows before ends[0] are for the first, those from there to ends[1] for the second.
// Weights are of `kind`, in panels [layers, ceil(outputs / width), inputs, width], or [..., inputs / 2,
// width, 2] as PAIRS. Scales and bias, [layers, outputs] float32, may be null, and so may ends where
// there is one layer. Rows are of `row_kind`, and the result of `result_kind`, no integers.
void tandem_linear(const void* rows, long count, long inputs, const void* weights, long outputs,
                   long layers, const float* scales, const float* bias, const int64_t* ends,
                   void* result, int kind, int row_kind, int result_kind, int threads) {
  static thread_local std::vector<float> given;
  static thread_local std::vector<Call> calls;
  const long result_size = outputs * bytes(result_kind);
  const long layer_size = (outputs + WIDTH - 1) / WIDTH * WIDTH * inputs * bytes(kind);
  const bool widened = row_kind != FLOAT32 && kind != PAIRS;
  const long row_size = inputs * (widened ? sizeof(float) : bytes(row_kind));
  for (long start = 0; start < count; start += BLOCK) {
    const long stop = std::min(count, start + BLOCK);
    const char* from = (const char*)rows + start * inputs * bytes(row_kind);
    if (widened) {
      given.resize((stop - start) * inputs);
      if (row_kind == BFLOAT16) widen<Bfloat16>(from, given.data(), (stop - start) * inputs);
      if (row_kind == FLOAT16) widen<Float16>(from, given.data(), (stop - start) * inputs);
      from = (const char*)given.data();
    }
    calls.clear();
    for (long layer = 0; layer < layers; layer++) {
      const long first = std::max(start, layer ? long(ends[layer - 1]) : 0L);
      const long last = std::min(stop, ends ? long(ends[layer]) : count);
      if (first >= last) continue;
      const long skipped = layer * outputs, steps = kind == PAIRS ? inputs / 2 : inputs;
      calls.push_back({from + (first - start) * row_size, (const char*)weights + layer * layer_size,
                       scales ? scales + skipped : nullptr, bias ? bias + skipped : nullptr,
                       (char*)result + first * result_size, last - first, steps, outputs,
                       result_kind});
    }
    if (calls.empty()) continue;
    if (kind == FLOAT32) all_panels<Single<Float32>>(calls, threads);
    if (kind == BFLOAT16) all_panels<Single<Bfloat16>>(calls, threads);
    if (kind == FLOAT16) all_panels<Single<Float16>>(calls, threads);
    if (kind == INT8) all_panels<Single<Int8>>(calls, threads);
#if defined(__AVX512BF16__)
    if (kind == PAIRS) all_panels<Pairs>(calls, threads);
#endif
  }
}
}
