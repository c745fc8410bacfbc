#include "bench/random_layer.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <deque>
#include <map>
#include <random>

#include "llama/safetensors.h"
#include "options/command.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr int32_t kAppendChunk = 1024;
constexpr uint64_t kLayerKeySeed = 1;
constexpr uint64_t kLayerValueSeed = 2;
constexpr uint64_t kLayerQuerySeed = 2000;

// Random numbers are as random when they are cut off instead of rounded, and when the smallest become zero.
uint16_t cut_to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t half = magnitude < 0x38800000U ? 0 : (magnitude - 0x38000000U) >> 13U;
  return static_cast<uint16_t>((bits >> 16U & 0x8000U) | half);
}

uint16_t cut_to_bfloat16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16U); }

constexpr int32_t kTokens = 1024;
constexpr uint64_t kSpecQuerySeed = 10;
constexpr double kRouterBits = 4.25;
constexpr const char* kRandomScales = "scales";
constexpr uint64_t kSpecKeySeed = 11;
constexpr uint64_t kSpecValueSeed = 12;

template <class Options>
Options options_of_layer(const LayerShape& shape) {
  auto options = kvq::initialised<Options>();
  options.n_layers = 1;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  return options;
}

kvq::Codebook train_on_random(kvq_context* context, int32_t bits, kvq_scope scope, const LayerShape& shape) {
  auto options = options_of_layer<kvq_codebook_trainer_options>(shape);
  options.key_stages = key_stages(bits, shape.head_dim);
  options.key_norms = scope;
  options.value_bits = bits;
  options.value_scope = scope;
  options.key_rounds = 1;
  options.value_rounds = 1;
  kvq::CodebookTrainer trainer(context, options);
  const size_t scalars = kTokens * shape.token_width();
  trainer.add(0, kTokens, normal_numbers(scalars, kSpecKeySeed), normal_numbers(scalars, kSpecValueSeed));
  trainer.run(0);
  return trainer.result();
}

/// Routers that choose formats of so many bits in the mean for random pages, and the policy that they serve.
Spec random_router(kvq_context* context, double bits, const LayerShape& shape) {
  constexpr std::string_view kPolicy = "{version: 1, sink: 1, router: {experts: [fp16, int4, int2]}}";
  const kvq::Context trains{kvq::initialised<kvq_context_options>()};  // which only CPUs do
  const auto layer = llama::cache_options(1, shape.q_heads, shape.kv_heads, shape.head_dim);
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
  auto options = options_of_layer<kvq_centres_trainer_options>(shape);
  options.key_centres = *centres;
  options.value_centres = *centres;
  kvq::CentresTrainer trainer(context, options);
  const size_t scalars = kTokens * shape.token_width();
  trainer.add(0, kTokens, normal_numbers(scalars, kSpecKeySeed), normal_numbers(scalars, kSpecValueSeed));
  trainer.run(0);
  return trainer.result();
}

/// Of keys and values, which are as even as random numbers are.
kvq::Centres random_scales(kvq_context* context, const LayerShape& shape) {
  auto options = options_of_layer<kvq_centres_trainer_options>(shape);
  options.key_centres = options.value_centres = 0;
  options.key_scales = options.value_scales = 1;
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

/// Keys and values are random, and there is no model.
void refuse_scales(const SpecParts& parts) {
  using enum SpecParts::Scales;
  if (parts.scales == kDefault || parts.scales == kNone) return;
  throw UsageError(parts.given + ": @first and @weights find nothing in random numbers: leave them out");
}

constexpr int32_t kKeyCodes = 64;
constexpr uint64_t kCodeSeed = 20;

class CodebookFile {
 public:
  explicit CodebookFile(std::map<std::string, std::string> metadata) { content_.metadata = std::move(metadata); }

  /// In ascending order of name.
  template <class Number>
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<Number>& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    const std::vector<std::byte>& kept = tensors_.emplace_back(bytes.begin(), bytes.end());
    constexpr const char* kDtype = sizeof(Number) == sizeof(float) ? "F32" : "F16";
    content_.tensors.push_back({.name = "layers.0." + name, .dtype = kDtype, .shape = shape, .data = kept});
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> file;
    llama::write_safetensors(
        content_, [&file](std::span<const std::byte> part) { file.insert(file.end(), part.begin(), part.end()); });
    return file;
  }

 private:
  llama::SafetensorsContent content_;
  std::deque<std::vector<std::byte>> tensors_;
};

