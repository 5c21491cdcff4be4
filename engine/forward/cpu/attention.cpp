// Attention of rows of many sessions on a CPU, each to its own path through a tree after a text, in
// one call. Every SPLIT positions have a softmax of their own, which runs online in blocks of BLOCK.
// The softmaxes of a row are joined in order, so a row's result depends on the positions of its path
// alone, not on other rows, on where its keys lie, or on threads.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

// number of sums that fit into registers beside the operands
constexpr int AT_ONCE = LANES == 8 ? 12 : 16;
constexpr int BLOCK = 4 * LANES;               // positions
// number of positions; the pages of their keys fit into the processor's TLB
constexpr long SPLIT = 256;
constexpr long SHARING = 32;     // most rows of a session that read the same keys together
constexpr long PARTS = 1 << 15;  // most softmaxes that may wait to be joined; they take some 16 MiB

struct Call {
  const void *query, *keys, *values;
  void* result;
  long rows, heads, shared, size, value_size;  // `shared` heads have their own keys
  const int64_t *pages, *tables, *prefixes, *tails, *slots;
  long page, window;
  float scale, cap;
  const float* sinks;
};

// The running softmax of a row and a head; `output` is not yet divided by the sum.
struct RowState {
  float most, sum;
  Vector *query, *output;
};

// The keys and values of a block's positions, of which low..high are seen: each lies a fixed number
// of numbers behind the previous one.
template <class Stored>
struct Block {
  int low, high;
  const typename Stored::Type *keys, *values;
  long key_stride, value_stride;

  const auto* key(int i) const { return keys + std::clamp(i, low, high - 1) * key_stride; }
  const auto* value(int i) const { return values + i * value_stride; }
};

// The scores of a row and a head for a block, and then its weights.
struct Weights {
  Vector of[BLOCK / LANES];
};

// Numbers of a block that were copied, one position after the other, padded to whole vectors.
struct Copied : Float32 {};

// The sums of the lanes of LANES vectors; the lanes of each vector are added in the same order.
template <int BIT = 1>
Vector summed(Vector* parts) {
  if constexpr (BIT == LANES) {
    return parts[0];
  } else {
    for (int i = 0; i < LANES; i += 2 * BIT) {
      exchange<BIT>(parts[i], parts[i | BIT], Lanes{});
      parts[i] += parts[i | BIT];
    }
    return summed<2 * BIT>(parts);
  }
}

template <class Stored>
struct Attention {
  using Type = typename Stored::Type;
  const Call& call;
  const long key_vectors = (call.size + LANES - 1) / LANES;
  const long value_vectors = (call.value_size + LANES - 1) / LANES;
  const long repeat = call.heads / call.shared;
  const bool whole = call.size % LANES == 0 && call.value_size % LANES == 0;

  long seen(long row) const {
    return call.prefixes[row] + call.tails[row + 1] - call.tails[row];
  }

  long first(long row) const {
    return call.window > 0 ? std::max<long>(0, seen(row) - call.window) : 0;
  }

  // Where a row finds the key of a position.
  long slot(long row, long position) const {
    const long behind = position - call.prefixes[row], number = position / call.page;
    if (behind >= 0) return call.slots[call.tails[row] + behind];
    return call.pages[call.tables[row] + number] * call.page + position % call.page;
  }

  const Type* key(long slot, long group) const {
    return (const Type*)call.keys + (slot * call.shared + group) * call.size;
  }

  const Type* value(long slot, long group) const {
    return (const Type*)call.values + (slot * call.shared + group) * call.value_size;
  }

  // The positions low..high from `start` on, which lie in one page.
  Block<Stored> in_page(long row, long group, long start, int low, int high) const {
    const long first = slot(row, start + low) - low;
    return {low, high, key(first, group), value(first, group), call.shared * call.size,
            call.shared * call.value_size};
  }

