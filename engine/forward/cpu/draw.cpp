// Draws from rows of logits on a CPU, and their likeliest tokens. `draw_rows` in
// engine/sampling/sampler.py defines a draw: the maximum of log-probability and keyed Gumbel noise
// over the tokens that top-k, top-p and min-p leave. Most blocks of tokens are ruled out by their
// hashes: with a weight w = e^score and a uniform number u, score + noise > key only if u < w e^-key,
// and a block has one highest weight. The remaining tokens are computed by the definition, and a row
// in which rounding could decide is left to the definition.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vectors.h"

namespace {

constexpr long BLOCK = 64;       // tokens of a block, which has one maximum
// margin of scores and of probabilities; float32 rounds them by some 1e-6
constexpr double MARGIN = 1e-4;
constexpr float HOTTEST = 1e30f;  // above this temperature scores are too small for float32
constexpr float NONE = -std::numeric_limits<float>::infinity();
constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15;

typedef uint32_t Unsigned __attribute__((vector_size(4 * LANES)));

struct Draw {  // the fields are as in engine/sampling/drawing.py
  const float* row;
  uint64_t seed;
  int64_t position, top_k;
  double top_p, min_p;
  float temperature;  // 0 means the likeliest token
};

// The noise of a row, from the same hash as in engine/sampling/noise.py.
struct Noise {
  uint32_t low, high;

  Noise(uint64_t seed, int64_t position) {
    uint64_t word = seed + (uint64_t(position) + 1) * GOLDEN;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    word ^= word >> 31;
    low = folded(uint32_t(word)), high = folded(uint32_t(word >> 32));
  }

  template <class Word>
  static Word folded(Word state) {
    return state ^ (state >> 16);
  }

  template <class Word>
  static Word mixed(Word state) {
    state *= 0x7FEB352D;
    state ^= state >> 15;
    return state * 0x846CA68B;
  }

  template <class Word>
  Word bits(Word token) const {  // 2^32 times the uniform number, without the final half
    return folded(mixed(mixed(folded(token) ^ low) ^ high)) ^ 0x80000000;
  }

  double of(long token) const {
    const double uniform = (double(bits(uint32_t(token))) + 0.5) * 0x1p-32;
    return float(-std::log(-std::log1p(-uniform)));
  }
};

struct Found {
  long token = -1;
  float logit = NONE;
  double key = -std::numeric_limits<double>::infinity();
};

// A row with a temperature. Scores are log-probabilities without their normalisation.
class Row {
 public:
  Row(const Draw& draw, long size)
      : logits(draw.row), size(size), temperature(draw.temperature ? draw.temperature : 1),
        inverse(1 / temperature), maxima((size + BLOCK - 1) / BLOCK) {
    Words numbers = Words{} - 1;
    for (long b = 0; b < long(maxima.size()); b++) {
      Vector top = Vector{} + NONE;
      each(b, [&](Vector x, long) {
        numbers &= x == x;
        top = x > top ? x : top;
      });
      maxima[b] = joined(top, [](Vector a, Vector b) { return a > b ? a : b; });
    }
    bool known = true;
    for (int lane = 0; lane < LANES; lane++) known &= numbers[lane] != 0;
    best = *std::max_element(maxima.begin(), maxima.end());
    finite = known && std::isfinite(best);
  }

  long likeliest() const {
    const long block = std::max_element(maxima.begin(), maxima.end()) - maxima.begin();
    return std::find(logits + block * BLOCK, logits + size, best) - logits;
  }

  float score(float logit) const { return (logit - best) / temperature; }

  // Calls a function with each vector of a block and its start; numbers after the end of the row are
  // -inf.
  template <class Do>
  void each(long block, Do action) const {
    const long start = block * BLOCK, end = std::min(size, start + BLOCK);
    long i = start;
    for (; i + LANES <= end; i += LANES) action(Float32::load(logits + i), i);
    if (i == end) return;
    float rest[LANES];
    std::fill(rest, rest + LANES, NONE);
    std::copy(logits + i, logits + end, rest);
    action(Float32::load(rest), i);
  }

