#include "training/commvq/value_trainer.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/splitmix.h"
#include "formats/commvq/model_codebook.h"
#include "formats/commvq/value_encoder.h"
#include "training/commvq/value_alternation.h"
#include "training/commvq/value_network_trainer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvq {
namespace {

void check(const CodebookShape& shape, std::span<const float> values, const ValueTrainingOptions& options) {
  if (shape.kv_heads < 1 || shape.head_dim < 1) {
    fail(KVQ_E_ARGUMENT, "%d KV heads of %d channels have no values", shape.kv_heads, shape.head_dim);
  }
  if (shape.values.bits < 1 || shape.values.bits > 2) {
    fail(KVQ_E_ARGUMENT, "codes for values have 1 or 2 bits a scalar, not %d", shape.values.bits);
  }
  const size_t channels = static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.head_dim);
  if (values.size() % channels != 0) {
    fail(KVQ_E_ARGUMENT, "%zu numbers are no tokens of %zu channels", values.size(), channels);
  }
  if (values.size() / channels < 2 || options.tokens < 2) {
    fail(KVQ_E_ARGUMENT, "training codes for values takes two tokens or more: one to train, one to judge");
  }
  if (options.rounds < 1 || options.joint_rounds < 0) {
    fail(KVQ_E_ARGUMENT, "%d rounds and %d joint ones are too few", options.rounds, options.joint_rounds);
  }
  if (shape.values.proposal == ValueProposal::kNetwork && shape.values.hidden < 1) {
    fail(KVQ_E_ARGUMENT, "a network needs hidden units, not %d", shape.values.hidden);
  }
  if (options.network_rounds < 1) fail(KVQ_E_ARGUMENT, "%d rounds of a network are too few", options.network_rounds);
  if (!(options.ridge > 0) || !(options.proposal_ridge > 0)) fail(KVQ_E_ARGUMENT, "a ridge must be positive");
  if (!(options.held_out > 0 && options.held_out < 1)) fail(KVQ_E_ARGUMENT, "held_out must be between 0 and 1");
  const auto finite = [](float x) { return std::isfinite(x); };
  const auto bad = std::find_if_not(values.begin(), values.end(), finite);
  if (bad != values.end()) {
    fail(KVQ_E_ARGUMENT, "the value at index %zu is not finite", static_cast<size_t>(bad - values.begin()));
  }
}

/// Chosen tokens in runs of neighbours: the last `held_out` evaluate, the others train.
struct TokenSplit {
  explicit TokenSplit(Allocator& allocator) : tokens(allocator) {}

  Vector<size_t> tokens;
  size_t held_out = 0;

  size_t training() const { return tokens.size() - held_out; }
};

TokenSplit split_tokens(Allocator& allocator, size_t tokens, size_t at_most, double held_out, uint64_t seed) {
  // Neighbours are similar: a held-out token between two of training would look too good.
  constexpr size_t kRun = 64;
  const size_t length = std::clamp<size_t>(tokens / 16, 1, kRun);
  Vector<size_t> runs((tokens + length - 1) / length, allocator);
  std::iota(runs.begin(), runs.end(), size_t{0});
  uint64_t drawn = 0;
  for (size_t i = runs.size(); i > 1; --i) std::swap(runs[i - 1], runs[splitmix64_below(i, seed, drawn++)]);

  TokenSplit split(allocator);
  const size_t n = std::min(tokens, at_most);
  split.tokens.reserve(n);
  for (const size_t run : runs) {
    const size_t end = std::min(tokens, (run + 1) * length);
    for (size_t t = run * length; t < end && split.tokens.size() < n; ++t) split.tokens.push_back(t);
  }
  split.held_out = std::clamp<size_t>(static_cast<size_t>(held_out * static_cast<double>(n)), 1, n - 1);
  return split;
}

/// Per channel the mean |v|, with a floor so that channels that are always zero can be divided by it.
void mean_magnitudes(std::span<const float> values, size_t channels, Vector<float>& out) {
  constexpr double kFloor = 1e-3;  // of the mean over channels: a dead channel must not dominate
  const size_t tokens = values.size() / channels;
  Vector<double> sums(channels, out.get_allocator());
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < channels; ++c) sums[c] += std::fabs(static_cast<double>(values[t * channels + c]));
  }
  const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(channels);
  const double least = mean > 0 ? kFloor * mean : static_cast<double>(tokens);
  out.resize(channels);
  for (size_t c = 0; c < channels; ++c) {
    out[c] = std::max(static_cast<float>(std::max(sums[c], least) / static_cast<double>(tokens)), 0x1p-60F);
  }
}

