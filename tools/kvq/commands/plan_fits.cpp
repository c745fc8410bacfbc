#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "allocation/layer_caches.h"
#include "commands/plan.h"
#include "llama/system.h"
#include "options/cache_shape.h"
#include "terminal/output.h"

namespace cli {
namespace {

/// What is known of schemes: the KL of a model of 32 M parameters quantized with a Hessian, and seconds to quantize a
/// billion weights without one, on two cores (docs/benchmarks.md, docs/guide.md).
struct KnownScheme {
  std::string_view name;
  double loss;
  double seconds;
  bool usual;  // a row of the table
};
constexpr double kByTable = 20.0;
constexpr double kByTrellis = 4200.0;
constexpr double kByWideTrellis = 7200.0;
constexpr std::array<KnownScheme, 18> kKnownSchemes = {{{"fp16", 0.0, 0.0, true},
                                                        {"nuq-8", 0.0002, kByTable, true},
                                                        {"nuq-6", 0.0016, kByTable, true},
                                                        {"tcx-5", 0.0030, kByWideTrellis, false},
                                                        {"nuq-5", 0.0063, kByTable, true},
                                                        {"tcx-4", 0.012, kByWideTrellis, false},
                                                        {"tcq-4", 0.014, kByTrellis, false},
                                                        {"vq-4", 0.020, kByTable, true},
                                                        {"nuq-4", 0.024, kByTable, false},
                                                        {"tcx-3.5", 0.022, kByWideTrellis, true},
                                                        {"tcx-3", 0.045, kByWideTrellis, true},
                                                        {"tcq-3", 0.050, kByTrellis, false},
                                                        {"vq-3", 0.080, kByTable, true},
                                                        {"nuq-3", 0.093, kByTable, false},
                                                        {"tcx-2", 0.194, kByWideTrellis, true},
                                                        {"tcq-2", 0.203, kByTrellis, false},
                                                        {"vq-2", 0.357, kByTable, false},
                                                        {"nuq-2", 0.401, kByTable, false}}};
const std::vector<std::string> kUsualFormats = {"fp16", "int8", "int4+hadamard", "gs4", "gs3", "gs2", "gs2/gs1", "gs1"};
struct RecommendedFormat {
  const char* name;
  double loss;  // as of a scheme
};
constexpr std::array<RecommendedFormat, 3> kRecommendedFormats = {{{"fp16", 0.0}, {"gs4", 0.0019}, {"gs2", 0.025}}};
constexpr int32_t kWantedContext = 32768;
constexpr double kPatience = 1800.0;  // seconds of quantizing
const std::vector<int32_t> kContexts = {2048, 8192, 32768, 131072, 524288, 1048576};
constexpr uint64_t kBytesOfOther = 2;  // of a number that is never packed

/// Contexts of the table: what models are usually asked for, up to what this one takes.
std::vector<int32_t> contexts_of(const PlanOptions& options, const llama::ModelShape& model) {
  std::vector<int32_t> contexts;
  for (const int32_t each : kContexts) {
    if (each < model.max_positions) contexts.push_back(each);
  }
  contexts.push_back(model.max_positions);
  if (options.context > 0) contexts.push_back(options.context);
  std::ranges::sort(contexts);
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  return contexts;
}

/// Formats of the table. The one whose keys and values differ is another's where only values' format counts.
std::vector<std::string> formats_of(const PlanOptions& options, const LayerCaches& caches) {
  std::vector<std::string> formats = options.formats.empty() ? kUsualFormats : options.formats;
  if (options.formats.empty() && caches.are_all_latent()) std::erase(formats, "gs2/gs1");
  return formats;
}

struct WeightBytes {
  std::string scheme;
  double bits = 0.0;   // of a number of a linear layer
  uint64_t bytes = 0;  // with the tensors that are never packed
  uint64_t read = 0;   // by a token
};

/// What loses least with so many tokens, judged by a small model.
struct Recommendation {
  int32_t tokens = 0;
  std::string scheme;  // empty if weights are not known
  std::string format;  // empty: nothing fits
  double loss = 0.0;
};

struct Fits {
  llama::ModelShape model;
  std::vector<WeightBytes> weights;  // by scheme; empty if they are not known
  std::vector<std::string> formats;
  std::vector<int32_t> contexts;
  uint64_t memory = 0;                        // bytes that there are; 0: not known
  std::vector<std::vector<uint64_t>> caches;  // by format and context, of all sequences, work space included
  std::vector<std::vector<int32_t>> longest;  // by weights (one row if not known) and format; empty without a memory
  Recommendation recommended;                 // with a memory
  Recommendation quick;                       // the same without hours of quantizing

