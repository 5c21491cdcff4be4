// Attention of rows of many sessions on a CPU, each to its own path through a tree behind a text, in
// one call. Softmax runs online in blocks of LANES positions, in the order of positions: what a row
// gets depends on its path alone, not on other rows, on where its keys lie, or on threads.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

// e^x for x <= 0, to about an ulp; 0 far below.
Vector exponential(Vector x) {
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

// In lane i of the result: the sum of two lanes of a where i has not the bit, of b where it has.
template <int BIT, int... LANE>
Vector folded(Vector a, Vector b, std::integer_sequence<int, LANE...>) {
  const Words own{(LANE & BIT ? LANE + LANES : LANE)...};
  const Words other{(LANE & BIT ? (LANE ^ BIT) + LANES : LANE ^ BIT)...};
  return __builtin_shuffle(a, b, own) + __builtin_shuffle(a, b, other);
}

// In lane i of the result: the sum of vector i; there are LANES of them.
template <int COUNT = LANES>
Vector sums_of(Vector* vectors) {
  if constexpr (COUNT == 1) {
    return vectors[0];
  } else {
    for (int i = 0; i < COUNT / 2; i++)
      vectors[i] = folded<LANES / COUNT>(vectors[2 * i], vectors[2 * i + 1],
                                         std::make_integer_sequence<int, LANES>{});
    return sums_of<COUNT / 2>(vectors);
  }
}

float largest(Vector values) {
  float most = values[0];
  for (int i = 1; i < LANES; i++) most = values[i] > most ? values[i] : most;
  return most;
}

float total(Vector values) {
  float sum = 0.0f;
  for (int i = 0; i < LANES; i++) sum += values[i];
  return sum;
}

struct Call {
  const void *query, *keys, *values;
  void* result;
  long rows, heads, shared, size, value_size;  // `shared` heads have keys of their own
  const int64_t *starts, *prefixes, *tails, *places;
  long window;
  float scale, cap;
  const float* sinks;
};

// What a row and a head have seen so far; its vectors lie elsewhere.
struct Sight {
  float most, sum;
  Vector *query, *mixed;
};

template <class Stored>
struct Attention {
  using Type = typename Stored::Type;
  const Call& call;
  const long key_vectors = (call.size + LANES - 1) / LANES;
  const long value_vectors = (call.value_size + LANES - 1) / LANES;

  long seen(long row) const {
    return call.prefixes[row] + call.tails[row + 1] - call.tails[row];
  }

  long first(long row) const {
    return call.window > 0 ? std::max<long>(0, seen(row) - call.window) : 0;
  }

  long place(long row, long position) const {
    const long behind = position - call.prefixes[row];
    return behind < 0 ? call.starts[row] + position : call.places[call.tails[row] + behind];
  }

  void begin(Sight& sight, long row, long head) const {
    sight.most = -INFINITY, sight.sum = 0.0f;
    const Type* query = (const Type*)call.query + (row * call.heads + head) * call.size;
    for (long v = 0; v < key_vectors; v++)
      sight.query[v] = load_some<Stored>(query + v * LANES, call.size - v * LANES) * call.scale;
    for (long v = 0; v < value_vectors; v++) sight.mixed[v] = Vector{};
  }

  // One block of positions for one row and head; `at` are places of its keys, `low` to `high` of
  // them are seen.
  void look(Sight& sight, const long* at, int low, int high, long group) const {
    Vector scores[LANES];
    for (int i = 0; i < LANES; i++) {
      scores[i] = Vector{};
      if (i < low || i >= high) continue;
      const Type* key = (const Type*)call.keys + (at[i] * call.shared + group) * call.size;
      for (long v = 0; v < key_vectors; v++)
        scores[i] += sight.query[v] * load_some<Stored>(key + v * LANES, call.size - v * LANES);
    }
    Vector score = sums_of(scores);
    if (call.cap > 0)
      for (int i = low; i < high; i++) score[i] = std::tanh(score[i] / call.cap) * call.cap;
    for (int i = 0; i < LANES; i++)
      if (i < low || i >= high) score[i] = -INFINITY;
    const float most = std::max(sight.most, largest(score));
    const float before = exponential(Vector{} + (sight.most - most))[0];
    const Vector weights = exponential(score - most);
    sight.most = most;
    sight.sum = sight.sum * before + total(weights);
    for (long v = 0; v < value_vectors; v++) {
      Vector mixed = sight.mixed[v] * before;
      for (int i = low; i < high; i++) {
        const Type* value = (const Type*)call.values + (at[i] * call.shared + group) * call.value_size;
        mixed += weights[i] * load_some<Stored>(value + v * LANES, call.value_size - v * LANES);
      }
      sight.mixed[v] = mixed;
    }
  }

  void end(const Sight& sight, long row, long head) const {
    float sum = sight.sum, share = 1.0f;
    if (call.sinks) {  // a score that takes weight and gives nothing
      const float most = std::max(sight.most, call.sinks[head]);
      share = std::exp(sight.most - most);
      sum = sum * share + std::exp(call.sinks[head] - most);
    }
    Type* result = (Type*)call.result + (row * call.heads + head) * call.value_size;
    for (long v = 0; v < value_vectors; v++)
      save_some<Stored>(result + v * LANES, sight.mixed[v] * (share / sum),
                        call.value_size - v * LANES);
  }

  // Rows from..to, of one session, for the heads that share keys: block by block, so that a block is
  // read once.
  void run(long from, long to, long group) const {
    static thread_local std::vector<Sight> sights;
    static thread_local std::vector<Vector> vectors;
    const long repeat = call.heads / call.shared, each = key_vectors + value_vectors;
    sights.resize((to - from) * repeat), vectors.resize((to - from) * repeat * each);
    long begin_at = seen(from), end_at = 0;
    for (long row = from; row < to; row++) {
      begin_at = std::min(begin_at, first(row)), end_at = std::max(end_at, seen(row));
      for (long h = 0; h < repeat; h++) {
        const long number = (row - from) * repeat + h;
        sights[number].query = vectors.data() + number * each;
        sights[number].mixed = sights[number].query + key_vectors;
        begin(sights[number], row, group * repeat + h);
      }
    }
    for (long block = begin_at / LANES * LANES; block < end_at; block += LANES)
      for (long row = from; row < to; row++) {
        const long low = std::max<long>(0, first(row) - block);
        const long high = std::min<long>(LANES, seen(row) - block);
        if (low >= high) continue;
        long at[LANES];
        for (long i = low; i < high; i++) at[i] = place(row, block + i);
        for (long h = 0; h < repeat; h++)
          look(sights[(row - from) * repeat + h], at, int(low), int(high), group);
      }
    for (long row = from; row < to; row++)
      for (long h = 0; h < repeat; h++)
        end(sights[(row - from) * repeat + h], row, group * repeat + h);
  }
};

constexpr long TOGETHER = 16;  // rows of a session that share what is read

template <class Stored>
void attend(const Call& call, int threads) {
  std::vector<long> runs{0};
  for (long row = 1; row <= call.rows; row++)
    if (row == call.rows || call.starts[row] != call.starts[row - 1] ||
        row - runs.back() == TOGETHER)
      runs.push_back(row);
  const long tasks = (long(runs.size()) - 1) * call.shared;
  const Attention<Stored> attention{call};
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
#endif
  for (long task = 0; task < tasks; task++) {
    const long run = task / call.shared;
    attention.run(runs[run], runs[run + 1], task % call.shared);
  }
}

}  // namespace

extern "C" {

// result [rows, heads, value size] of query [rows, heads, size] on keys [places, shared, size] and
// values [places, shared, value size], all of `kind`. Row r sees the keys at starts[r] + 0 ..
// prefixes[r] - 1, then those at places[tails[r]] .. places[tails[r + 1] - 1], in this order; of
// these the last `window` only, if it is above 0. Scores are capped at `cap`, if above 0; `sinks`
// [heads], float32, may be null.
void tandem_attend(const void* query, const void* keys, const void* values, void* result, long rows,
                   long heads, long shared, long size, long value_size, const int64_t* starts,
                   const int64_t* prefixes, const int64_t* tails, const int64_t* places, long window,
                   float scale, float cap, const float* sinks, int kind, int threads) {
  const Call call{query,    keys,  values, result, rows,  heads, shared, size, value_size, starts,
                  prefixes, tails, places, window, scale, cap,   sinks};
  if (kind == FLOAT32) attend<Float32>(call, threads);
  if (kind == BFLOAT16) attend<Bfloat16>(call, threads);
  if (kind == FLOAT16) attend<Float16>(call, threads);
}
}