/// Unit vectors of v / channel_scale: [split.tokens][width]. `values` starts at the vector's first channel.
Vector<float> unit_vectors(Allocator& allocator, const TokenSplit& split, const float* values, size_t stride,
                           std::span<const float> channel_scale) {
  const size_t width = channel_scale.size();
  Vector<float> units(size(split.tokens.size(), width), allocator);
  for (size_t i = 0; i < split.tokens.size(); ++i) {
    const float* vector = values + split.tokens[i] * stride;
    float* unit = units.data() + i * width;
    double sum = 0;
    for (size_t c = 0; c < width; ++c) {
      unit[c] = vector[c] / channel_scale[c];
      sum += static_cast<double>(unit[c]) * unit[c];
    }
    const auto inverse = static_cast<float>(sum > 0 ? 1 / std::sqrt(sum) : 0);
    for (size_t c = 0; c < width; ++c) unit[c] *= inverse;
  }
  return units;
}

/// Counts rounds for the caller and asks whether to continue.
class Progress {
 public:
  Progress(const CodebookShape& shape, const ValueTrainingOptions& options, const ValueTrainingCallback& callback)
      : callback_(callback) {
    const int32_t joint = shape.values.bits > 1 ? options.joint_rounds : 0;
    const bool network = shape.values.proposal == ValueProposal::kNetwork;
    rounds_ = shape.vectors() * (network ? options.network_rounds : shape.values.bits * options.rounds + joint);
  }

  bool next(double error) {
    ++round_;
    return callback_.call == nullptr || callback_.call(callback_.user, {round_, rounds_, error});
  }

 private:
  ValueTrainingCallback callback_;
  int32_t rounds_ = 0;
  int32_t round_ = 0;
};

/// Trains the code of one vector by least squares.
class VectorTrainer {
 public:
  VectorTrainer(Allocator& allocator, size_t width, const ValueTrainingOptions& options, Progress& progress)
      : allocator_(allocator), width_(width), options_(options), progress_(progress) {}

  /// Train stage by stage on residuals, then all stages together; nothing if cancelled.
  std::optional<ValueDraft> train(ValueSample& units, size_t bits) {
    std::optional<ValueDraft> all = train_stage(units);
    while (all && all->bits() < bits) {
      units.encode(all->code());
      double norm = 0;
      const Owned<ValueSample> residuals = units.residuals(allocator_, all->code(), norm);
      const std::optional<ValueDraft> stage = train_stage(*residuals);
      if (!stage) return {};
      append(*all, *stage, static_cast<float>(norm));
      ValueAlternation joint(allocator_, ridges_, units, *all);
      if (!alternate(joint, *all, options_.joint_rounds, false)) return {};
    }
    return all;
  }

 private:
  std::optional<ValueDraft> train_stage(ValueSample& targets) {
    ValueDraft stage(allocator_, width_, width_);
    ValueAlternation alternation(allocator_, ridges_, targets, stage);
    alternation.start_from_signs();
    if (!alternate(alternation, stage, options_.rounds, true)) return {};
    return stage;
  }

  /// Add a stage, trained on the residual divided by `norm`.
  static void append(ValueDraft& all, const ValueDraft& stage, float norm) {
    for (const float each : stage.codes) all.codes.push_back(norm * each);
    for (size_t c = 0; c < all.width(); ++c) all.offset[c] += norm * stage.offset[c];
    all.proposal.insert(all.proposal.end(), stage.proposal.begin(), stage.proposal.end());
    all.proposal_bias.insert(all.proposal_bias.end(), stage.proposal_bias.begin(), stage.proposal_bias.end());
  }

  /// Leaves the best draft of all rounds in `draft`; false if cancelled. Joint rounds do not change the proposal: bits
  /// from a search over several stages would fit it worse than those of its own stage.
  bool alternate(ValueAlternation& alternation, ValueDraft& draft, int32_t rounds, bool proposes) {
    double least = alternation.encode();
    ValueDraft best = draft;
    for (int32_t round = 0; round < rounds; ++round) {
      if (proposes) alternation.solve_proposal();
      alternation.solve_codes();
      const double error = alternation.encode();
      if (error < least) {
        least = error;
        best = draft;
      }
      if (!progress_.next(error)) return false;
    }
    draft = best;
    return true;
  }

  Allocator& allocator_;
  size_t width_;
  const ValueTrainingOptions& options_;
  AlternationOptions ridges_{options_.ridge, options_.proposal_ridge};
  Progress& progress_;
};

/// Squared error and squared norm of the held-out tokens of one vector.
std::pair<double, double> judge(Allocator& allocator, Parallel& parallel, const ValueCode& code,
                                const TokenSplit& split, const float* values, size_t stride) {
  const auto width = static_cast<size_t>(code.width);
  Vector<float> vectors(split.held_out * width, allocator);
  for (size_t i = 0; i < split.held_out; ++i) {
    std::copy_n(values + split.tokens[split.training() + i] * stride, width, vectors.data() + i * width);
  }
  const ValueEncoder encoder(allocator, parallel, code);
  Vector<uint32_t> packed(split.held_out * code.words(), allocator);
  Vector<uint16_t> scales(split.held_out, allocator);
  encoder.encode(allocator, parallel, vectors.data(), width, split.held_out, packed.data(), scales.data());
  Vector<float> decoded(width, allocator);
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < split.held_out; ++i) {
    decode_value(code, packed.data() + i * code.words(), from_float16(scales[i]), decoded.data());
    for (size_t c = 0; c < width; ++c) {
      const double v = vectors[i * width + c];
      error += (decoded[c] - v) * (decoded[c] - v);
      norm += v * v;
    }
  }
  return {error, norm};
}