std::map<std::string, std::string> codebook_metadata(int32_t bits, int32_t stages, const LayerShape& shape) {
  std::string errors = "0";
  for (int32_t stage = 1; stage < stages; ++stage) errors += " 0";
  return {{"type", "kvq.codebook"},
          {"version", "1"},
          {"n_layers", "1"},
          {"kv_heads", std::to_string(shape.kv_heads)},
          {"head_dim", std::to_string(shape.head_dim)},
          {"rope", "half"},
          {"key_stages", std::to_string(stages)},
          {"key_codes", std::to_string(kKeyCodes)},
          {"key_group", std::to_string(shape.head_dim / 2)},
          {"key_norms", "layer"},
          {"value_bits", std::to_string(bits)},
          {"value_scope", "layer"},
          {"model_id", hexadecimal(0)},
          {"seed", "0"},
          {"note", "random"},
          {"layers.0.tokens", "1"},
          {"layers.0.key_errors", errors},
          {"layers.0.value_error", "0"}};
}

}  // namespace

std::vector<float> normal_numbers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

std::vector<uint16_t> normal_float16(size_t n, uint64_t seed, double size) {
  std::vector<uint16_t> halves;
  halves.reserve(n);
  for (const float number : normal_numbers(n, seed))
    halves.push_back(cut_to_float16(static_cast<float>(size) * number));
  return halves;
}

kvq::Cache cache_of_layers(kvq_context* context, const llama::CacheFormat& format, const LayerShape& shape,
                           int32_t n_layers) {
  auto options =
      llama::cache_options(n_layers, shape.q_heads, shape.kv_heads, std::min(shape.head_dim, shape.values()));
  auto differing = kvq::initialised<kvq_layer_shape>();
  differing.n_layers = n_layers;
  differing.key_dim = shape.head_dim;
  differing.value_dim = shape.values();
  differing.values_are_key_prefix = shape.latent ? 1 : 0;
  options.shapes = &differing;
  options.n_shapes = shape.value_dim != 0 ? 1 : 0;
  if (format.codebook != nullptr) {
    auto codebook = kvq::initialised<kvq_codebook_info>();
    kvq::checked(kvq_codebook_describe, format.codebook, &codebook);
    options.n_layers = codebook.n_layers;
  }
  return llama::make_cache(context, options, format);
}

size_t bytes_of(kvq_dtype dtype) { return dtype == KVQ_F32 ? sizeof(float) : sizeof(uint16_t); }

DeviceBuffer random_scalars(TimedDevice& device, size_t n, uint64_t seed, kvq_dtype dtype) {
  const std::vector<float> numbers = normal_numbers(n, seed);
  if (dtype == KVQ_F32) return device.upload(std::as_bytes(std::span(numbers)));
  std::vector<uint16_t> halves(n);
  std::ranges::transform(numbers, halves.begin(), dtype == KVQ_F16 ? cut_to_float16 : cut_to_bfloat16);
  return device.upload(std::as_bytes(std::span(halves)));
}

void append_random(TimedDevice& device, std::span<kvq::Sequence> sequences, const LayerShape& shape, int32_t length,
                   int32_t n_layers) {
  if (length == 0) return;
  const auto tokens = static_cast<size_t>(std::min(kAppendChunk, length));
  const DeviceBuffer keys = random_scalars(device, tokens * shape.token_width(), kLayerKeySeed);
  const DeviceBuffer values = random_scalars(device, tokens * shape.value_width(), kLayerValueSeed);
  const void* given_values = shape.latent ? nullptr : values.get();
  for (kvq::Sequence& sequence : sequences) {
    for (int32_t begin = 0; begin < length; begin += kAppendChunk) {
      const int32_t n = std::min(kAppendChunk, length - begin);
      for (int32_t layer = 0; layer < n_layers; ++layer) {
        sequence.append(layer, n, keys.get(), given_values, KVQ_F32);
      }
    }
  }
}

