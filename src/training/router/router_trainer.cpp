#include "training/router/router_trainer.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/tensor.h"
#include "training/kept_tokens.h"
#include "training/router/group_training.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq {
namespace {

double true_bits(const FormatPair& expert, int32_t head_dim, const Trained* trained) {
  const PageFormat format(expert.keys, expert.values, head_dim, trained);
  return 8.0 * static_cast<double>(format.bytes()) / (2.0 * kPageSlots * head_dim);
}

/// Throws unless all numbers of a tensor are finite, in FP16 if they will be stored.
void check_numbers(const void* tensor, kvq_dtype dtype, size_t count, bool stored, const char* argument) {
  for_each_finite(tensor, dtype, count, stored, argument, [](size_t /*i*/, float /*number*/) {});
}

}  // namespace

RouterTrainer::RouterTrainer(Allocator& allocator, Parallel& parallel, Backend& backend, const kvq_cache_options& cache,
                             const Policy& policy, const CacheTraining& training, const RouterTrainerOptions& options)
    : allocator_(allocator),
      work_(allocator, options.max_bytes, "trainer"),
      parallel_(parallel),
      options_(options),
      votes_(policy.votes),
      q_heads_(cache.q_heads),
      untrained_(allocator),
      texts_(static_cast<size_t>(cache.n_layers), Vector<Text>(work_), work_) {
  untrained_.shape = {cache.n_layers, cache.kv_heads,  cache.head_dim,
                      cache.rope,     options.sharing, static_cast<int32_t>(policy.experts.size())};
  check_router_shape(untrained_.shape, KVQ_E_ARGUMENT, "options->");
  untrained_.experts.assign(policy.experts.begin(), policy.experts.end());
  for (const FormatPair& expert : policy.experts) {
    untrained_.expert_bits.push_back(true_bits(expert, cache.head_dim, training.pages.get()));
  }
  check_router_experts(untrained_, KVQ_E_ARGUMENT, "policy: ");
  untrained_.method = options.method;
  untrained_.seed = options.seed;
  untrained_.model_id = cache.model_id;
  untrained_.note = options.note;
  options_.note = {};
  if (options.method == RouterMethod::kPaper) {
    untrained_.lambda = options.lambda;
    return;
  }
  const double lowest = untrained_.expert_bits.back();
  const double highest = untrained_.expert_bits.front();
  if (!(options.mean_bits >= lowest && options.mean_bits <= highest)) {
    fail(KVQ_E_ARGUMENT, "options->mean_bits is %g, must be in [%g, %g], the bits of %s and %s", options.mean_bits,
         lowest, highest, format_pair_name(policy.experts.back()).c_str(),
         format_pair_name(policy.experts.front()).c_str());
  }
  errors_.emplace(work_, parallel, backend, cache, policy, training);
}

void RouterTrainer::add(int32_t layer, const RouterText& text) {
  require_untrained();
  check_length(layer, text.n);
  const RouterShape& shape = untrained_.shape;
  const auto tokens = static_cast<size_t>(text.n);
  const size_t width = static_cast<size_t>(shape.kv_heads) * static_cast<size_t>(shape.head_dim);
  check_numbers(text.k, text.dtype, tokens * width, true, "k");
  if (needs_attention()) {
    check_numbers(text.q, text.dtype, tokens * static_cast<size_t>(q_heads_) * static_cast<size_t>(shape.head_dim),
                  false, "q");
    check_numbers(text.v, text.dtype, tokens * width, true, "v");
  }
  Text added{text.n, Vector<uint16_t>(work_), Vector<float>(work_)};
  if (layer == shape.deciding_layer(layer)) added.keys = copy_keys(text);
  if (needs_attention()) added.errors = errors_->measure(layer, text);
  texts_[static_cast<size_t>(layer)].push_back(std::move(added));
}

Vector<uint16_t> RouterTrainer::copy_keys(const RouterText& text) {
  const RouterShape& shape = untrained_.shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto heads = static_cast<size_t>(shape.kv_heads);
  const size_t slots = static_cast<size_t>(routed_pages(text.n)) * kPageSlots;
  Vector<uint16_t> keys(size(slots, heads, dim), work_);
  std::array<float, kMaxHeadDim> row;
  for (size_t slot = 0; slot < slots; ++slot) {
    for (size_t head = 0; head < heads; ++head) {
      const size_t from = (slot + kFirstRoutedPage * kPageSlots) * heads + head;
      read_floats(text.k, text.dtype, from * dim, shape.head_dim, row.data());
      const size_t to = (slot / kPageSlots * heads + head) * kPageSlots + slot % kPageSlots;
      std::transform(row.begin(), row.begin() + shape.head_dim, keys.data() + to * dim,
                     [](float x) { return to_float16(x); });
    }
  }
  return keys;
}

