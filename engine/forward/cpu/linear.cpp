// Linear layers for few rows on a CPU: as fast as the weights can be read, and each row the same,
// bit for bit, whatever is multiplied with it and by however many threads. Many layers at once, each
// for some of the rows, are those of experts.
//
// Weights lie in panels of WIDTH outputs, inputs ascending; a panel is read once for all rows. An
// output of a row is one chain of multiply-adds over ascending inputs, in float32, so neither the
// number of rows nor who computes a panel can change its bits.
#include <algorithm>
#include <vector>

#include "groups.h"

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 12;  // rows at once: two sums for each fill the registers
#elif defined(__AVX2__)
constexpr int ROWS = 6;
#else
constexpr int ROWS = 8;
#endif
constexpr int WIDTH = 2 * LANES;
constexpr long CHUNK = 256;  // steps of a panel that all rows take before the next steps
constexpr int BESIDE = 2;  // panels that are read at once for one or two rows
constexpr long LEAST_GROUP = 16;  // inputs of a group; CHUNK is a multiple of every such number
constexpr long BLOCK = 480;  // rows whose sums are kept beside a panel, a multiple of all ROWS
constexpr long TILE = 64 / ROWS * ROWS;  // rows of a prompt, which stay in the cache for all panels

// One input per step, for every stored type of weights.
template <class Format>
struct Single : Format {
  using Input = float;
  static constexpr int PER = 1;
  static void add(Vector& sum, Input input, const Vector& weights) { sum += input * weights; }
};

#if defined(__AVX512BF16__)
struct Pairs {  // the processor's bfloat16 instruction takes two inputs at once
  using Type = uint16_t;
  using Input = uint32_t;
  static constexpr int PER = 2;
  static __m512i load(const Type* from) { return read<__m512i>(from); }
  static void add(Vector& sum, Input input, const __m512i& weights) {
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(int(input)), (__m512bh)weights);
  }
};
#endif

// Weights in their stored form, as `block` reads them.
template <class Stored>
struct PlainPanel {
  using Input = typename Stored::Input;
  static constexpr long STEP = WIDTH * Stored::PER * sizeof(typename Stored::Type);
  const typename Stored::Type* panel;

  long end(long, long to) const { return to; }
  int scope(long) const { return 0; }
  auto weights(long step, int) const {
    const auto* from = panel + step * WIDTH * Stored::PER;
    const auto low = Stored::load(from), high = Stored::load(from + LANES * Stored::PER);
    return Two<std::decay_t<decltype(low)>>{low, high};
  }
  template <class Weights>
  static void add(Vector& sum, Input input, const Weights& weights) {
    Stored::add(sum, input, weights);
  }
};

// Steps from..to of one or several panels for COUNT rows, one every `stride` inputs, added to their
// sums, [PANELS, COUNT, WIDTH]. For each step, the code also prefetches `ahead` bytes from `next` on.
// GCC must not inline this function: in a caller, GCC keeps the sums of five rows in memory, which
// takes twice as long.
template <class Panel, int COUNT, int PANELS = 1>
[[gnu::noinline]] void block(const Panel* panels, const typename Panel::Input* __restrict rows, long stride,
           float* __restrict sums, long from, long to, const char* next, long ahead) {
  Vector low[PANELS][COUNT], high[PANELS][COUNT];
#pragma GCC unroll 12
  for (int i = 0; i < PANELS * COUNT; i++) {
    low[i / COUNT][i % COUNT] = from ? read<Vector>(sums + i * WIDTH) : Vector{};
    high[i / COUNT][i % COUNT] = from ? read<Vector>(sums + i * WIDTH + LANES) : Vector{};
  }
  for (long k = from; k < to;) {
    decltype(panels->scope(k)) scope[PANELS];
    for (int p = 0; p < PANELS; p++) scope[p] = panels[p].scope(k);
    for (const long end = panels->end(k, to); k < end; k++) {
      __builtin_prefetch(next);
      if (ahead > 64) __builtin_prefetch(next + 64);
      next += ahead;
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) {
        const auto weights = panels[p].weights(k, scope[p]);
#pragma GCC unroll 12
        for (int i = 0; i < COUNT; i++) {
          const auto input = rows[i * stride + k];
          Panel::add(low[p][i], input, weights.low);
          Panel::add(high[p][i], input, weights.high);
        }
      }
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < PANELS * COUNT; i++) {
    *(Unaligned*)(sums + i * WIDTH) = low[i / COUNT][i % COUNT];
    *(Unaligned*)(sums + i * WIDTH + LANES) = high[i / COUNT][i % COUNT];
  }
}

struct Call {
  const void *rows, *weights;
  const Grouping* grouping;
  const float* bias;
  void* result;
  long count, steps, outputs, stride, first_panel;
  int result_kind;
};

