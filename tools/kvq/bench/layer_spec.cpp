#include "bench/layer_spec.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "options/key_stages.h"
#include "options/usage_error.h"

namespace cli {
namespace {

constexpr std::string_view kRandom = "commvq-";
constexpr std::string_view kRandomRouter = "moqae";
constexpr int32_t kTokens = 1024;
constexpr uint64_t kSpecQuerySeed = 10;
constexpr double kRouterBits = 4.25;
constexpr uint64_t kSpecKeySeed = 11;
constexpr uint64_t kSpecValueSeed = 12;

kvq::Codebook train_on_random(kvq_context* context, int32_t bits, kvq_scope scope, const LayerShape& shape) {
  auto options = kvq::initialised<kvq_codebook_trainer_options>();
  options.n_layers = 1;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.key_stages = key_stages(bits, shape.head_dim);
  options.key_norms = scope;
  options.value_bits = bits;
  options.value_scope = scope;
  options.key_rounds = 1;
  options.value_rounds = 1;
  kvq::CodebookTrainer trainer(context, options);
  const size_t scalars = kTokens * shape.token_width();
  const std::vector<float> keys = normal_numbers(scalars, kSpecKeySeed);
  const std::vector<float> values = normal_numbers(scalars, kSpecValueSeed);
  trainer.add(0, kTokens, keys, values);
  trainer.run(0);
  return trainer.result();
}

/// Routers that choose formats of so many bits in the mean for random pages, and the policy that they serve.
Spec random_router(kvq_context* context, double bits, const LayerShape& shape) {
  constexpr std::string_view kPolicy = "{version: 1, sink: 1, router: {experts: [fp16, int4, int2]}}";
  const kvq::Context trains{kvq::initialised<kvq_context_options>()};  // which only CPUs do
  auto layer = kvq::initialised<kvq_cache_options>();
  layer.n_layers = 1;
  layer.q_heads = shape.q_heads;
  layer.kv_heads = shape.kv_heads;
  layer.head_dim = shape.head_dim;
  auto options = kvq::initialised<kvq_router_trainer_options>();
  options.mean_bits = bits;
  options.epochs = 1;
  kvq::RouterTrainer trainer(trains, layer, kvq::Policy::load(trains, kPolicy), options);
  const std::vector<float> queries = normal_numbers(
      size_t{kTokens} * static_cast<size_t>(shape.q_heads) * static_cast<size_t>(shape.head_dim), kSpecQuerySeed);
  const std::vector<float> keys = normal_numbers(kTokens * shape.token_width(), kSpecKeySeed);
  const std::vector<float> values = normal_numbers(kTokens * shape.token_width(), kSpecValueSeed);
  trainer.add(0, kTokens, queries, keys, values);
  trainer.run(1.0);
  return {.policy = kvq::Policy::load(context, kPolicy), .router = kvq::Router::load(context, trainer.result().save())};
}

/// As in moqae-7.5; kRouterBits if there is nothing behind the name, no value if it is another one.
std::optional<double> router_bits(const std::string& spec) {
  if (spec == kRandomRouter) return kRouterBits;
  const std::string start = std::string(kRandomRouter) + "-";
  if (!spec.starts_with(start)) return {};
  double bits = 0.0;
  const auto [end, code] = std::from_chars(spec.data() + start.size(), spec.data() + spec.size(), bits);
  if (code != std::errc() || end != spec.data() + spec.size()) {
    throw UsageError("--kv " + spec + ": must end in a number of bits, as moqae-7.5 does");
  }
  return bits;
}

constexpr int32_t kMostCentres = 256;

/// FORMAT-N or KEYS/VALUES-N of gain-shape formats; nothing if it is something else.
std::optional<Spec> centred_spec(kvq_context* context, const std::string& spec, const LayerShape& shape) {
  const size_t hyphen = std::min(spec.rfind('-'), spec.size());
  const std::optional<std::string> formats = around_centres(spec.substr(0, hyphen));
  if (!formats.has_value() || hyphen == spec.size()) return {};
  int32_t centres = 0;
  const auto [end, code] = std::from_chars(spec.data() + hyphen + 1, spec.data() + spec.size(), centres);
  if (code != std::errc() || end != spec.data() + spec.size() || centres < 1 || centres > kMostCentres) {
    throw UsageError("--kv " + spec + ": must end in a number of centres, 1 to " + std::to_string(kMostCentres));
  }
  Spec loaded;
  try {
    loaded.policy = kvq::Policy::load(context, *formats);
  } catch (const kvq::Error& error) {
    throw UsageError("--kv " + spec + ": " + error.what());
  }
  auto options = kvq::initialised<kvq_centres_trainer_options>();
  options.n_layers = 1;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.key_centres = centres;
  options.value_centres = centres;
  kvq::CentresTrainer trainer(context, options);
  const size_t scalars = kTokens * shape.token_width();
  trainer.add(0, kTokens, normal_numbers(scalars, kSpecKeySeed), normal_numbers(scalars, kSpecValueSeed));
  trainer.run(0);
  loaded.centres = trainer.result();
  return loaded;
}

/// The text up to the first comma, which is taken off with it.
std::string_view cut_front(std::string_view& text) {
  const size_t comma = std::min(text.find(','), text.size());
  const std::string_view front = text.substr(0, comma);
  text.remove_prefix(std::min(comma + 1, text.size()));
  return front;
}

Spec random_spec(kvq_context* context, const std::string& spec, const LayerShape& shape) {
  constexpr std::string_view kAttention = "attention=";
  std::string_view rest = std::string_view(spec).substr(kRandom.size());
  const std::string_view size = cut_front(rest);
  if (size != "1" && size != "2") {
    throw UsageError("--kv " + spec + ": \"" + std::string(kRandom) +
                     "\" must be followed by 1 or 2, a number of bits");
  }
  kvq_scope scope = KVQ_SCOPE_LAYER;
  std::string way = "auto";
  while (!rest.empty()) {
    const std::string_view option = cut_front(rest);
    if (option == "head") {
      scope = KVQ_SCOPE_HEAD;
    } else if (option.starts_with(kAttention)) {
      way = option.substr(kAttention.size());
    } else {
      throw UsageError("--kv " + spec + ": unknown option \"" + std::string(option) + "\", known are head, attention=");
    }
  }
  kvq::Policy policy = nullptr;
  try {
    policy = kvq::Policy::load(context, "{version: 1, keys: commvq, values: commvq, commvq: {attention: " + way + "}}");
  } catch (const kvq::Error& error) {
    throw UsageError("--kv " + spec + ": " + error.what());
  }
  return {.policy = std::move(policy), .codebook = train_on_random(context, size == "1" ? 1 : 2, scope, shape)};
}

}  // namespace

Spec load_layer_spec(kvq_context* context, const std::string& spec, const LayerShape& shape) {
  if (const auto bits = router_bits(spec)) return random_router(context, *bits, shape);
  if (auto centred = centred_spec(context, spec, shape)) return std::move(*centred);
  return spec.starts_with(kRandom) ? random_spec(context, spec, shape) : load_spec(context, spec);
}

}  // namespace cli
