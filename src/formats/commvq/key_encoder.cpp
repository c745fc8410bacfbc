#include "formats/commvq/key_encoder.h"

#include "core/error.h"
#include "core/float16.h"
#include "formats/commvq/pair_length.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <tuple>
#include <utility>

namespace kvq {
namespace {

/// Candidate sums that pass through the stages together, so that a stage's codes are read once for all of them.
constexpr int32_t kBlockRows = 16;

/// Limit of a gain, in norms. Sums of centres are too short by a factor of about their squared cosine with the key;
/// beyond this limit, ‖k̂ − k‖² exceeds ‖k‖², the error of a zero.
constexpr double kMostNorms = 2.0;

size_t index(int32_t i, size_t stride) { return static_cast<size_t>(i) * stride; }

/// n_ab = ‖z_a + i·z_b‖² in double: small differences of distances depend on it.
float centre_norm(const float* a, const float* b, size_t plane) {
  double sum = 0.0;
  for (size_t j = 0; j < plane; ++j) {
    const double real = double{a[j]} - double{b[plane + j]};
    const double imaginary = double{a[plane + j]} + double{b[j]};
    sum += real * real + imaginary * imaginary;
  }
  return static_cast<float>(sum);
}

/// Fit of a key that was divided by `norm`, with residual `rest`. Products use the encoded numbers, in double and in
/// the order of pairs: the same on every processor.
KeyFit fit_of(const KeyPairs& key, int32_t group, float norm, const float* rest) {
  const float* imaginary_rest = rest + keys::padded(group);
  KeyFit fit;
  double left = 0.0;  // ⟨k, k / norm − u⟩
  for (int32_t j = 0; j < group; ++j) {
    const double real{key.real[index(j, key.pair_stride)]};
    const double imaginary{key.imaginary[index(j, key.pair_stride)]};
    fit.energy += real * real + imaginary * imaginary;
    left += real * double{rest[j]} + imaginary * double{imaginary_rest[j]};
  }
  fit.product = fit.energy / double{norm} - left;
  return fit;
}

}  // namespace

uint16_t KeyFit::gain() const {
  const double norm = std::sqrt(energy);
  const bool close = product > 0.0 && energy <= kMostNorms * norm * product;
  return to_float16(static_cast<float>(std::min(close ? energy / product : norm, double{kMaxFloat16})));
}

void keys::read_vector(const KeyPairs& key, int32_t group, float norm, float* vector) {
  const int32_t plane = padded(group);
  std::fill_n(vector, vector_floats(group), 0.0F);
  if (norm == 0.0F) return;
  for (int32_t j = 0; j < group; ++j) {
    vector[j] = key.real[index(j, key.pair_stride)] / norm;
    vector[plane + j] = key.imaginary[index(j, key.pair_stride)] / norm;
  }
}

void check_key_codes(int32_t codes, int32_t group) {
  if (codes < 2 || codes > 256 || !std::has_single_bit(static_cast<uint32_t>(codes))) {
    fail(KVQ_E_ARGUMENT, "keys have %d codes, but that must be a power of two from 2 to 256", codes);
  }
  if (group < 1) fail(KVQ_E_ARGUMENT, "keys have groups of %d pairs", group);
}

KeyPairs key_pairs(const CodebookShape& shape, const float* keys, int32_t head, int32_t group) {
  if (shape.keys.group < 1 || shape.head_dim % (2 * shape.keys.group) != 0) {
    fail(KVQ_E_ARGUMENT, "keys have groups of %d pairs, which do not divide the %d pairs of a head", shape.keys.group,
         shape.pairs());
  }
  const bool half = shape.pairing == KVQ_ROPE_HALF;
  const int32_t pair = group * shape.keys.group;
  const float* first = keys + index(head, static_cast<size_t>(shape.head_dim)) + (half ? pair : 2 * pair);
  return {first, first + (half ? shape.pairs() : 1), index(shape.kv_heads, static_cast<size_t>(shape.head_dim)),
          half ? size_t{1} : size_t{2}};
}

float key_norm(std::span<const float> channels) {
  double sum = 0.0;
  for (const float x : channels) sum += double{x} * double{x};
  return from_float16(to_float16(std::min(static_cast<float>(std::sqrt(sum)), kMaxFloat16)));
}

/// Origin of a row of a stage.
struct KeyEncoder::Step {
  uint8_t parent;  // row of the previous stage
  uint8_t a;
  uint8_t b;
};

struct KeyEncoder::Work {
  float* vectors;   // [kBlockRows] residuals
  float* next;      // [kBlockRows] residuals after the stage
  float* products;  // [kBlockRows][2 * width]
  float* costs;     // [width]
  float* energies;  // [kBlockRows] ‖residual‖², less that of the token's first row
  Step* steps;      // [stages][kBlockRows]
};

/// The best continuations of one token's rows, nearest first.
struct KeyEncoder::Candidates {
  struct Entry {
    float cost;
    int32_t row;
    int32_t a;
    int32_t b;

