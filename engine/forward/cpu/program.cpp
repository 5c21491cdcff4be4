// A pass of a network over rows, or a stretch of it, in one call: linear layers and attention of all
// rows at once, and between them everything that is done to each row by itself, row by row, so that
// what one instruction leaves of a row is still close when the next one reads it.
//
// A row is computed by the same operations in the same order whatever is beside it, and every
// instruction rounds as PyTorch's own operation of its name.
#include <vector>

#include "gate.h"
#include "norm.h"

extern "C" {
void tandem_linear(const void*, long, long, const void*, long, long, const void*, const float*,
                   const int64_t*, void*, long, int, int, int, int);
void tandem_attend(const void*, const void*, const void*, void*, long, long, long, long, long,
                   const int64_t*, const int64_t*, const int64_t*, const int64_t*, const int64_t*,
                   long, long, float, float, const float*, int, int);
}

namespace {

enum Operation { LINEAR, ATTEND, NORM, GATE, STORE, COPY, NEGATE, ADD, SUBTRACT, MULTIPLY, ROTATE };

struct Extent {  // a number that is a function of the number of rows
  int64_t fixed, each;
  long at(long rows) const { return long(fixed + each * rows); }
};

// Numbers of all rows, outer x inner of each row, with these strides, from the offset (in bytes) on,
// in the memory of a source.
struct View {
  int64_t source;  // negative: none
  Extent offset, row, outer, inner;
};

struct Linear {
  const void *weights, *grouping;
  const float* bias;
  int64_t inputs, outputs, numbers, stride;  // the dtype of weights, and the dtype of the result
  int32_t kind, result_kind;
};

struct Attend {
  const void *keys, *values;
  const float* sinks;
  int64_t heads, shared, size, value_size, window;
  float scale, cap;
};

struct Instruction {
  int32_t operation, kind, from;  // the index of the last number that a copy reads
  float number;                   // a number in the place of the other operand, or a norm's epsilon
  int64_t outer, inner;
  View result, one, other, third;
  // a pointer: the Linear or Attend, a norm's weight, or the memory that is stored to
  const void* layer;
};

// The paths of a step's rows, in the form of tandem_attend, and the slot of each row.
struct Step {
  const int64_t *pages, *tables, *prefixes, *tails, *slots, *stored;
  int64_t page;
};

struct Operand {
  char* memory;
  long row, outer, inner;
};

// An instruction for rows, with views as numbers.
struct Task {
  const Instruction* is;
  Operand result, one, other, third;
  const int64_t* places;  // number of rows in the result, if it differs
  void (*run)(const Task&, long);
};

template <class Stored>
auto* row_of(const Operand& operand, long row) {
  return (typename Stored::Type*)operand.memory + row * operand.row;
}

template <class Stored>
Vector one_number(const typename Stored::Type* from) {
  return load_some<Stored>(from, 1);
}

// result = act(one, other), number by number.
template <class From, class To, bool TWO, class Act>
void each(const Task& task, long row, Act act) {
  const auto& [is, result, one, other, third, places, run] = task;
  const long inner = is->inner;
  const bool side_by_side = result.inner == 1 && one.inner == 1 && (!TWO || other.inner == 1);
  for (long o = 0; o < is->outer; o++) {
    auto* made = row_of<To>(result, places ? places[row] : row) + o * result.outer;
    const auto* first = row_of<From>(one, row) + o * one.outer;
    const auto* second = TWO ? row_of<From>(other, row) + o * other.outer : first;
    const Vector number = Vector{} + is->number;
    if (side_by_side) {
      for (long i = 0; i < inner; i += LANES) {
        const Vector x = load_some<From>(first + i, inner - i);
        save_some<To>(made + i, act(x, TWO ? load_some<From>(second + i, inner - i) : number),
                      inner - i);
      }
    } else {
      for (long i = 0; i < inner; i++) {
        const Vector x = one_number<From>(first + i * one.inner);
        const Vector y = TWO ? one_number<From>(second + i * other.inner) : number;
        save_some<To>(made + i * result.inner, act(x, y), 1);
      }
    }
  }
}

template <class Stored, int OPERATION, bool TWO>
void elementwise(const Task& task, long row) {
  each<Stored, Stored, TWO>(task, row, [](Vector x, Vector y) {
    if (OPERATION == ADD) return x + y;
    if (OPERATION == SUBTRACT) return x - y;
    if (OPERATION == MULTIPLY) return x * y;
    return -x;
  });
}

template <class From, class To>
void copy(const Task& task, long row) {
  each<From, To, false>(task, row, [](Vector x, Vector) { return x; });
}

template <class Stored>
void norm(const Task& task, long row) {
  const Instruction& is = *task.is;
  for (long o = 0; o < is.outer; o++)
    normalise_row<Stored>(row_of<Stored>(task.one, row) + o * task.one.outer,
                          row_of<Stored>(task.result, row) + o * task.result.outer, is.inner,
                          (const float*)is.layer, is.number);
}

template <class Stored, int ACTIVATION>
void gated(const Task& task, long row) {
  for (long start = 0; start < task.is->inner; start += LANES)
    gate_block<Stored, ACTIVATION>(row_of<Stored>(task.one, row), task.is->inner,
                                   row_of<Stored>(task.result, row), start);
}

// Products that are rounded before they are added; otherwise the compiler would contract them.
template <class Stored>
Vector rounded(Vector value) {
  if constexpr (sizeof(typename Stored::Type) == 4) {
#if defined(__x86_64__)
    asm("" : "+v"(value));
#else
    asm("" : "+w"(value));
#endif
    return value;
  } else {
    const auto stored = Stored::save(value);
    return Stored::load((const typename Stored::Type*)&stored);
  }
}

// Rotates both halves of a head: x cos + (-second half, first half) sin; `other` holds the cosines
// and `third` the sines.
template <class Stored>
void rotate(const Task& task, long row) {
  const long half = task.is->inner / 2;
  const auto *cos = row_of<Stored>(task.other, row), *sin = row_of<Stored>(task.third, row);
  for (long o = 0; o < task.is->outer; o++) {
    const auto* x = row_of<Stored>(task.one, row) + o * task.one.outer;
    auto* made = row_of<Stored>(task.result, row) + o * task.result.outer;
    for (long i = 0; i < half; i += LANES) {
      const long rest = half - i;
      const Vector low = load_some<Stored>(x + i, rest), high = load_some<Stored>(x + half + i, rest);
      const auto turned = [&](long at, Vector plain, Vector crossed) {
        const Vector a = rounded<Stored>(plain * load_some<Stored>(cos + at, rest));
        const Vector b = rounded<Stored>(crossed * load_some<Stored>(sin + at, rest));
        save_some<Stored>(made + at, a + b, rest);
      };
      turned(i, low, -high), turned(half + i, high, low);
    }
  }
}

using Run = void (*)(const Task&, long);

template <class Stored>
Run run_of(const Instruction& is) {
  const bool two = is.other.source >= 0;
  switch (is.operation) {
    case NORM: return norm<Stored>;
    case GATE: return is.from == SILU ? gated<Stored, SILU> : gated<Stored, GELU_TANH>;
    case ROTATE: return rotate<Stored>;
    case ADD: return two ? elementwise<Stored, ADD, true> : elementwise<Stored, ADD, false>;
    case SUBTRACT:
      return two ? elementwise<Stored, SUBTRACT, true> : elementwise<Stored, SUBTRACT, false>;
    case MULTIPLY:
      return two ? elementwise<Stored, MULTIPLY, true> : elementwise<Stored, MULTIPLY, false>;
    case NEGATE: return elementwise<Stored, NEGATE, false>;
  }
  if (is.from == FLOAT32) return copy<Float32, Stored>;
  return is.from == BFLOAT16 ? copy<Bfloat16, Stored> : copy<Float16, Stored>;
}

struct Pass {
  long rows;
  char* const* sources;
  const Step& step;
  int threads;
  long worth_sharing;

