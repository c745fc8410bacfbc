#include "bench/layer_spec.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "options/command.h"

namespace cli {
namespace {

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

template <typename Number>
std::optional<Number> number_in(const std::string& text) {
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

double router_bits(const SpecParts& parts) {
  if (parts.base == kMoqae) return kRouterBits;
  if (const auto bits = number_in<double>(parts.variant)) return *bits;
  throw UsageError(parts.given + ": must end in a number of bits, as moqae-7.5 does");
}

kvq::Centres random_centres(kvq_context* context, const SpecParts& parts, const LayerShape& shape) {
  constexpr int32_t kMostCentres = 256;
  const std::optional<int32_t> centres = number_in<int32_t>(parts.variant);
  if (!centres || *centres < 1 || *centres > kMostCentres) {
    throw UsageError(parts.given + ": must end in a number of centres, 1 to " + std::to_string(kMostCentres));
  }
  auto options = kvq::initialised<kvq_centres_trainer_options>();
  options.n_layers = 1;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.key_centres = *centres;
  options.value_centres = *centres;
  kvq::CentresTrainer trainer(context, options);
  const size_t scalars = kTokens * shape.token_width();
  trainer.add(0, kTokens, normal_numbers(scalars, kSpecKeySeed), normal_numbers(scalars, kSpecValueSeed));
  trainer.run(0);
  return trainer.result();
}

/// The text up to the first comma, which is taken off with it.
std::string_view cut_front(std::string_view& text) {
  const size_t comma = std::min(text.find(','), text.size());
  const std::string_view front = text.substr(0, comma);
  text.remove_prefix(std::min(comma + 1, text.size()));
  return front;
}

/// What is behind the hyphen of commvq-2,head,attention=tables.
struct CommvqVariant {
  int32_t bits;
  kvq_scope scope = KVQ_SCOPE_LAYER;
  std::string attention = "auto";
};

CommvqVariant commvq_variant(const SpecParts& parts) {
  constexpr std::string_view kAttention = "attention=";
  std::string_view rest = parts.variant;
  const std::string_view bits = cut_front(rest);
  if (bits != "1" && bits != "2") {
    throw UsageError(parts.given + ": \"commvq-\" must be followed by 1 or 2, a number of bits");
  }
  CommvqVariant variant{.bits = bits == "1" ? 1 : 2};
  while (!rest.empty()) {
    const std::string_view option = cut_front(rest);
    if (option == "head") {
      variant.scope = KVQ_SCOPE_HEAD;
    } else if (option.starts_with(kAttention)) {
      variant.attention = option.substr(kAttention.size());
    } else {
      throw UsageError(parts.given + ": unknown option \"" + std::string(option) + "\", known are head, attention=");
    }
  }
  return variant;
}

kvq::Policy load_policy(kvq_context* context, const SpecParts& parts, const std::string& policy) {
  try {
    return kvq::Policy::load(context, policy);
  } catch (const kvq::Error& error) {
    throw UsageError(parts.given + ": " + error.what());
  }
}

/// What a VARIANT stands for here.
Spec random_spec(kvq_context* context, const SpecParts& parts, const LayerShape& shape) {
  if (parts.name == kMoqae) return random_router(context, router_bits(parts), shape);
  Spec spec;
  if (parts.name == kCommvq) {
    const CommvqVariant variant = commvq_variant(parts);
    spec.policy = load_policy(
        context, parts, "{version: 1, keys: commvq, values: commvq, commvq: {attention: " + variant.attention + "}}");
    spec.codebook = train_on_random(context, variant.bits, variant.scope, shape);
  } else {
    spec.policy = load_policy(context, parts, around_centres(parts.name));
    spec.centres = random_centres(context, parts, shape);
  }
  return spec;
}

}  // namespace

Spec load_layer_spec(kvq_context* context, const std::string& text, const LayerShape& shape) {
  const SpecParts parts = parse_spec("--kv", text);
  const bool is_lone_router = parts.base == kMoqae && parts.files.empty();
  if (parts.variant.empty() && !is_lone_router) return load_spec(context, parts);
  Spec spec = random_spec(context, parts, shape);
  add_eviction(context, parts, spec);
  return spec;
}

}  // namespace cli