void RouterTrainer::run(double loss, const TrainingProgress& progress) {
  require_untrained();
  const int64_t tokens = check_texts();
  const RouterShape& shape = untrained_.shape;
  RouterSamples samples(work_);
  for (int32_t group = 0; group < shape.groups(); ++group) {
    samples.pages.push_back(pages_of(group));
    samples.errors.push_back(errors_of(group));
  }
  const auto trained = std::allocate_shared<ModelRouter>(StlAllocator<ModelRouter>(allocator_), untrained_);
  trained->tokens = tokens;
  const RouterTrainingOptions how{options_.epochs, options_.learning_rate};
  if (options_.method == RouterMethod::kLabel) {
    train_on_labels(work_, parallel_, samples, options_.mean_bits, how, progress, *trained);
  } else {
    train_on_paper_loss(work_, parallel_, samples, loss, how, progress, *trained);
  }
  require_finite(*trained, loss);
  result_ = trained;
  for (Vector<Text>& texts : texts_) texts = Vector<Text>(texts.get_allocator());
}

/// Throws if the training diverged to NaN.
void RouterTrainer::require_finite(const ModelRouter& router, double loss) const {
  for (int32_t i = 0; i < router.shape.groups(); ++i) {
    for_each_router_array(router.shape, [&](const RouterArray& array) {
      const Vector<float>& numbers = router.groups[static_cast<size_t>(i)].network.*array.numbers;
      if (std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); })) return;
      if (options_.method == RouterMethod::kLabel) {
        fail(KVQ_E_STATE, "the training of group %d diverged at options->learning_rate %g", i, options_.learning_rate);
      }
      fail(KVQ_E_STATE, "the training of group %d diverged at loss %g and options->learning_rate %g", i, loss,
           options_.learning_rate);
    });
  }
}

RouterPages RouterTrainer::pages_of(int32_t group) {
  const RouterShape& shape = untrained_.shape;
  RouterPages pages(work_);
  pages.kv_heads = static_cast<size_t>(shape.kv_heads);
  pages.head_dim = static_cast<size_t>(shape.head_dim);
  pages.units = votes_ == Votes::kHead ? pages.kv_heads : 1;
  const size_t numbers = pages.tokens_of_page() * pages.head_dim;
  for (const Text& text : texts_[static_cast<size_t>(group * shape.sharing)]) {
    for (size_t begin = 0; begin < text.keys.size(); begin += numbers) pages.keys.push_back(text.keys.data() + begin);
  }
  return pages;
}

GroupErrors RouterTrainer::errors_of(int32_t group) {
  const RouterShape& shape = untrained_.shape;
  const int32_t layers = layers_of_group(shape, group);
  GroupErrors result(work_);
  result.layers = layers;
  for (int32_t i = 0; i < layers; ++i) {
    size_t at = 0;
    for (const Text& text : texts_[static_cast<size_t>(group * shape.sharing + i)]) {
      if (i == 0) result.errors.resize(at + text.errors.size(), 0.0F);
      for (const float error : text.errors) result.errors[at++] += error / static_cast<float>(layers);
    }
  }
  return result;
}

const std::shared_ptr<const ModelRouter>& RouterTrainer::result() const {
  if (result_ == nullptr) fail(KVQ_E_STATE, "trainer has not been run yet");
  return result_;
}

void RouterTrainer::require_untrained() const {
  if (result_ != nullptr) fail(KVQ_E_STATE, "trainer has finished its training");
}

/// Throws unless the text is as long as in other layers: texts come in the same order to every layer.
void RouterTrainer::check_length(int32_t layer, int32_t n) const {
  const size_t index = texts_[static_cast<size_t>(layer)].size();
  for (size_t other = 0; other < texts_.size(); ++other) {
    if (texts_[other].size() <= index || texts_[other][index].tokens == n) continue;
    fail(KVQ_E_ARGUMENT, "n is %d, but text %zu of layer %zu has %d tokens", n, index, other,
         texts_[other][index].tokens);
  }
}

/// Throws unless all layers have the same usable texts; returns the tokens of a layer.
int64_t RouterTrainer::check_texts() const {
  for (size_t layer = 1; layer < texts_.size(); ++layer) {
    if (texts_[layer].size() == texts_.front().size()) continue;
    fail(KVQ_E_STATE, "layer %zu has %zu texts, layer 0 has %zu", layer, texts_[layer].size(), texts_.front().size());
  }
  int64_t tokens = 0;
  int64_t pages = 0;
  for (const Text& text : texts_.front()) {
    tokens += text.tokens;
    pages += routed_pages(text.tokens);
  }
  if (pages == 0) {
    fail(KVQ_E_STATE, "there is no text of %d tokens or more: nothing to train on", kFewestRoutedTokens);
  }
  if (pages > int64_t{UINT32_MAX} / (kPageSlots * untrained_.shape.kv_heads)) {
    fail(KVQ_E_STATE, "there are %lld pages of %d tokens of %d heads, too many to train on",
         static_cast<long long>(pages), kPageSlots, untrained_.shape.kv_heads);
  }
  return tokens;
}

}  // namespace kvq