/// Train the network and the code of one vector; returns those of the best round, nothing if cancelled.
std::optional<NetworkDraft> train_network(Allocator& allocator, Parallel& parallel, const NetworkLayout& layout,
                                          ValueSample& sample, const UnitVectors& units,
                                          const ValueTrainingOptions& options, Progress& progress) {
  NetworkDraft draft(allocator, layout);
  start_from_components(allocator, sample, options.seed, draft);
  NetworkTrainer trainer(allocator, parallel, {.rounds = options.network_rounds, .seed = options.seed}, units, draft);
  double least = trainer.held_out_error();
  NetworkDraft best = draft;
  for (int32_t round = 0; round < options.network_rounds; ++round) {
    trainer.run_round();
    const double error = trainer.held_out_error();
    if (error < least) {
      least = error;
      best.parameters = draft.parameters;
    }
    if (!progress.next(error)) return {};
  }
  draft.parameters = best.parameters;
  trainer.normalize_code();
  return draft;
}

void append_to(Vector<float>& all, std::span<const float> part) { all.insert(all.end(), part.begin(), part.end()); }

void append_to(LayerCodebook& codebook, const ValueDraft& draft) {
  append_to(codebook.value_codes, draft.codes);
  append_to(codebook.value_offset, draft.offset);
  append_to(codebook.proposal, draft.proposal);
  append_to(codebook.proposal_bias, draft.proposal_bias);
}

void append_to(LayerCodebook& codebook, const NetworkDraft& draft) {
  const ValueNetwork network = draft.network();
  append_to(codebook.value_codes, draft.part(NetworkPart::kCodes));
  codebook.value_offset.resize(codebook.value_offset.size() + network.width(), 0.0F);
  append_to(codebook.network_norm_gain, network.norm_gain);
  append_to(codebook.network_norm_bias, network.norm_bias);
  append_to(codebook.network_first, network.first);
  append_to(codebook.network_first_bias, network.first_bias);
  append_to(codebook.network_second, network.second);
  append_to(codebook.network_second_bias, network.second_bias);
}

/// Train the next vector's code and append it; false if cancelled.
bool train_vector(Allocator& allocator, Parallel& parallel, Training& backend, const CodebookShape& shape,
                  const UnitVectors& units, const ValueTrainingOptions& options, Progress& progress,
                  LayerCodebook& codebook) {
  const Owned<ValueSample> sample = backend.make_value_sample(allocator, units);
  const auto bits = static_cast<size_t>(shape.code_bits());
  const auto append = [&](const auto& draft) {
    if (draft) append_to(codebook, *draft);
    return draft.has_value();
  };
  if (shape.values.proposal == ValueProposal::kLinear) {
    return append(VectorTrainer(allocator, units.width, options, progress).train(*sample, bits));
  }
  const NetworkLayout layout{units.width, static_cast<size_t>(shape.values.hidden), bits};
  return append(train_network(allocator, parallel, layout, *sample, units, options, progress));
}

}  // namespace

std::optional<double> train_values(Allocator& allocator, Parallel& parallel, Training& backend,
                                   const CodebookShape& shape, std::span<const float> values,
                                   const ValueTrainingOptions& options, const ValueTrainingCallback& callback,
                                   LayerCodebook& codebook) {
  check(shape, values, options);
  const size_t channels = static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.head_dim);
  const auto width = static_cast<size_t>(shape.width());
  const TokenSplit split = split_tokens(allocator, values.size() / channels, static_cast<size_t>(options.tokens),
                                        options.held_out, options.seed);
  LayerCodebook trained(allocator);
  mean_magnitudes(values, channels, trained.channel_scale);
  Progress progress(shape, options, callback);
  double error = 0;
  double norm = 0;
  for (int32_t vector = 0; vector < shape.vectors(); ++vector) {
    const size_t first = static_cast<size_t>(vector) * width;
    const auto channel_scale = std::span<const float>(trained.channel_scale).subspan(first, width);
    const UnitVectors units{unit_vectors(allocator, split, values.data() + first, channels, channel_scale), width,
                            split.held_out};
    if (!train_vector(allocator, parallel, backend, shape, units, options, progress, trained)) return {};
    const auto [vector_error, vector_norm] =
        judge(allocator, parallel, value_code(shape, trained, vector), split, values.data() + first, channels);
    error += vector_error;
    norm += vector_norm;
  }
  for_each_value_array(shape,
                       [&](const CodebookArray& array) { std::swap(codebook.*array.numbers, trained.*array.numbers); });
  return norm > 0 ? error / norm : 0.0;
}

}  // namespace kvq
