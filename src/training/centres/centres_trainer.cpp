#include "training/centres/centres_trainer.h"

#include "core/float16.h"
#include "core/splitmix.h"
#include "formats/layer_scales.h"
#include "training/centres/k_means.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace kvq {
namespace {

size_t width(const CentresShape& shape) {
  return static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.head_dim);
}

/// The numbers 0 … n − 1 in random order.
Vector<int32_t> shuffled(Allocator& allocator, int32_t n, uint64_t seed) {
  Vector<int32_t> order(static_cast<size_t>(n), allocator);
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[splitmix64_below(i, seed, i)]);
  return order;
}

/// Gather one head of all tokens, scaled, token i as vector places[i] of [tokens][head_dim].
void gather(Parallel& parallel, const KeptTokens& tokens, Side side, const CentresShape& shape, int32_t head,
            const LayerCentres& scales, std::span<const int32_t> places, std::span<const int32_t> first_tokens,
            float* out) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto of_head = [head, dim](const Vector<float>& numbers) -> const float* {
    return numbers.empty() ? nullptr : numbers.data() + static_cast<size_t>(head) * dim;
  };
  const float* factors = of_head(side == Side::kKeys ? scales.key_scales : scales.value_scales);
  const float* offsets = side == Side::kKeys ? nullptr : of_head(scales.value_offsets);
  parallel.run(static_cast<int32_t>(tokens.blocks().size()), [&](int32_t i) noexcept {
    const KeptTokens::Block& block = tokens.blocks()[static_cast<size_t>(i)];
    const int32_t* place = places.data() + first_tokens[static_cast<size_t>(i)];
    const uint16_t* from = block.side(side).data() + static_cast<size_t>(head) * dim;
    for (int32_t token = 0; token < block.tokens; ++token, from += width(shape)) {
      float* to = out + static_cast<size_t>(place[token]) * dim;
      std::transform(from, from + dim, to, from_float16);
      for (size_t c = 0; offsets != nullptr && c < dim; ++c) to[c] -= offsets[c];
      for (size_t c = 0; factors != nullptr && c < dim; ++c) to[c] *= factors[c];
    }
  });
}

/// Variances and means of a head's channels, from `first` of a token's `width` on.
void moments(const KeptTokens& tokens, Side side, size_t width, size_t first, std::span<double> variances,
             std::span<double> means) {
  std::ranges::fill(variances, 0.0);
  std::ranges::fill(means, 0.0);
  const auto n = static_cast<double>(tokens.tokens());
  const auto for_each_row = [&](const auto& use) {
    for (const KeptTokens::Block& block : tokens.blocks()) {
      const uint16_t* row = block.side(side).data() + first;
      for (int32_t token = 0; token < block.tokens; ++token, row += width) use(row);
    }
  };
  for_each_row([&](const uint16_t* row) {
    for (size_t i = 0; i < means.size(); ++i) means[i] += double{from_float16(row[i])} / n;
  });
  for_each_row([&](const uint16_t* row) {
    for (size_t i = 0; i < means.size(); ++i) {
      const double difference = double{from_float16(row[i])} - means[i];
      variances[i] += difference * difference / n;
    }
  });
}

}  // namespace

CentresTrainer::CentresTrainer(Allocator& allocator, Parallel& parallel, Training& backend,
                               const CentresTrainerOptions& options)
    : LayeredTrainer(allocator, parallel, backend, options,
                     options.shape.key_centres > 0 || options.shape.key_scales != 0,
                     options.shape.value_centres > 0 || options.shape.value_scales != 0),
      rounds_(options.rounds),
      rope_(work_),
      fold_(options.fold),
      powers_of_two_(options.powers_of_two),
      sources_(work_) {
  rope_.set(options.shape.rope, options.shape.head_dim, options.rotary_dim, options.rope_base, options.inv_freq);
  if (!options.shape.has_scales()) return;
  sources_.reserve(static_cast<size_t>(options.shape.n_layers));
  for (int32_t i = 0; i < options.shape.n_layers; ++i) sources_.emplace_back(work_);
}

bool CentresTrainer::scales(Side side) const {
  return (side == Side::kKeys ? result_.shape.key_scales : result_.shape.value_scales) != 0;
}

void CentresTrainer::require_scales() const {
  if (result_.shape.has_scales()) return;
  fail(KVQ_E_STATE, "the trainer finds no scales: its key_scales and value_scales are 0");
}

