// Attention of rows of many sessions on a CPU, each to its own path through a tree after a text, in
// one call. Softmax runs online in blocks of LANES positions, in the order of positions: what a row
// gets depends on its path alone, not on other rows, on where its keys lie, or on threads.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

// Two vectors, of which one gives the other its lanes with the bit, for those without.
template <int BIT, int... LANE>
void exchange(Vector& low, Vector& high, std::integer_sequence<int, LANE...>) {
  const Vector a = low, b = high;
  low = shuffled<(LANE & BIT ? (LANE ^ BIT) + LANES : LANE)...>(a, b);
  high = shuffled<(LANE & BIT ? LANE + LANES : LANE ^ BIT)...>(a, b);
}

template <int BIT = 1>
void transpose(Vector* square) {  // LANES of them
  if constexpr (BIT < LANES) {
    for (int i = 0; i < LANES; i++)
      if (!(i & BIT)) exchange<BIT>(square[i], square[i | BIT], Lanes{});
    transpose<2 * BIT>(square);
  }
}

struct Call {
  const void *query, *keys, *values;
  void* result;
  long rows, heads, shared, size, value_size;  // `shared` heads have their own keys
  const int64_t *pages, *tables, *prefixes, *tails, *slots;
  long page, window;
  float scale, cap;
  const float* sinks;
};

// The running softmax of a row and a head; `query` and `output` point to their own buffers.
struct RowState {
  float most, sum;
  float* query;
  Vector* output;
};

// A block of positions: where the keys are that are seen, and their numbers, by lanes.
struct Block {
  int low, high;  // of the lanes, those that are seen
  long at[LANES];
  std::vector<Vector> keys;  // [size, up to a multiple of LANES]
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

  // How far the positions of a page of a row's text lie behind their numbers.
  long shift(long row, long position) const {
    const long number = position / call.page;
    return (call.pages[call.tables[row] + number] - number) * call.page;
  }

  void begin(RowState& state, long row, long head) const {
    state.most = -INFINITY, state.sum = 0.0f;
    const Type* query = (const Type*)call.query + (row * call.heads + head) * call.size;
    for (long v = 0; v < key_vectors; v++) {
      const Vector some = load_some<Stored>(query + v * LANES, call.size - v * LANES) * call.scale;
      *(Unaligned*)(state.query + v * LANES) = some;
    }
    for (long v = 0; v < value_vectors; v++) state.output[v] = Vector{};
  }

  // The keys of a row's positions from..to, which are of one page; the first is in lane `low`.
  void fetch(Block& block, long row, long group, long from, long to, int low) const {
    block.low = low, block.high = low + int(to - from);
    const long prefix = call.prefixes[row], in_page = from < prefix ? shift(row, from) : 0;
    const int64_t* tail = call.slots + call.tails[row] - prefix;
    for (int i = 0; i < LANES; i++) {
      const long position = from + i - low;
      block.at[i] = i < block.low || i >= block.high ? -1
                    : position < prefix              ? position + in_page
                                                     : tail[position];
    }
    block.keys.resize(key_vectors * LANES);
    for (long v = 0; v < key_vectors; v++) {
      Vector* square = block.keys.data() + v * LANES;
      for (int i = 0; i < LANES; i++) {
        const Type* key = (const Type*)call.keys + (block.at[i] * call.shared + group) * call.size;
        square[i] = block.at[i] < 0
                        ? Vector{}
                        : load_some<Stored>(key + v * LANES, call.size - v * LANES);
      }
      transpose(square);
    }
  }

  // Adds lanes low..high of a block to COUNT rows and heads, which share what is read.
  template <int COUNT>
  void attend_block(RowState* const* states, const Block& block, int low, int high,
                    long group) const {
    Vector parts[COUNT][2] = {}, weights[COUNT];
    float before[COUNT];
    for (long d = 0; d < key_vectors * LANES; d += 2)
      for (int i = 0; i < 2; i++)
#pragma GCC unroll 4
        for (int n = 0; n < COUNT; n++)
          parts[n][i] += states[n]->query[d + i] * block.keys[d + i];
    for (int n = 0; n < COUNT; n++)
      weights[n] = weighed(*states[n], parts[n][0] + parts[n][1], low, high, before[n]);
    for (long v = 0; v < value_vectors; v++) {
      const long rest = call.value_size - v * LANES;
      const Type* column = (const Type*)call.values + group * call.value_size + v * LANES;
      const long stride = call.shared * call.value_size;
      Vector sums[COUNT];
      for (int n = 0; n < COUNT; n++) sums[n] = states[n]->output[v] * before[n];
      const auto add = [&](int i, Vector value) {
#pragma GCC unroll 4
        for (int n = 0; n < COUNT; n++) sums[n] += ((const float*)&weights[n])[i] * value;
      };
      if (low == 0 && high == LANES && rest >= LANES)
        for (int i = 0; i < LANES; i++) add(i, Stored::load(column + block.at[i] * stride));
      else
        for (int i = low; i < high; i++)
          add(i, load_some<Stored>(column + block.at[i] * stride, rest));
      for (int n = 0; n < COUNT; n++) states[n]->output[v] = sums[n];
    }
  }