  Vector weight(Vector x) const { return exponential((x - best) * inverse); }

  // The sums of the weights of all tokens whose logits are at least each of the given logits.
  template <int COUNT>
  void masses(const float (&from)[COUNT], double (&sums)[COUNT]) const {
    for (double& sum : sums) sum = 0;
    for (long b = 0; b < long(maxima.size()); b++) {
      if (maxima[b] < from[COUNT - 1]) continue;  // the least
      Vector parts[COUNT] = {};
      each(b, [&](Vector x, long) {
        const Vector w = weight(x);
        for (int i = 0; i < COUNT; i++) parts[i] += x >= from[i] ? w : Vector{};
      });
      for (int i = 0; i < COUNT; i++)
        sums[i] += joined(parts[i], [](Vector a, Vector b) { return a + b; });
    }
  }

  // Calls a function with each token whose logit is at least this.
  template <class Do>
  void at_least(float least, Do action) const {
    for (long b = 0; b < long(maxima.size()); b++)
      if (maxima[b] >= least)
        for (long i = b * BLOCK; i < std::min(size, (b + 1) * BLOCK); i++)
          if (logits[i] >= least) action(i);
  }

  // The `count` likeliest tokens, or all of them, likeliest first, and of equal ones the lowest id
  // first; the least of the `count` highest block maxima is a lower bound of their logits.
  std::vector<long> first(long count) const {
    count = std::min(count, size);
    float bound = NONE;
    if (count <= long(maxima.size())) {
      std::vector<float> sorted = maxima;
      std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(),
                       std::greater<float>());
      bound = sorted[count - 1];
    }
    std::vector<long> tokens;
    at_least(bound, [&](long token) { tokens.push_back(token); });
    const auto before = [&](long a, long b) {
      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::nth_element(tokens.begin(), tokens.begin() + (count - 1), tokens.end(), before);
    tokens.resize(count);
    std::sort(tokens.begin(), tokens.end(), before);
    return tokens;
  }

  // The least logit that top-k leaves; a token with the same score as the last one stays too.
  float floor(long top_k) const {
    if (!top_k || top_k >= size) return NONE;
    const float last = logits[first(top_k).back()];
    float least = last;
    at_least(below(last), [&](long token) {
      if (logits[token] < least && score(logits[token]) == score(last)) least = logits[token];
    });
    return least;
  }

  // Every token that rounding may make equal to a logit has at least this logit.
  float below(float logit) const { return logit - std::abs(logit - best) * 1e-6f; }
  float above(float logit) const { return logit + std::abs(logit - best) * 1e-6f; }