void CentresTrainer::add_queries(int32_t layer, int32_t n, int32_t q_heads, const void* queries, kvq_dtype dtype) {
  require_scales();
  require_unfinished(layer);
  const CentresShape& shape = result_.shape;
  const size_t dim = static_cast<size_t>(shape.head_dim);
  const size_t of_kv_head = static_cast<size_t>(q_heads / shape.kv_heads) * dim;
  Vector<double> sums(width(shape), 0.0, work_);
  for_each_finite(queries, dtype, static_cast<size_t>(n) * static_cast<size_t>(q_heads) * dim, false, "q",
                  [&](size_t i, float number) {
                    const size_t head = i % (static_cast<size_t>(q_heads) * dim) / of_kv_head;
                    sums[head * dim + i % dim] += double{number} * double{number};
                  });
  Vector<double>& queried = sources_[static_cast<size_t>(layer)].queries;
  queried.resize(sums.size(), 0.0);
  std::ranges::transform(queried, sums, queried.begin(), std::plus());
}

void CentresTrainer::add_weights(int32_t layer, const kvq_attention_weights& weights) {
  require_scales();
  require_unfinished(layer);
  sources_[static_cast<size_t>(layer)].weights = centres::energies_of(work_, parallel_, result_.shape, weights);
}

void CentresTrainer::run(int32_t layer, const TrainingProgress& progress) {
  const CentresShape& shape = result_.shape;
  const KeptTokens& tokens = shape.has_centres() ? tokens_of(layer) : any_tokens_of(layer);
  const int64_t n = tokens.tokens();
  if (n > INT32_MAX) {
    fail(KVQ_E_ARGUMENT, "layer %d has %lld tokens, train on at most %d", layer, static_cast<long long>(n), INT32_MAX);
  }
  const int32_t most = std::max(shape.key_centres, shape.value_centres);
  if (n < most) {
    fail(KVQ_E_ARGUMENT, "layer %d has %lld tokens, too few for %d centres", layer, static_cast<long long>(n), most);
  }
  const auto numbers = std::allocate_shared<LayerCentres>(StlAllocator<LayerCentres>(allocator_), allocator_);
  ModelCentres::Layer trained{.numbers = numbers, .tokens = n};
  if (scales(Side::kKeys)) trained.key_spread = find_scales(layer, Side::kKeys, tokens, *numbers);
  if (scales(Side::kValues)) trained.value_spread = find_scales(layer, Side::kValues, tokens, *numbers);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (shape.centres(side) == 0) continue;
    (side == Side::kKeys ? trained.key_residual : trained.value_residual) =
        train_side(tokens, side, seed_of(layer), part_of(side, progress), *numbers);
  }
  check_layer_centres(shape, *numbers, layer, KVQ_E_INTERNAL);
  finish(layer, std::move(trained));
  if (!sources_.empty()) sources_[static_cast<size_t>(layer)] = Sources(work_);
}

/// What is known of a head's channels; `offsets`: receives their offsets.
ChannelEnergies CentresTrainer::energies_of(int32_t layer, Side side, const KeptTokens& tokens, int32_t head,
                                            std::span<double> offsets) {
  const auto dim = static_cast<size_t>(result_.shape.head_dim);
  const size_t first = static_cast<size_t>(head) * dim;
  const bool keys = side == Side::kKeys;
  const Sources& sources = sources_[static_cast<size_t>(layer)];
  ChannelEnergies energies(work_, dim);
  const auto copy = [first](const Vector<double>& from, std::span<double> to) {
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(first), to.size(), to.begin());
  };
  const Vector<double>& stored = keys ? sources.weights.keys : sources.weights.values;
  if (tokens.tokens() > 0) {
    moments(tokens, side, width(result_.shape), first, energies.stored, offsets);
  } else if (!stored.empty()) {
    copy(stored, energies.stored);
    copy(keys ? sources.weights.key_offsets : sources.weights.value_offsets, offsets);
  } else {
    fail(KVQ_E_STATE, "layer %d has neither tokens nor %s to find scales of %s by", layer, keys ? "k_proj" : "v_proj",
         keys ? "keys" : "values");
  }
  const Vector<double>& read = !keys                     ? sources.weights.outputs
                               : sources.queries.empty() ? sources.weights.queries
                                                         : sources.queries;
  if (read.empty()) {
    energies.read.clear();
  } else {
    copy(read, energies.read);
  }
  if (!keys) {
    // Pages store nothing of values' offsets, unless weights hold the scales alone.
    for (size_t i = 0; fold_ && i < dim; ++i) energies.offsets[i] = offsets[i] * offsets[i];
    return energies;
  }
  for (int32_t pair = 0; pair < rope_.pairs(); ++pair) {
    const double left = left_by_page_mean(double{rope_.inv_freq[static_cast<size_t>(pair)]});
    const int32_t channels[] = {rope_.first_channel(pair), rope_.second_channel(pair)};
    for (const int32_t channel : channels) {
      const double offset = offsets[static_cast<size_t>(channel)];
      energies.offsets[static_cast<size_t>(channel)] = offset * offset * left;
    }
    energies.join(channels[0], channels[1]);
  }
  return energies;
}