// Blocks of rows, as many as fit into the registers, take steps from..to of a panel, one block after
// the other. Together the blocks prefetch the `size` bytes of the following step, or one block
// prefetches its own.
template <class Panel, int COUNT = ROWS>
void block_of(int count, const Panel& panel, const typename Panel::Input* rows, long stride,
              float* sums, long from, long to, const char* next, long ahead) {
  if constexpr (COUNT > 1)
    if (count < COUNT)
      return block_of<Panel, COUNT - 1>(count, panel, rows, stride, sums, from, to, next, ahead);
  block<Panel, COUNT>(&panel, rows, stride, sums, from, to, next, ahead);
}

struct Blocks {
  long count, each;
  explicit Blocks(long rows) : count((rows + ROWS - 1) / ROWS), each((rows + count - 1) / count) {}
};

template <class Panel>
void all_rows(const Call& call, const Panel& panel, float* sums, long from, long to,
              const char* codes, long size) {
  const Blocks blocks(call.count);
  const long ahead = size / blocks.count;
  const auto* rows = (const typename Panel::Input*)call.rows;
  for (long r = 0, b = 0; r < call.count; r += blocks.each, b++) {
    const char* next = codes + to * size + b * (to - from) * ahead;
    block_of(int(std::min(blocks.each, call.count - r)), panel, rows + r * call.steps, call.steps,
             sums + r * WIDTH, from, to, blocks.count == 1 ? codes + from * size + 2048 : next, ahead);
  }
}

template <class Stored>
struct Plain {  // the function that adds steps from..to of a panel to the sums of all rows
  static constexpr long STEP = PlainPanel<Stored>::STEP;
  static void add(const Call& call, const char* panel, long, float* sums, long from, long to) {
    all_rows(call, PlainPanel<Stored>{(const typename Stored::Type*)panel}, sums, from, to, panel,
             STEP);
  }
  static int at_once(const Call&) { return 1; }
  static void add_beside(const Call&, const char*, long, float*) {}
};

// For one block of rows, weights are converted in registers; for more rows, they are converted to
// memory once.
template <class Codes>
struct Grouped {
  static constexpr long STEP = Codes::STEP;
  using Panel = GroupedPanel<Codes>;

  static void add(const Call& call, const char* codes, long number, float* sums, long from, long to) {
    alignas(64) static thread_local float weights[CHUNK * WIDTH];
    const Panel panel = scaled(call, codes, number, from, to, 0);
    if (call.count <= ROWS) return all_rows(call, panel, sums, from, to, codes, STEP);
    for (long k = from; k < to;) {
      const auto scope = panel.scope(k);
      for (const long end = panel.end(k, to); k < end; k++) {
        const auto found = panel.weights(k, scope);
        __builtin_prefetch(codes + (k + CHUNK) * STEP);
        *(Vector*)(weights + (k - from) * WIDTH) = found.low;
        *(Vector*)(weights + (k - from) * WIDTH + LANES) = found.high;
      }
    }
    const PlainPanel<Single<Float32>> plain{weights - from * WIDTH};
    all_rows(call, plain, sums, from, to, (const char*)weights, 0);
  }

  // The sums of few rows are few chains, in which each addition waits for the previous one, so
  // several panels take turns.
  template <int COUNT, int PANELS>
  static void beside(const Call& call, const char* codes, long number, float* sums) {
    const long size = call.steps * STEP;
    for (long from = 0; from < call.steps; from += CHUNK) {
      const long to = std::min(call.steps, from + CHUNK);
      Panel panels[PANELS];
      for (int p = 0; p < PANELS; p++)
        panels[p] = scaled(call, codes + p * size, number + p, from, to, p);
      block<Panel, COUNT, PANELS>(panels, (const float*)call.rows, call.steps, sums, from, to, codes, 0);
    }
  }

  static Panel scaled(const Call& call, const char* codes, long number, long from, long to, int place) {
    alignas(64) static thread_local float scales[BESIDE][CHUNK / LEAST_GROUP * 2 * WIDTH];
    read_scales(*call.grouping, number, call.steps, from, to, scales[place]);
    return {(const uint8_t*)codes, scales[place], call.grouping->group, from};
  }

  static int at_once(const Call& call) { return call.count <= 2 ? BESIDE : 1; }
  static void add_beside(const Call& call, const char* codes, long number, float* sums) {
    if (call.count == 1) beside<1, BESIDE>(call, codes, number, sums);
    if (call.count == 2) beside<2, BESIDE>(call, codes, number, sums);
  }
};

template <class Format>
void finish(const Call& call, long panel, float* sums) {
  const long first = panel * WIDTH, some = std::min<long>(WIDTH, call.outputs - first);
  for (long r = 0; r < call.count; r++) {
    float* found = sums + r * WIDTH;
    for (long n = 0; call.bias && n < some; n++) found[n] += call.bias[first + n];
    const long place = r * call.stride + first;
    const int kind = call.result_kind;
    if (kind == FLOAT32) memcpy((float*)call.result + place, found, some * sizeof *found);
    if (kind == BFLOAT16) narrow<Bfloat16>(found, (uint16_t*)call.result + place, some);
    if (kind == FLOAT16) narrow<Float16>(found, (uint16_t*)call.result + place, some);
  }
}