    bool operator<(const Entry& other) const {
      return std::tie(cost, row, a, b) < std::tie(other.cost, other.row, other.a, other.b);
    }
  };

  int32_t capacity;
  int32_t count = 0;
  std::array<Entry, kMaxBeam> entries;

  bool takes(float cost) const { return count < capacity || cost <= entries[static_cast<size_t>(count - 1)].cost; }
  void add(const Entry& entry) {
    if (count == capacity) {
      if (!(entry < entries[static_cast<size_t>(count - 1)])) return;
      --count;
    }
    auto i = static_cast<size_t>(count++);
    for (; i > 0 && entry < entries[i - 1]; --i) entries[i] = entries[i - 1];
    entries[i] = entry;
  }
  /// Puts `entry` first, in place of the last if it is not among the best.
  void put_first(const Entry& entry) {
    size_t i = 0;
    while (i + 1 < static_cast<size_t>(count) && (entry < entries[i] || entries[i] < entry)) ++i;
    for (; i > 0; --i) entries[i] = entries[i - 1];
    entries[0] = entry;
  }
};

KeyEncoder::KeyEncoder(Allocator& allocator, int32_t stages, int32_t codes, int32_t group, std::span<const float> z,
                       const keys::KeyKernels& kernels)
    : kernels_(&kernels),
      stages_(stages),
      codes_(codes),
      group_(group),
      width_(keys::padded(codes)),
      planes_(allocator),
      norms_(allocator),
      rows_(allocator),
      bounds_(allocator) {
  check_key_codes(codes, group);
  if (stages < 1) fail(KVQ_E_ARGUMENT, "keys have %d stages of codes", stages);
  const size_t all = index(stages * codes, static_cast<size_t>(group));
  if (z.size() != 2 * all) fail(KVQ_E_ARGUMENT, "there are %zu numbers for %zu codes of keys", z.size(), all);

  const auto width = static_cast<size_t>(width_);
  const auto plane = static_cast<size_t>(keys::padded(group));
  planes_.resize(index(stages * group, 2 * width));
  norms_.resize(index(stages * codes, width), HUGE_VALF);
  rows_.resize(index(stages * codes, 2 * plane));
  const float* from = z.data();
  for (int32_t c = 0; c < stages * codes; ++c) {
    float* row = rows_.data() + index(c, 2 * plane);
    float* column = planes_.data() + index(c / codes * group, 2 * width) + c % codes;
    for (size_t j = 0; j < static_cast<size_t>(group); ++j, column += 2 * width) {
      row[j] = *from++;
      row[plane + j] = *from++;
      column[0] = 2.0F * row[j];
      column[width] = 2.0F * row[plane + j];
    }
  }
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (int32_t b = 0; b < codes; ++b) {
      float* to = norms_.data() + index(stage * codes + b, width);
      for (int32_t a = 0; a < codes; ++a) to[a] = centre_norm(code(stage, a), code(stage, b), plane);
    }
  }
  add_bounds();
}

void KeyEncoder::add_bounds() {
  const auto plane = static_cast<size_t>(keys::padded(group_));
  bounds_.resize(plane);
  for (int32_t stage = 0; stage < stages_; ++stage) {
    for (size_t j = 0; j < static_cast<size_t>(group_); ++j) {
      float largest = 0.0F;
      for (int32_t c = 0; c < codes_; ++c) {
        largest = std::max(largest, pair_length(code(stage, c)[j], code(stage, c)[plane + j]));
      }
      bounds_[j] += largest;
    }
  }
}

size_t KeyEncoder::work_bytes() const {
  const size_t row = 2 * keys::vector_floats(group_) + 2 * static_cast<size_t>(width_) + 1;
  return sizeof(float) * (index(kBlockRows, row) + static_cast<size_t>(width_)) +
         sizeof(Step) * index(stages_, kBlockRows);
}

