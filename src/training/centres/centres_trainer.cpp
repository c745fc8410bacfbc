#include "training/centres/centres_trainer.h"

#include "core/float16.h"
#include "core/splitmix.h"
#include "training/centres/k_means.h"

#include <algorithm>
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
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[splitmix64(seed, i) % i]);
  return order;
}

/// Gather one head of all tokens, token i as vector places[i] of [tokens][head_dim].
void gather(Parallel& parallel, const KeptTokens& tokens, Side side, const CentresShape& shape, int32_t head,
            std::span<const int32_t> places, std::span<const int32_t> first_tokens, float* out) {
  const auto dim = static_cast<size_t>(shape.head_dim);
  parallel.run(static_cast<int32_t>(tokens.blocks().size()), [&](int32_t i) noexcept {
    const KeptTokens::Block& block = tokens.blocks()[static_cast<size_t>(i)];
    const int32_t* place = places.data() + first_tokens[static_cast<size_t>(i)];
    const uint16_t* from = block.side(side).data() + static_cast<size_t>(head) * dim;
    for (int32_t token = 0; token < block.tokens; ++token, from += width(shape)) {
      float* to = out + static_cast<size_t>(place[token]) * dim;
      std::transform(from, from + dim, to, from_float16);
    }
  });
}

}  // namespace

CentresTrainer::CentresTrainer(Allocator& allocator, Parallel& parallel, Training& backend,
                               const CentresTrainerOptions& options)
    : LayeredTrainer(allocator, parallel, backend, options, options.shape.key_centres > 0,
                     options.shape.value_centres > 0),
      rounds_(options.rounds) {}

void CentresTrainer::run(int32_t layer, const TrainingProgress& progress) {
  const KeptTokens& tokens = tokens_of(layer);
  const CentresShape& shape = result_.shape;
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
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (!trains(side)) continue;
    (side == Side::kKeys ? trained.key_residual : trained.value_residual) =
        train_side(tokens, side, seed_of(layer), part_of(side, progress), numbers->side(side));
  }
  check_layer_centres(shape, *numbers, layer, KVQ_E_INTERNAL);
  finish(layer, std::move(trained));
}

/// Find the centres of all heads, rounded as in files; returns the residual share of the squared norms.
double CentresTrainer::train_side(const KeptTokens& tokens, Side side, uint64_t seed, const TrainingProgress& progress,
                                  Vector<float>& centres) {
  const CentresShape& shape = result_.shape;
  const auto n = static_cast<int32_t>(tokens.tokens());
  const Vector<int32_t> places = shuffled(work_, n, seed);
  Vector<int32_t> first_tokens(work_);
  int32_t first = 0;
  for (const KeptTokens::Block& block : tokens.blocks()) {
    first_tokens.push_back(first);
    first += block.tokens;
  }
  Vector<float> numbers(static_cast<size_t>(n) * static_cast<size_t>(shape.head_dim), work_);
  const CentreVectors vectors{numbers.data(), n, shape.head_dim};
  const Owned<CentreSample> sample = backend_.make_centre_sample(work_, shape.centres(side), vectors);
  centres::KMeans k_means(work_, parallel_, *sample, shape.centres(side), vectors);
  Vector<float> of_head(work_);
  double left = 0.0;
  double all = 0.0;
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    gather(parallel_, tokens, side, shape, head, places, first_tokens, numbers.data());
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
