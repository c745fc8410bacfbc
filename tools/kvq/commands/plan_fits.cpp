#include "commands/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "allocation/memory.h"
#include "terminal/output.h"

namespace cli {
namespace {

const std::vector<std::string> kUsualSchemes = {"fp16",    "nuq-8", "tcx-5",   "tcx-4",
                                                "tcx-3.5", "tcx-3", "tcx-2.5", "tcx-2"};
const std::vector<std::string> kUsualFormats = {"fp16", "int8", "int4+hadamard", "gs4", "gs3", "gs2", "gs2/gs1", "gs1"};
const std::vector<int32_t> kContexts = {2048, 8192, 32768, 131072, 524288, 1048576};

/// Contexts of the table: what models are usually asked for, up to what this one takes.
std::vector<int32_t> contexts_of(const PlanOptions& options, const llama::ModelConfig& config) {
  std::vector<int32_t> contexts;
  for (const int32_t each : kContexts) {
    if (each < config.max_positions) contexts.push_back(each);
  }
  contexts.push_back(config.max_positions);
  if (options.context > 0) contexts.push_back(options.context);
  std::ranges::sort(contexts);
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  return contexts;
}

std::string policy_of(const std::string& formats) {
  const auto [keys, values] = split_formats(formats);
  return "{version: 1, sink: " + std::string(formats == "fp16" ? "0" : "1") + ", keys: " + keys +
         ", values: " + values + "}";
}

struct Fits {
  llama::ModelConfig config;
  std::vector<std::string> schemes;
  std::vector<std::string> formats;
  std::vector<int32_t> contexts;
  uint64_t memory = 0;                        // bytes that there are; 0: not known
  uint64_t other = 0;                         // tensors that are never packed
  std::vector<uint64_t> weights;              // by scheme, with the other tensors
  std::vector<std::vector<uint64_t>> caches;  // by format and context, of all sequences, work space included
  std::vector<std::vector<int32_t>> longest;  // by scheme and format: tokens that fit; empty without a memory
};

Fits what_fits(const PlanOptions& options) {
  Fits fits{.config = llama::load_config(options.model),
            .schemes = options.schemes.empty() ? kUsualSchemes : options.schemes,
            .formats = options.formats.empty() ? kUsualFormats : options.formats,
            .contexts = {},
            .memory = options.memory.empty() ? 0 : parse_byte_count(options.memory, "--memory"),
            .weights = {},
            .caches = {},
            .longest = {}};
  const kvq::Context context = make_context(options.compute);
  check_context(options.context, fits.config);
  for (const std::string& scheme : options.schemes) check_scheme(scheme);
  check_formats(context, options.formats, true);
  fits.contexts = contexts_of(options, fits.config);
  fits.other = other_tensor_bytes(fits.config);
  for (const std::string& scheme : fits.schemes) fits.weights.push_back(packed_bytes(scheme, fits.config) + fits.other);
  for (const std::string& formats : fits.formats) {
    std::vector<uint64_t>& of_format = fits.caches.emplace_back();
    for (const int32_t tokens : fits.contexts) {
      const CacheShape shape{fits.config, tokens, options.batch, 1};
      of_format.push_back(cache_usage(context, shape, policy_of(formats)).total_bytes);
    }
  }
  if (fits.memory == 0) return fits;
  for (const uint64_t weights : fits.weights) {
    std::vector<int32_t>& of_scheme = fits.longest.emplace_back();
    for (const std::string& formats : fits.formats) {
      of_scheme.push_back(weights >= fits.memory ? 0
                                                 : most_tokens(context, fits.config, options.batch, policy_of(formats),
                                                               fits.memory - weights, fits.config.max_positions));
    }
  }
  return fits;
}

Json fits_json(const PlanOptions& options, const Fits& fits) {
  Json object = {{"batch", options.batch}, {"other_bytes", fits.other}, {"contexts", fits.contexts}};
  for (size_t i = 0; i < fits.schemes.size(); ++i) object["weight_bytes"][fits.schemes[i]] = fits.weights[i];
  for (size_t i = 0; i < fits.formats.size(); ++i) object["cache_bytes"][fits.formats[i]] = fits.caches[i];
  if (fits.memory == 0) return object;
  object["memory"] = fits.memory;
  for (size_t i = 0; i < fits.schemes.size(); ++i) {
    for (size_t k = 0; k < fits.formats.size(); ++k) {
      object["longest_context"][fits.schemes[i]][fits.formats[k]] = fits.longest[i][k];
    }
  }
  return object;
}

std::string sequences_text(int32_t batch) { return batch == 1 ? "one sequence" : std::to_string(batch) + " sequences"; }

std::string fits_text(const PlanOptions& options, const Fits& fits) {
  Table weights({"weights", "bits", "bytes"});
  for (size_t i = 0; i < fits.schemes.size(); ++i) {
    double numbers = 0.0;
    for (const llama::LinearLayer& each : llama::all_linear_layers(fits.config)) {
      numbers += static_cast<double>(each.weights());
    }
    const double bits = 8.0 * static_cast<double>(fits.weights[i] - fits.other) / numbers;
    weights.add_row({fits.schemes[i], number_text(bits, 3), bytes_text(fits.weights[i])});
  }
  std::vector<std::string> headings{"cache"};
  for (const int32_t tokens : fits.contexts) headings.push_back(std::to_string(tokens) + "\ntokens");
  Table caches(headings);
  for (size_t i = 0; i < fits.formats.size(); ++i) {
    std::vector<std::string> cells{fits.formats[i]};
    for (const uint64_t bytes : fits.caches[i]) cells.push_back(bytes_text(bytes));
    caches.add_row(std::move(cells));
  }
  std::string text = weights.text() + "of which " + bytes_text(fits.other) +
                     " are embeddings and norms in 16 bits\n\n" + caches.text() + "of " +
                     sequences_text(options.batch) + ", pages, metadata and work space to decode included\n";
  if (fits.memory == 0) return text + "with --memory BYTES: the longest context that fits\n";
  headings = {"longest\ncontext"};
  headings.insert(headings.end(), fits.formats.begin(), fits.formats.end());
  Table longest(headings);
  for (size_t i = 0; i < fits.schemes.size(); ++i) {
    std::vector<std::string> cells{fits.schemes[i]};
    for (const int32_t tokens : fits.longest[i]) cells.push_back(tokens > 0 ? std::to_string(tokens) : "-");
    longest.add_row(std::move(cells));
  }
  return text + "\n" + longest.text() + "tokens of each of " + sequences_text(options.batch) + " within " +
         bytes_text(fits.memory) + ", at most the model's " + std::to_string(fits.config.max_positions) + "\n";
}

}  // namespace

void print_what_fits(const PlanOptions& options) {
  const Fits fits = what_fits(options);
  if (options.json) return print_json(fits_json(options, fits));
  print_text(fits_text(options, fits));
}

}  // namespace cli