void KeyEncoder::encode(const KeyPairs& keys, const float* norms, int32_t n, int32_t beam, std::span<std::byte> work,
                        uint8_t* indices, KeyFit* fits) const noexcept {
  const size_t vector = keys::vector_floats(group_);
  auto* floats = reinterpret_cast<float*>(work.data());
  const auto take = [&floats](size_t count) { return std::exchange(floats, floats + count); };
  Work parts{};
  parts.vectors = take(kBlockRows * vector);
  parts.next = take(kBlockRows * vector);
  parts.products = take(index(kBlockRows, 2 * static_cast<size_t>(width_)));
  parts.costs = take(static_cast<size_t>(width_));
  parts.energies = take(kBlockRows);
  parts.steps = reinterpret_cast<Step*>(floats);

  const int32_t block = kBlockRows / beam;
  for (int32_t first = 0; first < n; first += block) {
    const int32_t tokens = std::min(block, n - first);
    for (int32_t t = 0; t < tokens; ++t) {
      const float norm = norms != nullptr ? norms[first + t] : 1.0F;
      keys::read_vector(keys.from(first + t), group_, norm, parts.vectors + index(t, vector));
    }
    const int32_t live = search(tokens, beam, parts);
    for (int32_t t = 0; t < tokens; ++t) {
      uint8_t* to = indices + index(first + t, 2 * static_cast<size_t>(stages_));
      if (norms != nullptr && norms[first + t] == 0.0F) {
        std::fill_n(to, 2 * stages_, uint8_t{0});
        continue;
      }
      const float* energies = parts.energies + t * live;
      auto row = static_cast<int32_t>(std::min_element(energies, energies + live) - parts.energies);
      if (fits != nullptr) {
        const float norm = norms != nullptr ? norms[first + t] : 1.0F;
        fits[first + t].add(fit_of(keys.from(first + t), group_, norm, parts.vectors + index(row, vector)));
      }
      for (int32_t stage = stages_ - 1; stage >= 0; --stage) {
        const Step& taken = parts.steps[stage * kBlockRows + row];
        to[2 * stage] = taken.a;
        to[2 * stage + 1] = taken.b;
        row = taken.parent;
      }
    }
  }
}

/// Runs all stages. Returns the number of rows per token at the end, and leaves residuals in `vectors`.
int32_t KeyEncoder::search(int32_t tokens, int32_t beam, Work& work) const {
  std::fill_n(work.energies, tokens, 0.0F);
  int32_t live = 1;
  for (int32_t stage = 0; stage < stages_; ++stage) {
    live = step(stage, tokens, live, beam, work);
    std::swap(work.vectors, work.next);
  }
  return live;
}

/// One stage: from `live` rows of each token to at most `beam`, whose number it returns. The first row always takes the
/// nearest centre at every stage: codes are trained on its residuals, and with discrete data a sum that looks better
/// midway can end worse.
int32_t KeyEncoder::step(int32_t stage, int32_t tokens, int32_t live, int32_t beam, const Work& work) const {
  const size_t vector = keys::vector_floats(group_);
  kernels_->multiply_codes(planes(stage), group_, width_, work.vectors, tokens * live, work.products);
  Step* steps = work.steps + stage * kBlockRows;
  std::array<float, kBlockRows> energies;
  int32_t rows = 0;
  for (int32_t t = 0; t < tokens; ++t) {
    Candidates best{beam, 0, {}};
    add_candidates(stage, t * live, work, best);
    const Candidates::Entry greedy = best.entries[0];
    for (int32_t row = t * live + 1; row < (t + 1) * live; ++row) add_candidates(stage, row, work, best);
    best.put_first(greedy);
    for (int32_t i = 0; i < best.count; ++i, ++rows) {
      const auto& [cost, row, a, b] = best.entries[static_cast<size_t>(i)];
      steps[rows] = {static_cast<uint8_t>(row), static_cast<uint8_t>(a), static_cast<uint8_t>(b)};
      energies[static_cast<size_t>(rows)] = cost - greedy.cost;
      kernels_->subtract_centre(work.vectors + index(row, vector), code(stage, a), code(stage, b), keys::padded(group_),
                                work.next + index(rows, vector));
    }
  }
  std::copy_n(energies.begin(), rows, work.energies);
  return rows / tokens;
}

/// Adds the best centres for one row. A centre among the best `capacity` has an a among the best `capacity` a.
void KeyEncoder::add_candidates(int32_t stage, int32_t row, const Work& work, Candidates& best) const {
  const auto width = static_cast<size_t>(width_);
  const float* products = work.products + index(row, 2 * width);
  kernels_->nearest_second(products, norms(stage), codes_, width_, work.costs);
  Candidates first{std::min(best.capacity, codes_), 0, {}};
  for (int32_t a = 0; a < codes_; ++a) {
    if (first.takes(work.costs[a])) first.add({work.costs[a], row, a, 0});
  }
  for (int32_t i = 0; i < first.count; ++i) {
    const int32_t a = first.entries[static_cast<size_t>(i)].a;
    if (!best.takes(work.energies[row] + work.costs[a])) return;
    for (int32_t b = 0; b < codes_; ++b) {
      const float cost =
          (norms(stage)[index(b, width) + static_cast<size_t>(a)] - products[width + static_cast<size_t>(b)]) -
          products[a];
      if (best.takes(work.energies[row] + cost)) best.add({work.energies[row] + cost, row, a, b});
    }
  }
}

}  // namespace kvq
