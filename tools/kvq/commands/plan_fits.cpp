#include <algorithm>
#include <nlohmann/json.hpp>

#include "allocation/layer_caches.h"
#include "commands/plan.h"
#include "llama/system.h"
#include "options/cache_shape.h"
#include "terminal/output.h"

namespace cli {
namespace {

const std::vector<std::string> kUsualSchemes = {"fp16",    "nuq-8", "tcx-5",   "tcx-4",
                                                "tcx-3.5", "tcx-3", "tcx-2.5", "tcx-2"};
const std::vector<std::string> kUsualFormats = {"fp16", "int8", "int4+hadamard", "gs4", "gs3", "gs2", "gs2/gs1", "gs1"};
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

struct Fits {
  llama::ModelShape model;
  std::vector<WeightBytes> weights;  // by scheme; empty if they are not known
  std::vector<std::string> formats;
  std::vector<int32_t> contexts;
  uint64_t memory = 0;                        // bytes that there are; 0: not known
  std::vector<std::vector<uint64_t>> caches;  // by format and context, of all sequences, work space included
  std::vector<std::vector<int32_t>> longest;  // by weights (one row if not known) and format; empty without a memory

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

Fits what_fits(const PlanOptions& options) {
  Fits fits;
  fits.model =
      options.shape.empty() ? llama::load_model_shape(llama::path_of(options.model)) : parse_cache_shape(options.shape);
  fits.memory = options.memory.empty() ? 0 : parse_byte_count(options.memory, "--memory");
  const kvq::Context context = make_context(options.compute);
  check_context_of(options, fits.model);
  const std::vector<std::string>& schemes = options.schemes.empty() ? kUsualSchemes : options.schemes;
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
  if (fits.memory > 0) fits.longest = longest_contexts(options, caches, fits);
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
  return object;
}

std::string sequences_text(int32_t batch) { return batch == 1 ? "one sequence" : std::to_string(batch) + " sequences"; }

std::string billions(double parameters) {
  return parameters >= 1e9 ? number_text(parameters / 1e9, 1) + " B" : number_text(parameters / 1e6, 1) + " M";
}

std::string weights_text(const Fits& fits) {
  if (fits.weights.empty()) return "";
  const bool has_experts = fits.model.has_experts();
  std::vector<std::string> headings{"weights", "bits", "bytes"};
  if (has_experts) headings.emplace_back("a token reads");
  Table table(headings);
  for (const WeightBytes& each : fits.weights) {
    std::vector<std::string> cells{each.scheme, number_text(each.bits, 3), bytes_text(each.bytes)};
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
         bytes_text(fits.memory) + ", at most the model's " + std::to_string(fits.model.max_positions) + "\n";
}

}  // namespace

void print_what_fits(const PlanOptions& options) {
  const Fits fits = what_fits(options);
  if (options.json) return print_json(fits_json(options, fits));
  print_text(weights_text(fits) + caches_text(options, fits) + longest_text(options, fits));
}

}  // namespace cli