  // The weights of scores; the output so far has to be multiplied with `before`.
  Vector weighed(RowState& state, Vector score, int low, int high, float& before) const {
    if (call.cap > 0)
      for (int i = low; i < high; i++) score[i] = std::tanh(score[i] / call.cap) * call.cap;
    if (low > 0 || high < LANES)
      for (int i = 0; i < LANES; i++)
        if (i < low || i >= high) score[i] = -INFINITY;
    const float here = joined(score, [](Vector a, Vector b) { return a > b ? a : b; });
    const float most = std::max(state.most, here);
    before = most == state.most ? 1.0f : exponential(Vector{} + (state.most - most))[0];
    const Vector weights = exponential(score - most);
    state.most = most;
    state.sum = state.sum * before + joined(weights, [](Vector a, Vector b) { return a + b; });
    return weights;
  }

  void attend_all(std::vector<RowState*>& states, const Block& block, int low, int high,
               long group) const {
    RowState* const* next = states.data();
    size_t left = states.size();
    for (; left >= 4; left -= 4, next += 4) attend_block<4>(next, block, low, high, group);
    if (left == 3) attend_block<3>(next, block, low, high, group);
    if (left == 2) attend_block<2>(next, block, low, high, group);
    if (left == 1) attend_block<1>(next, block, low, high, group);
    states.clear();
  }

  void end(const RowState& state, long row, long head) const {
    float sum = state.sum, share = 1.0f;
    if (call.sinks) {  // a score that takes weight and gives nothing
      const float most = std::max(state.most, call.sinks[head]);
      share = std::exp(state.most - most);
      sum = sum * share + std::exp(call.sinks[head] - most);
    }
    Type* result = (Type*)call.result + (row * call.heads + head) * call.value_size;
    for (long v = 0; v < value_vectors; v++)
      save_some<Stored>(result + v * LANES, state.output[v] * (share / sum),
                        call.value_size - v * LANES);
  }

  // Rows from..to, of one session, for the heads that share keys: block by block, each fetched once
  // for all rows that see it in their common text.
  void run(long from, long to, long group) const {
    static thread_local std::vector<RowState> states;
    static thread_local std::vector<Vector> vectors;
    static thread_local std::vector<RowState*> full, partial;
    static thread_local Block common, tail;
    const long repeat = call.heads / call.shared, each = key_vectors + value_vectors;
    states.resize((to - from) * repeat), vectors.resize((to - from) * repeat * each);
    long begin_at = seen(from), end_at = 0, longest = from;
    for (long row = from; row < to; row++) {
      begin_at = std::min(begin_at, first(row)), end_at = std::max(end_at, seen(row));
      if (call.prefixes[row] > call.prefixes[longest]) longest = row;
      for (long h = 0; h < repeat; h++) {
        const long number = (row - from) * repeat + h;
        states[number].query = (float*)(vectors.data() + number * each);
        states[number].output = vectors.data() + number * each + key_vectors;
        begin(states[number], row, group * repeat + h);
      }
    }
    for (long start = begin_at / LANES * LANES; start < end_at; start += LANES) {
      const long until = std::min(start + LANES, call.prefixes[longest]);
      if (start < until) fetch(common, longest, group, start, until, 0);
      for (long row = from; row < to; row++) {
        const int low = int(std::max<long>(0, first(row) - start));
        const int high = int(std::min<long>(LANES, seen(row) - start));
        if (low >= high) continue;
        const bool in_tail = start + high > call.prefixes[row], whole = low == 0 && high == LANES;
        auto& chosen = whole && !in_tail ? full : partial;
        for (long h = 0; h < repeat; h++) chosen.push_back(&states[(row - from) * repeat + h]);
        if (in_tail) fetch(tail, row, group, start + low, start + high, low);
        attend_all(partial, in_tail ? tail : common, low, high, group);
      }
      attend_all(full, common, 0, LANES, group);
    }
    for (long row = from; row < to; row++)
      for (long h = 0; h < repeat; h++)
        end(states[(row - from) * repeat + h], row, group * repeat + h);
  }
};

constexpr long SHARING = 32;  // rows of a session that share what is fetched

template <class Stored>
void attend(const Call& call, int threads) {
  std::vector<long> runs{0};
  for (long row = 1; row <= call.rows; row++)
    if (row == call.rows || call.tables[row] != call.tables[row - 1] ||
        row - runs.back() == SHARING)
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

// result [rows, heads, value size] of query [rows, heads, size] on keys [slots, shared, size] and
// values [slots, shared, value size], all of `kind`. Row r sees prefixes[r] keys in pages
// pages[tables[r]], pages[tables[r] + 1], ... of `page` slots, a multiple of 16, then those at
// slots[tails[r]] .. slots[tails[r + 1] - 1], in this order; of these the last `window` only, if it
// is above 0. Scores are capped at `cap`, if above 0; `sinks` [heads], float32, may be null.
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