  uint64_t other_bytes() const { return kBytesOfOther * model.other_numbers; }
};

WeightBytes weight_bytes(const std::string& scheme, const llama::ModelShape& model) {
  WeightBytes weights{.scheme = scheme};
  double numbers = 0.0;
  for (const llama::WeightMatrix& each : model.matrices) {
    const uint64_t of_one = kvq::Matrix::predict_bytes(scheme, each.out, each.in, each.bias ? 1 : 0);
    weights.bytes += of_one * static_cast<uint64_t>(each.count);
    weights.read += of_one * static_cast<uint64_t>(each.read < 0 ? each.count : each.read);
    numbers += each.weights();
  }
  weights.bits = 8.0 * static_cast<double>(weights.bytes) / std::max(numbers, 1.0);
  weights.bytes += kBytesOfOther * model.other_numbers;
  weights.read += kBytesOfOther * (model.other_numbers - model.looked_up_numbers);
  return weights;
}

void check_context_of(const PlanOptions& options, const llama::ModelShape& model) {
  if (options.context <= model.max_positions) return;
  throw UsageError("--context " + std::to_string(options.context) + " exceeds the model's " +
                   std::to_string(model.max_positions) + " positions");
}

/// The longest contexts by weights and format.
std::vector<std::vector<int32_t>> longest_contexts(const PlanOptions& options, const LayerCaches& caches,
                                                   const Fits& fits) {
  std::vector<uint64_t> taken;
  for (const WeightBytes& weights : fits.weights) taken.push_back(weights.bytes);
  if (taken.empty()) taken.push_back(0);
  std::vector<std::vector<int32_t>> longest;
  for (const uint64_t bytes : taken) {
    std::vector<int32_t>& row = longest.emplace_back();
    for (const std::string& formats : fits.formats) {
      row.push_back(bytes >= fits.memory
                        ? 0
                        : caches.most_tokens(formats, options.batch, fits.memory - bytes, fits.model.max_positions));
    }
  }
  return longest;
}

/// Null: little is known about the scheme.
const KnownScheme* known_scheme(const std::string& name) {
  const auto* const found = std::ranges::find(kKnownSchemes, name, &KnownScheme::name);
  return found == kKnownSchemes.end() ? nullptr : found;
}

double seconds_to_quantize(const KnownScheme& scheme, const llama::ModelShape& model) {
  double weights = 0.0;
  for (const llama::WeightMatrix& each : model.matrices) weights += each.weights();
  return scheme.seconds * 1e-9 * weights;
}

/// \param patience  seconds to quantize for.
Recommendation recommend(const PlanOptions& options, const Fits& fits, double patience) {
  Recommendation best;
  best.tokens = options.context > 0 ? options.context : std::min(kWantedContext, fits.model.max_positions);
  for (size_t row = 0; row < fits.longest.size(); ++row) {
    const std::string scheme = fits.weights.empty() ? "" : fits.weights[row].scheme;
    const KnownScheme* known = fits.weights.empty() ? kKnownSchemes.data() : known_scheme(scheme);
    if (known == nullptr || seconds_to_quantize(*known, fits.model) > patience) continue;
    for (const RecommendedFormat& format : kRecommendedFormats) {
      const auto column = std::ranges::find(fits.formats, format.name);
      if (column == fits.formats.end()) continue;
      const auto place = static_cast<size_t>(column - fits.formats.begin());
      const double loss = known->loss + format.loss;
      if (fits.longest[row][place] < best.tokens || (!best.format.empty() && loss >= best.loss)) continue;
      best = {best.tokens, scheme, format.name, loss};
    }
  }
  return best;
}

std::vector<std::string> usual_schemes() {
  std::vector<std::string> names;
  for (const KnownScheme& each : kKnownSchemes) {
    if (each.usual) names.emplace_back(each.name);
  }
  return names;
}

Fits what_fits(const PlanOptions& options) {
  Fits fits;
  fits.model =
      options.shape.empty() ? llama::load_model_shape(llama::path_of(options.model)) : parse_cache_shape(options.shape);
  fits.memory = options.memory.empty() ? 0 : parse_byte_count(options.memory, "--memory");
  const kvq::Context context = make_context(options.compute);
  check_context_of(options, fits.model);
  const std::vector<std::string> schemes = options.schemes.empty() ? usual_schemes() : options.schemes;
  for (const std::string& scheme : schemes) check_scheme(scheme);
  check_formats(context, options.formats, true);
  if (!fits.model.matrices.empty()) {
    for (const std::string& scheme : schemes) fits.weights.push_back(weight_bytes(scheme, fits.model));
  }
  const LayerCaches caches(context, fits.model.layers);
  if (caches.n_layers() == 0) throw llama::Error(options.model + ": no layer has a cache of keys and values");
  fits.formats = formats_of(options, caches);
  fits.contexts = contexts_of(options, fits.model);
  for (const std::string& formats : fits.formats) {
    std::vector<uint64_t>& of_format = fits.caches.emplace_back();
    for (const int32_t tokens : fits.contexts) {
      of_format.push_back(
          caches.usage(formats, {.tokens = tokens, .sequences = options.batch, .queries = 1}).total_bytes);
    }
  }
  if (fits.memory > 0) {
    fits.longest = longest_contexts(options, caches, fits);
    fits.recommended = recommend(options, fits, std::numeric_limits<double>::infinity());
    fits.quick = recommend(options, fits, kPatience);
  }
  return fits;
}

std::string of_layers(int64_t n, const Fits& fits) {
  return std::to_string(n) + " of " + std::to_string(fits.model.layers.size()) + " layers ";
}

/// What the figures mean where layers differ from those of a Llama, a line each.
std::vector<std::string> remarks(const Fits& fits) {
  const std::vector<llama::LayerShape>& layers = fits.model.layers;
  const auto count = [&](auto is) { return std::ranges::count_if(layers, is); };
  const auto stateful = count([](const llama::LayerShape& each) { return !each.attends(); });
  const auto windowed =
      count([](const llama::LayerShape& each) { return each.mixer == llama::Mixer::kWindowed && each.has_cache(); });
  const auto sharing = count([](const llama::LayerShape& each) { return each.attends() && !each.has_cache(); });
  const auto latent = std::ranges::find_if(layers, &llama::LayerShape::is_latent);
  std::vector<std::string> lines;
  if (stateful > 0) {
    lines.push_back(of_layers(stateful, fits) +
                    "have no cache of keys and values: what states they have is not counted");
  }
  if (sharing > 0) lines.push_back(of_layers(sharing, fits) + "read the caches of others and have none");
  if (windowed > 0) {
    lines.push_back(of_layers(windowed, fits) + "attend within a window or chunk, and keep no more");
  }
  if (latent != layers.end()) {
    lines.push_back("latent layers: formats are of the " + std::to_string(latent->value_dim) + " common channels; " +
                    std::to_string(latent->key_dim - latent->value_dim) + " rotary ones have int8 if gain-shape");
  }
  if (!fits.model.uncounted.empty()) lines.push_back("not counted: " + joined(fits.model.uncounted));
  return lines;
}

Json fits_json(const PlanOptions& options, const Fits& fits) {
  const int64_t cached = std::ranges::count_if(fits.model.layers, &llama::LayerShape::has_cache);
  Json object = {{"batch", options.batch}, {"layers", fits.model.layers.size()}, {"cached_layers", cached}};
  if (!fits.weights.empty()) {
    object["parameters"] = static_cast<uint64_t>(fits.model.parameters());
    object["active_parameters"] = static_cast<uint64_t>(fits.model.active_parameters());
    object["other_bytes"] = fits.other_bytes();
  }
  object["contexts"] = fits.contexts;
  for (const WeightBytes& each : fits.weights) object["weight_bytes"][each.scheme] = each.bytes;
  for (const WeightBytes& each : fits.weights) object["weight_bytes_read"][each.scheme] = each.read;
  for (size_t i = 0; i < fits.formats.size(); ++i) object["cache_bytes"][fits.formats[i]] = fits.caches[i];
  object["remarks"] = remarks(fits);
  if (fits.memory == 0) return object;
  object["memory"] = fits.memory;
  Json& longest = object["longest_context"];
  for (size_t i = 0; i < fits.longest.size(); ++i) {
    Json& row = fits.weights.empty() ? longest : longest[fits.weights[i].scheme];
    for (size_t k = 0; k < fits.formats.size(); ++k) row[fits.formats[k]] = fits.longest[i][k];
  }
  const Recommendation& recommended = fits.recommended;
  if (!recommended.format.empty()) {
    object["recommended"] = {
        {"weights", recommended.scheme}, {"cache", recommended.format}, {"context", recommended.tokens}};
  }
  return object;
}

std::string sequences_text(int32_t batch) { return batch == 1 ? "one sequence" : std::to_string(batch) + " sequences"; }

std::string billions(double parameters) {
  return parameters >= 1e9 ? number_text(parameters / 1e9, 1) + " B" : number_text(parameters / 1e6, 1) + " M";
}

/// A time that is known roughly: "20 s", "3 min", "16 h".
std::string about_text(double seconds) {
  constexpr double kMinute = 60.0;
  constexpr double kHour = 3600.0;
  if (seconds < kMinute) return std::to_string(std::max(std::lround(seconds), 1L)) + " s";
  return seconds < kHour ? number_text(seconds / kMinute, 0) + " min" : number_text(seconds / kHour, 0) + " h";
}

std::string words_of(const Recommendation& what) {
  const bool quantized = !what.scheme.empty() && what.scheme != "fp16";
  return (quantized ? "weights in " + what.scheme + ", " : "") + "--kv " + what.format + " (" + nats_text(what.loss) +
         " nats)";
}

std::string recommended_text(const Fits& fits) {
  const Recommendation& best = fits.recommended;
  const std::string tokens = std::to_string(best.tokens) + " tokens";
  if (best.format.empty()) return "nothing fits with " + tokens + "\n";
  if (best.loss == 0.0) return tokens + " fit in FP16: nothing need be lost\n";
  std::string text = "recommended for " + tokens + ": " + words_of(best);
  if (!fits.quick.format.empty() && fits.quick.scheme != best.scheme) {
    text += "\nwithout hours of quantizing: " + words_of(fits.quick);
  }
  return text +
         "\nNats are those of a model of 32 M parameters; larger ones lose less by weights.\n"
         "Measure yours: kvq eval perplexity, or kvq plan --model DIR --out FILE\n";
}

std::string weights_text(const Fits& fits) {
  if (fits.weights.empty()) return "";
  const bool has_experts = fits.model.has_experts();
  std::vector<std::string> headings{"weights", "bits", "bytes", "two cores take"};
  if (has_experts) headings.emplace_back("a token reads");
  Table table(headings);
  for (const WeightBytes& each : fits.weights) {
    const KnownScheme* known = known_scheme(each.scheme);
    const double seconds = known == nullptr ? 0.0 : seconds_to_quantize(*known, fits.model);
    std::vector<std::string> cells{each.scheme, number_text(each.bits, 3), bytes_text(each.bytes),
                                   seconds > 0.0 ? about_text(seconds) : ""};
    if (has_experts) cells.push_back(bytes_text(each.read));
    table.add_row(std::move(cells));
  }
  std::string text = table.text() + "of " + billions(fits.model.parameters()) + " parameters";
  if (has_experts) text += ", of which a token needs " + billions(fits.model.active_parameters());
  return text + "; " + bytes_text(fits.other_bytes()) + " are embeddings and norms in 16 bits\n\n";
}

std::string caches_text(const PlanOptions& options, const Fits& fits) {
  std::vector<std::string> headings{"cache"};
  for (const int32_t tokens : fits.contexts) headings.push_back(std::to_string(tokens) + "\ntokens");
  Table caches(headings);
  for (size_t i = 0; i < fits.formats.size(); ++i) {
    std::vector<std::string> cells{fits.formats[i]};
    for (const uint64_t bytes : fits.caches[i]) cells.push_back(bytes_text(bytes));
    caches.add_row(std::move(cells));
  }
  std::string text =
      caches.text() + "of " + sequences_text(options.batch) + ", pages, metadata and work space to decode included\n";
  for (const std::string& line : remarks(fits)) text += line + "\n";
  return text;
}

std::string longest_text(const PlanOptions& options, const Fits& fits) {
  if (fits.memory == 0) return "with --memory BYTES: the longest context that fits\n";
  std::vector<std::string> headings{"longest\ncontext"};
  headings.insert(headings.end(), fits.formats.begin(), fits.formats.end());
  Table longest(headings);
  for (size_t i = 0; i < fits.longest.size(); ++i) {
    std::vector<std::string> cells{fits.weights.empty() ? "" : fits.weights[i].scheme};
    for (const int32_t tokens : fits.longest[i]) cells.push_back(tokens > 0 ? std::to_string(tokens) : "-");
    longest.add_row(std::move(cells));
  }
  return "\n" + longest.text() + "tokens of each of " + sequences_text(options.batch) + " within " +
         bytes_text(fits.memory) + ", at most the model's " + std::to_string(fits.model.max_positions) + "\n" +
         recommended_text(fits);
}

std::string page_of(const PlanOptions& options, const Fits& fits) {
  return weights_text(fits) + caches_text(options, fits) + longest_text(options, fits);
}

}  // namespace

void print_what_fits(const PlanOptions& options) {
  const Fits fits = what_fits(options);
  if (options.json) return print_json(fits_json(options, fits));
  print_text(page_of(options, fits));
}

bool print_if_it_fits(const PlanOptions& options) {
  const Fits fits = what_fits(options);
  if (fits.recommended.format.empty()) return false;
  print_text(page_of(options, fits));
  return fits.recommended.loss == 0.0;
}

}  // namespace cli