void attend_random(TimedDevice& device, kvq::Cache& cache, kvq::Sequence& sequence, const LayerShape& shape,
                   int32_t queries, int32_t n_layers) {
  const size_t scalars =
      static_cast<size_t>(queries) * static_cast<size_t>(shape.q_heads) * static_cast<size_t>(shape.head_dim);
  const DeviceBuffer q = random_scalars(device, scalars, kLayerQuerySeed);
  const DeviceBuffer out = device.upload(std::vector<std::byte>(scalars * sizeof(float)));
  const kvq_sequence* const only = sequence;
  auto batch = kvq::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &only;
  batch.query_counts = &queries;
  batch.q = q.get();
  batch.output = out.get();
  for (int32_t layer = 0; layer < n_layers; ++layer) cache.attend(layer, batch);
}

Spec load_random_spec(kvq_context* context, const SpecParts& parts) {
  refuse_scales(parts);
  Spec spec = load_spec(context, parts);
  if (spec.policy.describe().calibrates != 0) spec.policy = with_calibration(context, spec.policy, false);
  return spec;
}

Spec load_layer_spec(kvq_context* context, const std::string& text, const LayerShape& shape) {
  SpecParts parts = parse_spec("--kv", text);
  const bool scales = std::erase(parts.files, kRandomScales) > 0;
  const bool is_lone_router = parts.base == kMoqae && parts.files.empty();
  const bool is_random = !parts.variant.empty() || is_lone_router;
  refuse_scales(parts);
  if (scales && parts.scales == SpecParts::Scales::kNone) {
    throw UsageError(parts.given + ": says twice where scales come from: write one of @" + kRandomScales +
                     " and @none");
  }
  Spec spec = is_random ? random_spec(context, parts, shape) : load_random_spec(context, parts);
  if (is_random) add_eviction(context, parts, spec);
  if (!scales) return spec;
  if (spec.centres != nullptr) throw UsageError(parts.given + ": @" + kRandomScales + " goes without centres");
  spec.centres = random_scales(context, shape);
  return spec;
}

kvq::Codebook random_codebook(kvq_context* context, int32_t bits, const LayerShape& shape) {
  const int32_t stages = key_stages(bits, shape.head_dim);
  const auto width = static_cast<int64_t>(shape.token_width());
  const int64_t value_codes = bits * width;
  CodebookFile file(codebook_metadata(bits, stages, shape));

  // Codes are as large as what they stand for: stages add up to vectors of norm 1, half of the bits to values of
  // variance 1.
  const size_t in_codes = static_cast<size_t>(kKeyCodes) * static_cast<size_t>(shape.head_dim);
  const double key_size = 1.0 / std::sqrt(static_cast<double>(stages) * static_cast<double>(width));
  file.add("keys.codes", {shape.kv_heads, 1, stages, kKeyCodes, shape.head_dim / 2, 2},
           normal_float16(static_cast<size_t>(shape.kv_heads * stages) * in_codes, kCodeSeed, key_size));
  const double value_size = 2.0 / std::sqrt(static_cast<double>(value_codes));
  const std::vector<uint16_t> codes =
      normal_float16(static_cast<size_t>(value_codes * width), kCodeSeed + 1, value_size);
  const auto floats = [](int64_t n, float each) { return std::vector<float>(static_cast<size_t>(n), each); };
  file.add("values.channel_scale", {shape.kv_heads, shape.head_dim}, floats(width, 1.0F));
  file.add("values.codes", {1, value_codes, width}, codes);
  file.add("values.offset", {1, width}, floats(width, 0.0F));
  file.add("values.proposal", {1, value_codes, width}, codes);
  file.add("values.proposal_bias", {1, value_codes}, floats(value_codes, 0.0F));
  return kvq::Codebook::load(context, file.bytes());
}

}  // namespace cli