ChannelSpread CentresTrainer::find_scales(int32_t layer, Side side, const KeptTokens& tokens, LayerCentres& numbers) {
  const CentresShape& shape = result_.shape;
  const auto heads = static_cast<size_t>(shape.kv_heads);
  const auto dim = static_cast<size_t>(shape.head_dim);
  const bool keys = side == Side::kKeys;
  ChannelSpread spread;
  Vector<ChannelEnergies> energies(work_);
  energies.reserve(heads);
  Vector<double> offsets(dim, 0.0, work_);
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    energies.push_back(energies_of(layer, side, tokens, head, offsets));
    for (size_t i = 0; i < dim; ++i) {
      const double stored = energies.back().stored[i];
      if (stored > 0.0)
        spread.largest_offset = std::max(spread.largest_offset, std::abs(offsets[i]) / std::sqrt(stored));
      if (keys) continue;
      const double offset = fold_ ? 0.0 : std::clamp(offsets[i], -double{kMaxValueOffset}, double{kMaxValueOffset});
      numbers.value_offsets.push_back(from_float16(to_float16(static_cast<float>(offset))));
    }
  }
  Vector<float>& scales = keys ? numbers.key_scales : numbers.value_scales;
  ChannelEnergies all(energies.front());
  for (size_t head = 1; head < heads; ++head) all.add(energies[head]);
  spread.noise = spread.scaled_noise = 0.0;
  for (size_t head = 0; head < heads; ++head) {
    const bool shared = keys && fold_ && sources_[static_cast<size_t>(layer)].weights.normed;
    const Vector<float> of_head = kvq::find_scales(work_, shared ? all : energies[head], powers_of_two_);
    scales.insert(scales.end(), of_head.begin(), of_head.end());
    const auto [least, largest] = std::ranges::minmax(of_head);
    spread.imbalance = std::max(spread.imbalance, double{largest} / double{least});
    spread.noise += noise_of(energies[head], {}) / static_cast<double>(heads);
    spread.scaled_noise += noise_of(energies[head], of_head) / static_cast<double>(heads);
  }
  return spread;
}

/// Find the centres of all heads, rounded as in files; returns the residual share of the squared norms.
double CentresTrainer::train_side(const KeptTokens& tokens, Side side, uint64_t seed, const TrainingProgress& progress,
                                  LayerCentres& numbers) {
  const CentresShape& shape = result_.shape;
  Vector<float>& centres = numbers.side(side);
  const auto n = static_cast<int32_t>(tokens.tokens());
  const Vector<int32_t> places = shuffled(work_, n, seed);
  Vector<int32_t> first_tokens(work_);
  int32_t first = 0;
  for (const KeptTokens::Block& block : tokens.blocks()) {
    first_tokens.push_back(first);
    first += block.tokens;
  }
  Vector<float> gathered(size(n, shape.head_dim), work_);
  const CentreVectors vectors{gathered.data(), n, shape.head_dim};
  const Owned<CentreSample> sample = backend_.make_centre_sample(work_, shape.centres(side), vectors);
  centres::KMeans k_means(work_, parallel_, *sample, shape.centres(side), vectors);
  Vector<float> of_head(work_);
  double left = 0.0;
  double all = 0.0;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    gather(parallel_, tokens, side, shape, head, numbers, places, first_tokens, gathered.data());
    sample->reload();
    centres::KMeansOptions options;
    options.seed = seed + static_cast<uint64_t>(head);
    if (rounds_ > 0) options.rounds = rounds_;
    const TrainingProgress part =
        progress.part(static_cast<double>(head) / shape.kv_heads, (head + 1.0) / shape.kv_heads);
    if (!k_means.find(options, part, of_head)) fail(KVQ_E_CANCELLED, "the progress hook asked to stop");
    for (float& each : of_head) each = from_float16(to_float16(each));
    left += k_means.error(of_head);
    all += k_means.energy();
    centres.insert(centres.end(), of_head.begin(), of_head.end());
  }
  return all > 0.0 ? left / all : 0.0;
}

}  // namespace kvq