template <class Format>
void panels(const Call& call, long from, long to) {
  alignas(64) static thread_local float sums[BLOCK * WIDTH];
  const int at_once = Format::at_once(call);
  for (long p = from; p < to;) {
    const char* panel = (const char*)call.weights + p * call.steps * Format::STEP;
    const int done = to - p < at_once ? 1 : at_once;
    if (done > 1) {
      Format::add_beside(call, panel, call.first_panel + p, sums);
    } else {
      for (long start = 0; start < call.steps; start += CHUNK)
        Format::add(call, panel, call.first_panel + p, sums, start,
                    std::min(call.steps, start + CHUNK));
    }
    for (int i = 0; i < done; i++) finish<Format>(call, p + i, sums + i * call.count * WIDTH);
    p += done;
  }
}

// One thread's share of the panels of all calls, which have as many each. To read a panel takes about
// as long as to multiply ROWS rows with it.
template <class Format>
void share(const std::vector<Call>& calls, long thread, long threads) {
  const long each = (calls[0].outputs + WIDTH - 1) / WIDTH;
  long all = 0, before = 0;
  for (const Call& call : calls) all += each * (ROWS + call.count);
  for (const Call& call : calls) {
    const long cost = ROWS + call.count;
    const auto panel = [&](long number) {  // the first panel that is not before a thread's share
      const long rest = all * number / threads - before;
      return std::clamp((rest + cost - 1) / cost, 0L, each);
    };
    panels<Format>(call, panel(thread), panel(thread + 1));
    before += each * cost;
  }
}

template <class Format>
void all_panels(const std::vector<Call>& calls, int threads) {
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    share<Format>(calls, omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  share<Format>(calls, 0, 1);
}

}  // namespace

extern "C" {

// The checksum of the sources that this was built from.
unsigned tandem_sources() { return SOURCES; }

// The number of outputs of a panel.
int tandem_width() { return WIDTH; }

// Whether rows of bfloat16 are multiplied two inputs at once.
int tandem_pairs() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

// result [count, outputs] = rows [count, inputs] x weights' + bias, for each of `layers` layers: the
// rows before ends[0] are for the first, those from there to ends[1] for the second. Weights are of
// `kind`, in panels [layers, ceil(outputs / width), inputs, width], [..., inputs / 2, width, 2] as
// PAIRS; of BYTES and FLOAT8 as [..., inputs, width] bytes, of NIBBLES as half as many, and
// `grouping` has their scales. `grouping` may be null otherwise, and so may bias, [layers, outputs]
// float32, and ends where there is one layer. Rows are of `row_kind`, and the result, whose rows are
// `stride` numbers apart, of `result_kind`.
void tandem_linear(const void* rows, long count, long inputs, const void* weights, long outputs,
                   long layers, const Grouping* grouping, const float* bias, const int64_t* ends,
                   void* result, long stride, int kind, int row_kind, int result_kind, int threads) {
  static thread_local std::vector<float> given;
  static thread_local std::vector<Call> calls;
  const long result_size = stride * bytes(result_kind), panels = (outputs + WIDTH - 1) / WIDTH;
  const long numbers = panels * WIDTH * inputs;
  const long layer_size = kind == NIBBLES ? numbers / 2 : grouping ? numbers : numbers * bytes(kind);
  const bool widened = row_kind != FLOAT32 && kind != PAIRS;
  const long row_size = inputs * (widened ? sizeof(float) : bytes(row_kind));
  const long most = grouping || layers > 1 || count < 2 * TILE ? BLOCK : TILE;
  for (long start = 0; start < count; start += most) {
    const long stop = std::min(count, start + most);
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
      const long steps = kind == PAIRS ? inputs / 2 : inputs;
      calls.push_back({from + (first - start) * row_size, (const char*)weights + layer * layer_size,
                       grouping, bias ? bias + layer * outputs : nullptr,
                       (char*)result + first * result_size, last - first, steps, outputs, stride,
                       layer * panels, result_kind});
    }
    if (calls.empty()) continue;
    if (kind == FLOAT32) all_panels<Plain<Single<Float32>>>(calls, threads);
    if (kind == BFLOAT16) all_panels<Plain<Single<Bfloat16>>>(calls, threads);
    if (kind == FLOAT16) all_panels<Plain<Single<Float16>>>(calls, threads);
    if (kind == BYTES) all_panels<Grouped<ByteCodes>>(calls, threads);
    if (kind == NIBBLES) all_panels<Grouped<NibbleCodes>>(calls, threads);
    if (kind == FLOAT8) all_panels<Grouped<Float8Codes>>(calls, threads);
#if defined(__AVX512BF16__)
    if (kind == PAIRS) all_panels<Plain<Pairs>>(calls, threads);
#endif
  }
}
}