  const float* const logits;
  const long size;
  const float temperature, inverse;
  float best;
  bool finite;  // no logit is NaN, and the highest is not infinite
  std::vector<float> maxima;
};

// The two highest sums of score and noise of the logits from `least` on.
std::pair<Found, Found> race(const Row& row, const Noise& noise, float least) {
  Found first, second;
  double bound = 1e30;  // a uniform number must stay below this, times the token's weight
  Words lanes;
  for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
  for (long b = 0; b < long(row.maxima.size()); b++) {
    if (row.maxima[b] < least) continue;
    const double most = bound * std::exp(row.score(row.maxima[b]));
    Vector lowest = Vector{} + 1;
    for (long i = b * BLOCK; i < (b + 1) * BLOCK; i += LANES) {
      const Words half = Words(noise.bits(Unsigned(lanes + int32_t(i))) >> 1);
      const Vector uniform = __builtin_convertvector(half, Vector) * 0x1p-31f;
      lowest = uniform < lowest ? uniform : lowest;
    }
    if (joined(lowest, [](Vector a, Vector b) { return a < b ? a : b; }) > most) continue;
    for (long i = b * BLOCK; i < std::min(row.size, (b + 1) * BLOCK); i++) {
      const double uniform = noise.bits(uint32_t(i)) * 0x1p-32;
      if (row.logits[i] < least || uniform > most) continue;
      const float score = row.score(row.logits[i]);
      if (uniform > bound * std::exp(score)) continue;
      Found here{i, row.logits[i], score + noise.of(i)};
      if (here.key > first.key) std::swap(here, first);
      if (here.key > second.key) second = here;
      bound = std::min(bound, std::exp(2 * MARGIN - first.key));
    }
  }
  return {first, second};
}

enum Verdict { REMOVED, UNSURE, KEPT };

// Whether a token with this logit stays; top-p is a share of the mass of all logits from `floor` on.
Verdict verdict(const Row& row, const Draw& draw, float floor, float logit) {
  const double score = row.score(logit), least = std::log(draw.min_p);
  Verdict found = KEPT;
  if (score < 0 && score < least + MARGIN) found = score < least - MARGIN ? REMOVED : UNSURE;
  if (draw.top_p >= 1 || found == REMOVED) return found;
  // the mass of surely likelier tokens, this mass with that of possibly likelier ones, and the mass of
  // all
  double sums[3];
  const float least_equal = std::max(row.below(logit), floor);
  row.masses({std::nextafter(row.above(logit), -NONE), least_equal, floor}, sums);
  const double share = draw.top_p * sums[2], margin = MARGIN * sums[2];
  const bool alone = sums[1] - sums[0] < 1.5 * std::exp(score);
  if (alone && score == 0) return found;  // the likeliest token always stays
  if (sums[0] >= share + margin) return REMOVED;
  return sums[alone ? 0 : 1] <= share - margin ? found : UNSURE;  // the order of equal logits is unsure
}

// The token, or -1 where rounding could decide.
int64_t drawn(const Draw& draw, long size) {
  const Row row(draw, size);
  if (!row.finite || draw.temperature > HOTTEST) return -1;
  if (draw.temperature == 0) return row.likeliest();
  const float floor = row.floor(draw.top_k);
  const double cut = row.best + row.temperature * (std::log(draw.min_p) - 2 * MARGIN);
  float least = std::max(floor, float(cut));
  const Noise noise(draw.seed, draw.position);
  while (true) {
    const auto [first, second] = race(row, noise, least);
    if (first.token < 0 || first.key - second.key <= MARGIN) return -1;
    const Verdict found = verdict(row, draw, floor, first.logit);
    if (found == KEPT) return first.token;
    if (found == UNSURE) return -1;
    least = std::nextafter(first.logit, -NONE);  // less likely tokens do not stay either
  }
}

}  // namespace

extern "C" {

// Writes tokens [count]: the token drawn from each row [size], or -1 if the definition must be asked
// for this row. A token depends on its own row alone.
void tandem_draw(const Draw* draws, long count, long size, int64_t* tokens, int threads) {
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
#endif
  for (long i = 0; i < count; i++) tokens[i] = drawn(draws[i], size);
}

// The `listed` likeliest tokens of each row [size], likeliest first, as tokens and scores [count,
// listed], and the logarithm of what the weights that top-k leaves add up to, logs [count]; scores
// are -inf where top-k leaves nothing, and NaN in a row that has no likeliest token.
void tandem_likeliest(const Draw* draws, long count, long size, long listed, int64_t* tokens,
                      float* scores, float* logs, int threads) {
#if defined(_OPENMP)
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
#endif
  for (long i = 0; i < count; i++) {
    const Row row(draws[i], size);
    if (!row.finite) {
      std::fill(scores + i * listed, scores + (i + 1) * listed, NAN);
      for (long j = 0; j < listed; j++) tokens[i * listed + j] = j;
      continue;
    }
    const float floor[1] = {row.floor(draws[i].top_k)};
    double sum[1];
    row.masses(floor, sum);
    logs[i] = std::log(sum[0]);
    const auto first = row.first(listed);
    for (long j = 0; j < listed; j++) {
      const float logit = row.logits[first[j]];
      tokens[i * listed + j] = first[j];
      scores[i * listed + j] = logit >= floor[0] ? row.score(logit) : NONE;
    }
  }
}
}