  // Copies of the keys of some positions, wherever these lie.
  Block<Copied> copied(long row, long group, long start, int low, int high) const {
    static thread_local std::vector<Vector> numbers;
    numbers.resize(BLOCK * (key_vectors + value_vectors));
    Vector *keys = numbers.data(), *values = keys + BLOCK * key_vectors;
    for (int i = low; i < high; i++) {
      const long from = slot(row, start + i);
      for (long v = 0; v < key_vectors; v++)
        keys[i * key_vectors + v] =
            load_some<Stored>(key(from, group) + v * LANES, call.size - v * LANES);
      for (long v = 0; v < value_vectors; v++)
        values[i * value_vectors + v] =
            load_some<Stored>(value(from, group) + v * LANES, call.value_size - v * LANES);
    }
    return {low, high, (const float*)keys, (const float*)values, key_vectors * LANES,
            value_vectors * LANES};
  }

  // Prefetches numbers that will soon be read.
  template <class Source>
  static void fetch(const typename Source::Type* from, long count) {
    if (std::is_same_v<Source, Copied>) return;
    for (long i = 0; i < count; i += 64 / sizeof *from) __builtin_prefetch(from + i);
  }

  // The lanes of the dot products of COUNT queries with the keys of LANES positions, from the
  // `start`-th on, KEYS of them at a time.
  template <class Source, int COUNT, int KEYS>
  void score(RowState* const* states, const Block<Source>& block, int at,
             Vector (*parts)[LANES], int start = 0) const {
    for (; start + KEYS <= LANES; start += KEYS) {
      const typename Source::Type* keys[KEYS];
      Vector sums[KEYS][COUNT] = {};
      for (int k = 0; k < KEYS; k++) {
        keys[k] = block.key(at + start + k);
        fetch<Source>(block.value(at + start + k), call.value_size);
      }
      for (long v = 0; v < key_vectors; v++) {
        Vector key[KEYS];
#pragma GCC unroll 16
        for (int k = 0; k < KEYS; k++) key[k] = Source::load(keys[k] + v * LANES);
#pragma GCC unroll 4
        for (int n = 0; n < COUNT; n++) {
          const Vector query = states[n]->query[v];
#pragma GCC unroll 16
          for (int k = 0; k < KEYS; k++) sums[k][n] += query * key[k];
        }
      }
#pragma GCC unroll 16
      for (int k = 0; k < KEYS; k++)
#pragma GCC unroll 4
        for (int n = 0; n < COUNT; n++) parts[n][start + k] = sums[k][n];
    }
    if constexpr (KEYS > 1)
      if (start < LANES) score<Source, COUNT, (KEYS + 1) / 2>(states, block, at, parts, start);
  }

  // Makes weights of the scores of a block, and what a row has so far comparable with them.
  void weigh(RowState& state, Vector* scores, int low, int high) const {
    const auto larger = [](Vector a, Vector b) { return a > b ? a : b; };
    Vector most = Vector{} - INFINITY, sum{};
    for (int g = 0; g < BLOCK / LANES; g++) {
      if (call.cap > 0) scores[g] = bounded(scores[g] / call.cap) * call.cap;
      for (int i = 0; i < LANES && high - low < BLOCK; i++)
        if (g * LANES + i < low || g * LANES + i >= high) scores[g][i] = -INFINITY;
      most = larger(most, scores[g]);
    }
    raise(state, std::max(state.most, joined(most, larger)));
    for (int g = 0; g < BLOCK / LANES; g++) sum += scores[g] = exponential(scores[g] - state.most);
    state.sum += joined(sum, [](Vector a, Vector b) { return a + b; });
  }

  // Rescales what was added so far to a new highest score.
  void raise(RowState& state, float most) const {
    if (most == state.most) return;
    const float share = exponential(Vector{} + (state.most - most))[0];
    state.most = most, state.sum *= share;
    for (long v = 0; v < value_vectors; v++) state.output[v] *= share;
  }

