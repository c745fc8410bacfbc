#include <algorithm>
#include <array>

#include "commands/commands.h"
#include "measure/generation.h"
#include "measure/perplexity.h"
#include "terminal/files.h"
#include "terminal/progress.h"

namespace cli {
namespace {

/// Error of the compressed pages of one layer: Σ‖x̂ − x‖² / Σ‖x‖² with x as FP16 stores it; 0 if there are none.
struct LayerError {
  double keys = 0.0;
  double values = 0.0;
};

constexpr int32_t kStoredChunk = 256;  // tokens that the model takes at once

class Store {
 public:
  Store(Engine& engine, const llama::CacheFormat& format)
      : cache_(llama::make_model_cache(engine.model, engine.context, format)), sequence_(cache_) {}

  void clear() { sequence_ = kvq::Sequence(cache_); }
  void append(int32_t layer, int32_t n, const float* k, const float* v) { sequence_.append(layer, n, k, v, KVQ_F32); }

  struct Head {
    std::vector<float> keys;  // [tokens][head_dim]
    std::vector<float> values;
  };

  Head decode(int32_t layer, int32_t head, size_t tokens, size_t head_dim) const {
    Head decoded{std::vector<float>(tokens * head_dim), std::vector<float>(tokens * head_dim)};
    sequence_.decode(layer, head, 0, static_cast<int32_t>(tokens), decoded.keys, decoded.values);
    return decoded;
  }

 private:
  kvq::Cache cache_;
  kvq::Sequence sequence_;
};

struct Sums {
  double error = 0.0;
  double norm = 0.0;

  void add(std::span<const float> x, std::span<const float> stored) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double difference = double{stored[i]} - double{x[i]};
      error += difference * difference;
      norm += double{x[i]} * double{x[i]};
    }
  }
  double ratio() const { return norm > 0.0 ? error / norm : 0.0; }
};

/// Add the pages of one side that are not stored as they are.
void add_pages(std::span<const float> x, std::span<const float> stored, size_t page, Sums& sums) {
  for (size_t first = 0; first < x.size(); first += page) {
    const size_t n = std::min(page, x.size() - first);
    const auto exact = x.subspan(first, n);
    const auto decoded = stored.subspan(first, n);
    if (!std::ranges::equal(exact, decoded)) sums.add(exact, decoded);
  }
}

/// What a format makes of the keys and values of a full-precision run, layer by layer. Pages that a format leaves in
/// FP16 (sink, recent and the open one) do not count. Each window starts an empty sequence; `progress` advances by
/// every token run and every token decoded in a layer.
std::vector<LayerError> measure_storage_error(Engine& engine, const Spec& format,
                                              const std::vector<llama::Tokens>& windows, Progress& progress) {
  const llama::ModelConfig& config = engine.model.config();
  const auto dim = static_cast<size_t>(config.head_dim);
  const Interrupt interrupt;
  llama::Session session(engine.model, engine.context, nullptr);
  Store exact(engine, nullptr);
  Store stored(engine, format);
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    exact.append(layer, seen.n, seen.k, seen.v);
    stored.append(layer, seen.n, seen.k, seen.v);
  });
  std::vector<std::array<Sums, 2>> sums(static_cast<size_t>(config.n_layers));
  for (const llama::Tokens window : windows) {
    session.clear();
    exact.clear();
    stored.clear();
    prefill(session, window, kStoredChunk, progress);
    for (int32_t layer = 0; layer < config.n_layers; ++layer) {
      for (int32_t head = 0; head < config.kv_heads; ++head) {
        Interrupt::check();
        const Store::Head x = exact.decode(layer, head, window.size(), dim);
        const Store::Head decoded = stored.decode(layer, head, window.size(), dim);
        auto& [keys, values] = sums[static_cast<size_t>(layer)];
        add_pages(x.keys, decoded.keys, KVQ_PAGE_SLOTS * dim, keys);
        add_pages(x.values, decoded.values, KVQ_PAGE_SLOTS * dim, values);
      }
      progress.advance(static_cast<int64_t>(window.size()));
    }
  }
  std::vector<LayerError> errors;
  for (const auto& [keys, values] : sums) errors.push_back({keys.ratio(), values.ratio()});
  return errors;
}

struct EvalErrorOptions : ModelOptions {
  std::string text;
  int32_t context = 2048;
  int32_t windows = 4;
};

void print_result(const EvalErrorOptions& options, const std::vector<LayerError>& errors, size_t windows) {
  Figures layers;
  LayerError mean;
  const auto add = [&](const Json& layer, const std::string& name, const LayerError& error) {
    layers.begin_row(layer.is_number());
    layers.add("layer", "layer", layer, name);
    layers.add("key error", "key_error", error.keys, 5);
    layers.add("value error", "value_error", error.values, 5);
  };
  for (size_t i = 0; i < errors.size(); ++i) {
    add(i, std::to_string(i), errors[i]);
    mean.keys += errors[i].keys / static_cast<double>(errors.size());
    mean.values += errors[i].values / static_cast<double>(errors.size());
  }
  if (options.json) {
    return print_json({{"key_error", mean.keys},
                       {"value_error", mean.values},
                       {"layers", layers.objects()},
                       {"windows", windows},
                       {"context", options.context}});
  }
  add(nullptr, "mean", mean);
  print_text(layers.table() + "\nsquared error over squared norm with --kv " + options.kv + ", in " +
             std::to_string(windows) + " windows of " + std::to_string(options.context) +
             " tokens; pages left in FP16 do not count\n");
}

void run(const EvalErrorOptions& options) {
  Engine engine = options.load();
  const llama::ModelConfig& config = engine.model.config();
  check_context(options.context, config);
  const std::vector<int32_t> tokens = engine.tokenizer.encode(read_corpus(llama::path_of(options.text)));
  const std::vector<llama::Tokens> windows = first_windows(tokens, options.context, options.windows);
  const Spec format = load_judged_spec(engine, options.kv);
  Progress progress("error", static_cast<int64_t>(windows.size()) * options.context * (1 + config.n_layers));
  const std::vector<LayerError> errors = measure_storage_error(engine, format, windows, progress);
  print_result(options, errors, windows.size());
}

}  // namespace

void add_eval_error(Command eval) {
  Command command = eval.add_command("error", "Error of stored keys and values of a text, layer by layer");
  auto options = std::make_shared<EvalErrorOptions>();
  add_model_options(command, *options);
  add_text_option(command, options->text);
  command.add_option("--kv", options->kv, spec_help()).required();
  add_context_option(command, options->context, 2, "Tokens of a window");
  command.add_number("--windows", options->windows, 1, 1 << 30, "At most the first N windows");
  add_run_options(command, options->compute, options->json);
  command.on_run([options] { run(*options); });
}

}  // namespace cli