  Operand find(const View& view) const {
    char* memory = view.source < 0 ? nullptr : sources[view.source] + view.offset.at(rows);
    return {memory, view.row.at(rows), view.outer.at(rows), view.inner.at(rows)};
  }

  Task task(const Instruction& is) const {
    Task made{&is,     find(is.result), find(is.one), find(is.other), find(is.third),
              nullptr, nullptr};
    if (is.operation == STORE) made.result.memory = (char*)is.layer, made.places = step.stored;
    made.run = is.kind == FLOAT32    ? run_of<Float32>(is)
               : is.kind == BFLOAT16 ? run_of<Bfloat16>(is)
                                     : run_of<Float16>(is);
    return made;
  }

  void linear(const Instruction& is) const {
    const auto& layer = *(const Linear*)is.layer;
    tandem_linear(find(is.one).memory, rows, layer.inputs, layer.weights, layer.outputs, 1,
                  layer.grouping, layer.bias, nullptr, find(is.result).memory,
                  layer.stride, layer.kind, is.kind, layer.result_kind, layer.numbers < worth_sharing ? 1 : threads);
  }

  void attend(const Instruction& is) const {
    const auto& layer = *(const Attend*)is.layer;
    tandem_attend(find(is.one).memory, layer.keys, layer.values,
                  find(is.result).memory, rows, layer.heads, layer.shared, layer.size,
                  layer.value_size, step.pages, step.tables, step.prefixes, step.tails, step.slots,
                  step.page, layer.window, layer.scale, layer.cap, layer.sinks, is.kind, threads);
  }

  // Runs row-wise instructions that follow each other, for all rows.
  void by_rows(const Instruction* first, const Instruction* last) const {
    static thread_local std::vector<Task> tasks;
    tasks.clear();
    long numbers = 0;
    for (const Instruction* is = first; is < last; is++) {
      tasks.push_back(task(*is));
      numbers += is->outer * is->inner;
    }
    const Task *begin = tasks.data(), *end = begin + tasks.size();
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows > 1 && numbers * rows >= worth_sharing)
#endif
    for (long row = 0; row < rows; row++)
      for (const Task* task = begin; task < end; task++) task->run(*task, row);
  }
};

}  // namespace

extern "C" {

// Carries out `count` instructions on `rows` rows, whose numbers lie in the memory of `sources`. An
// instruction that reads or writes fewer than `worth_sharing` numbers is left to one thread.
void tandem_program(const Instruction* program, long count, long rows, char* const* sources,
                    const Step* step, int threads, long worth_sharing) {
  const Pass pass{rows, sources, *step, threads, worth_sharing};
  const Instruction* const end = program + count;
  while (program < end) {
    const Instruction* first = program;
    while (program < end && program->operation > ATTEND) program++;
    if (first < program) pass.by_rows(first, program);
    if (program == end) break;
    program->operation == LINEAR ? pass.linear(*program) : pass.attend(*program);
    program++;
  }
}
}