  // Adds the values of a block, by weights, to WIDE vectors of COUNT outputs at a time.
  template <class Source, int COUNT, int WIDE>
  void mix(RowState* const* states, const Weights* weights, const Block<Source>& block,
           const Block<Source>& next, long v = 0) const {
    for (; v + WIDE <= value_vectors; v += WIDE) {
      Vector sums[COUNT][WIDE];
#pragma GCC unroll 32
      for (int i = 0; i < COUNT * WIDE; i++)
        sums[i / WIDE][i % WIDE] = states[i / WIDE]->output[v + i % WIDE];
      for (int i = block.low; i < block.high; i++) {
        Vector value[WIDE];
        fetch<Source>(next.keys + i * next.key_stride + v * LANES, WIDE * LANES);
#pragma GCC unroll 16
        for (int w = 0; w < WIDE; w++) value[w] = Source::load(block.value(i) + (v + w) * LANES);
#pragma GCC unroll 4
        for (int n = 0; n < COUNT; n++) {
          const float weight = ((const float*)weights[n].of)[i];
#pragma GCC unroll 16
          for (int w = 0; w < WIDE; w++) sums[n][w] += weight * value[w];
        }
      }
#pragma GCC unroll 32
      for (int i = 0; i < COUNT * WIDE; i++)
        states[i / WIDE]->output[v + i % WIDE] = sums[i / WIDE][i % WIDE];
    }
    if constexpr (WIDE > 1)
      if (v < value_vectors) mix<Source, COUNT, (WIDE + 1) / 2>(states, weights, block, next, v);
  }

  template <class Source, int COUNT>
  void weigh_block(RowState* const* states, const Block<Source>& block, Weights* weights) const {
    Vector parts[COUNT][LANES];
    for (int g = 0; g < BLOCK / LANES; g++) {
      const bool needed = g * LANES < block.high && (g + 1) * LANES > block.low;
      if (needed)
        score<Source, COUNT, std::min(AT_ONCE / COUNT, LANES)>(states, block, g * LANES, parts);
      for (int n = 0; n < COUNT; n++) weights[n].of[g] = needed ? summed(parts[n]) : Vector{};
    }
    for (int n = 0; n < COUNT; n++) weigh(*states[n], weights[n].of, block.low, block.high);
  }

  // All scores are computed first, so that the keys stay in the cache, and then all values.
  template <class Source>
  void add(const std::vector<RowState*>& states, const Block<Source>& block,
           const Block<Source>& next) const {
    static thread_local std::vector<Weights> weights;
    weights.resize(states.size());
    const auto by_four = [&](auto act) {
      size_t done = 0;
      for (; done + 4 <= states.size(); done += 4) act(done, std::integral_constant<int, 4>{});
      if (states.size() - done == 3) act(done, std::integral_constant<int, 3>{});
      if (states.size() - done == 2) act(done, std::integral_constant<int, 2>{});
      if (states.size() - done == 1) act(done, std::integral_constant<int, 1>{});
    };
    by_four([&](size_t from, auto count) {
      weigh_block<Source, count>(states.data() + from, block, weights.data() + from);
    });
    by_four([&](size_t from, auto count) {
      mix<Source, count, AT_ONCE / count>(states.data() + from, weights.data() + from, block, next);
    });
  }

  // Adds low..high of the positions from `start` on, which a row sees. Few rows read the keys where
  // they lie.
  void add_positions(const std::vector<RowState*>& states, long row, long group, long start, int low,
                     int high) const {
    const bool paged = start + high <= call.prefixes[row] && call.page % BLOCK == 0;
    if (!paged || !whole || states.size() > 4) {
      const Block<Copied> block = copied(row, group, start, low, high);
      return add<Copied>(states, block, block);
    }
    const Block<Stored> block = in_page(row, group, start, low, high);
    const bool more = start + BLOCK < call.prefixes[row];
    add<Stored>(states, block, more ? in_page(row, group, start + BLOCK, 0, BLOCK) : block);
  }

  // Computes what rows from..to of one session, and the heads that share keys, get from a split:
  // block by block, each located once for all rows that see it in their common text.
  void attend_split(long from, long to, long group, long split, RowState* states) const {
    static thread_local std::vector<Vector> queries;
    static thread_local std::vector<RowState*> together, alone;
    queries.resize((to - from) * repeat * key_vectors);
    long begin_at = (split + 1) * SPLIT, end_at = 0;
    for (long row = from; row < to; row++) {
      begin_at = std::min(begin_at, first(row)), end_at = std::max(end_at, seen(row));
      for (long h = 0; h < repeat; h++) {
        const long number = (row - from) * repeat + h;
        states[number].query = queries.data() + number * key_vectors;
        begin(states[number], row, group * repeat + h);
      }
    }
    begin_at = std::max(begin_at / BLOCK * BLOCK, split * SPLIT);
    end_at = std::min(end_at, (split + 1) * SPLIT);
    for (long start = begin_at; start < end_at; start += BLOCK) {
      long reader = -1;
      together.clear();
      for (long row = from; row < to; row++) {
        const int low = int(std::clamp<long>(first(row) - start, 0, BLOCK));
        const int high = int(std::clamp<long>(seen(row) - start, 0, BLOCK));
        const bool shares = low == 0 && high == BLOCK && start + BLOCK <= call.prefixes[row];
        alone.clear();
        for (long h = 0; h < repeat && low < high; h++)
          (shares ? together : alone).push_back(&states[(row - from) * repeat + h]);
        if (shares) reader = row;
        if (!alone.empty()) add_positions(alone, row, group, start, low, high);
      }
      if (reader >= 0) add_positions(together, reader, group, start, 0, BLOCK);
    }
  }

  void begin(RowState& state, long row, long head) const {
    state.most = -INFINITY, state.sum = 0.0f;
    const Type* query = (const Type*)call.query + (row * call.heads + head) * call.size;
    for (long v = 0; v < key_vectors; v++)
      state.query[v] = load_some<Stored>(query + v * LANES, call.size - v * LANES) * call.scale;
    for (long v = 0; v < value_vectors; v++) state.output[v] = Vector{};
  }

  void join(RowState& state, const RowState& later) const {
    if (later.sum == 0.0f) return;  // the row saw nothing in this split
    const float most = std::max(state.most, later.most);
    const float share = exponential(Vector{} + (later.most - most))[0];
    raise(state, most);
    state.sum += later.sum * share;
    for (long v = 0; v < value_vectors; v++) state.output[v] += later.output[v] * share;
  }

  void end(const RowState& state, long row, long head) const {
    float sum = state.sum, share = 1.0f;
    if (call.sinks) {  // a sink: a score that takes weight and adds no value
      const float most = std::max(state.most, call.sinks[head]);
      share = std::exp(state.most - most);
      sum = sum * share + std::exp(call.sinks[head] - most);
    }
    Type* result = (Type*)call.result + (row * call.heads + head) * call.value_size;
    for (long v = 0; v < value_vectors; v++)
      save_some<Stored>(result + v * LANES, state.output[v] * (share / sum),
                        call.value_size - v * LANES);
  }
};

// Memory for the results of softmaxes.
struct States {
  std::vector<RowState> states;
  std::vector<Vector> outputs;

  RowState* make(long count, long vectors) {
    states.resize(count), outputs.resize(count * vectors);
    for (long i = 0; i < count; i++) states[i].output = outputs.data() + i * vectors;
    return states.data();
  }
};

// Rows from..to of one session, and the splits that they see.
struct Run {
  long from, to, first_split, splits;
};

template <class Stored>
std::vector<Run> runs(const Attention<Stored>& attention, long& parts) {
  const Call& call = attention.call;
  std::vector<Run> found;
  for (long from = 0, to; from < call.rows; from = to) {
    long first = attention.first(from), last = 0;
    for (to = from; to < call.rows && to - from < SHARING; to++) {
      if (call.tables[to] != call.tables[from]) break;
      first = std::min(first, attention.first(to)), last = std::max(last, attention.seen(to) - 1);
    }
    const long splits = last / SPLIT - first / SPLIT + 1;
    found.push_back({from, to, first / SPLIT, splits});
    parts += (to - from) * call.heads * splits;
  }
  return found;
}

// All splits of a run one after the other.
template <class Stored>
void attend_run(const Attention<Stored>& attention, const Run& run, long group) {
  static thread_local States all, some;
  const long count = (run.to - run.from) * attention.repeat;
  RowState* total = all.make(count, attention.value_vectors);
  RowState* part = some.make(count, attention.value_vectors);
  for (long s = 0; s < run.splits; s++) {
    attention.attend_split(run.from, run.to, group, run.first_split + s, s ? part : total);
    for (long i = 0; s && i < count; i++) attention.join(total[i], part[i]);
  }
  for (long i = 0; i < count; i++)
    attention.end(total[i], run.from + i / attention.repeat,
                  group * attention.repeat + i % attention.repeat);
}

// A split of a run, for the heads that share keys.
struct Task {
  const Run* run;
  long split, group, count;
  RowState* states;
};

// All splits of all runs, processed in parallel. The keys of the splits lie in memory in the order of
// tasks.
template <class Stored>
void attend_splits(const Attention<Stored>& attention, const std::vector<Run>& runs, long parts,
                   int threads) {
  static thread_local States all;
  static thread_local std::vector<Task> tasks;
  const long repeat = attention.repeat, shared = attention.call.shared;
  RowState* states = all.make(parts, attention.value_vectors);
  tasks.clear();
  for (const Run& run : runs)
    for (long task = 0, count = (run.to - run.from) * repeat; task < run.splits * shared; task++) {
      tasks.push_back({&run, task / shared, task % shared, count, states});
      states += count;
    }
  const Task* given = tasks.data();
  const long count = long(tasks.size()), each = std::clamp(count / (4 * threads), 1L, shared);
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads) if (threads > 1)
#endif
  {
#if defined(_OPENMP)
#pragma omp for schedule(dynamic, each)
#endif
    for (long i = 0; i < count; i++) {
      const auto [run, split, group, _, states] = given[i];
      attention.attend_split(run->from, run->to, group, run->first_split + split, states);
    }
#if defined(_OPENMP)
#pragma omp for
#endif
    for (long i = 0; i < count; i++) {
      const auto [run, split, group, size, states] = given[i];
      for (long n = 0; split == 0 && n < size; n++) {
        for (long s = 1; s < run->splits; s++)
          attention.join(states[n], states[s * shared * size + n]);
        attention.end(states[n], run->from + n / repeat, group * repeat + n % repeat);
      }
    }
  }
}

template <class Stored>
void attend(const Call& call, int threads) {
  const Attention<Stored> attention{call};
  long parts = 0;
  const std::vector<Run> all = runs(attention, parts);
  if (parts <= PARTS) return attend_splits(attention, all, parts, threads);
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
#endif
  for (long task = 0; task < long(all.size()) * call.shared; task++)
    attend_run(attention, all[task / call.shared], task % call.shared);
}

}  // namespace

extern "C" {

// result [rows, heads, value size] of query [rows, heads, size] on keys [slots, shared, size] and
// values [slots, shared, value size], all of `kind`. Row r sees prefixes[r] keys in pages
// pages[tables[r]], pages[tables[r] + 1], ... of `page` slots, a multiple of 16, and then those at
// slots[tails[r]] .. slots[tails[r + 1] - 1], in this order; if `window` is above 0, it sees only the
// last `window` of these. Scores are capped at `cap`, if above 0; `sinks` [heads], float32, may be
// null.
void tandem_attend(const void* query, const void* keys, const void* values, void* result, long rows,
                   long heads, long shared, long size, long value_size, const int64_t* pages,
                   const int64_t* tables, const int64_t* prefixes, const int64_t* tails,
                   const int64_t* slots, long page, long window, float scale, float cap,
                   const float* sinks, int kind, int threads) {
  const Call call{query, keys,   values,   result, rows,  heads, shared, size,  value_size,
                  pages, tables, prefixes, tails,  slots, page,  window, scale, cap,
                  sinks};
  if (kind == FLOAT32) attend<Float32>(call, threads);
  if (kind == BFLOAT16) attend<Bfloat16>(call, threads);
  if (kind == FLOAT16) attend<Float16>(call, threads);
}
}
