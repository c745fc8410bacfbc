#include "allocation/probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "bench/random_layer.h"
#include "bench/timing.h"
#include "llama/sampler.h"
#include "measure/generation.h"
#include "measure/perplexity.h"
#include "options/spec.h"
#include "terminal/files.h"
#include "train/training.h"

namespace cli {
namespace {

constexpr int64_t kWindow = 2048;

/// What the model writes at temperature 1, after nothing but BOS.
std::vector<int32_t> written_by(Engine& engine, int32_t length, uint64_t seed, Progress& progress) {
  llama::Session session(engine.model, engine.context, {});
  llama::Sampler sampler(1.0, 1.0, seed);
  const int32_t bos = std::max(engine.model.config().bos_token, 0);
  std::vector<int32_t> tokens = {bos};
  std::span<const float> logits = session.forward(tokens, false);
  while (static_cast<int32_t>(tokens.size()) < length) {
    Interrupt::check();
    tokens.push_back(sampler.choose(logits));
    logits = session.forward(std::span(tokens).last(1), false);
    progress.advance(1);
  }
  return tokens;
}

/// Relative norms of noise: sixteenths that span the errors of schemes, from 5 bits to 1.5.
constexpr std::array kNoiseLevels = {1.0 / 16, 2.0 / 16, 3.0 / 16, 5.0 / 16};
constexpr uint64_t kNoiseSeed = 7;

constexpr int64_t kGaussianRows = 256;
constexpr int64_t kGaussianColumns = 1024;
constexpr uint64_t kGaussianSeed = 5;

llama::Linear with_noise(llama::Device& device, const llama::Linear& linear, double level, uint64_t seed) {
  const std::vector<float> weights = device.read(linear.weight);
  std::vector<float> noise = normal_numbers(weights.size(), seed);
  double squares = 0.0;
  double noise_squares = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    squares += double{weights[i]} * weights[i];
    noise_squares += double{noise[i]} * noise[i];
  }
  const double scale = level * std::sqrt(squares / noise_squares);
  for (size_t i = 0; i < weights.size(); ++i) noise[i] = weights[i] + static_cast<float>(scale * noise[i]);
  llama::Linear noisy = linear;
  noisy.weight = {linear.weight.rows, linear.weight.columns, llama::numbers_of(device.upload(std::move(noise)))};
  return noisy;
}

/// The line through the origin whose relative distances from the divergences are smallest.
Sensitivity fit(std::vector<double> divergences) {
  Sensitivity result{.slope = 0.0, .fit_error = 0.0, .divergences = std::move(divergences)};
  std::vector<double> slopes;
  for (size_t i = 0; i < kNoiseLevels.size(); ++i) {
    slopes.push_back(std::max(result.divergences[i], 0.0) / (kNoiseLevels[i] * kNoiseLevels[i]));
    result.slope += slopes.back() / static_cast<double>(kNoiseLevels.size());
  }
  if (result.slope <= 0.0) return result;
  for (const double slope : slopes) result.fit_error += std::pow(slope / result.slope - 1.0, 2);
  result.fit_error = std::sqrt(result.fit_error / static_cast<double>(slopes.size()));
  return result;
}

std::vector<std::string> missing(const Measurements& known, const std::string& key,
                                 std::span<const std::string> formats) {
  std::vector<std::string> left;
  const auto found = known.cache.find(key);
  std::ranges::copy_if(formats, std::back_inserter(left), [&](const std::string& format) {
    return format != "fp16" && (found == known.cache.end() || !found->second.contains(format));
  });
  return left;
}

/// A policy in which one side of one layer alone is not FP16.
std::string lone_policy(int32_t layer, Side side, const std::string& format, bool calibrates) {
  const std::string number = std::to_string(layer);
  return std::string("{version: 1, sink: 1, calibrate: ") + (calibrates ? "first" : "none") + ", layers: [{range: [" +
         number + ", " + number + "], " + (side == Side::kKeys ? "keys: " : "values: ") + format + "}]}";
}

/// Steps over a window, one for each layer that a run passes, that weights or caches have not been measured with yet.
int64_t missing_steps(const Measurements& known, const llama::ModelConfig& config) {
  int64_t steps = 0;
  for (const llama::LinearLayer& layer : llama::all_linear_layers(config)) {
    if (known.weights.contains(layer.name)) continue;
    steps += static_cast<int64_t>(kNoiseLevels.size()) * (config.n_layers - layer.layer);
  }
  return steps;
}
int64_t missing_steps(const Measurements& known, int32_t n_layers, const AllocationRequest& request) {
  int64_t steps = 0;
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const std::string key = cache_key(layer, side, request.calibrates);
      steps += static_cast<int64_t>(missing(known, key, request.formats).size()) * (n_layers - layer);
    }
  }
  return steps;
}

std::vector<double> missing_shares(const Measurements& known, const std::string& method) {
  std::vector<double> left;
  std::ranges::copy_if(kKeptShares, std::back_inserter(left),
                       [&](double share) { return !known.eviction.contains(eviction_key(method, share)); });
  return left;
}

/// Measure what each linear layer loses: Gaussian noise on its weights alone, at some levels, and a line through the
/// divergences. Saves after every layer.
void measure_weights(Measurements& known, const Probe& probe, llama::Model& model,
                     std::span<const llama::LinearLayer> layers, Progress& progress) {
  known.noise_levels.assign(kNoiseLevels.begin(), kNoiseLevels.end());
  uint64_t seed = kNoiseSeed;
  for (const llama::LinearLayer& layer : layers) {
    seed += kNoiseLevels.size();
    if (known.weights.contains(layer.name)) continue;
    std::vector<double> divergences;
    for (size_t i = 0; i < kNoiseLevels.size(); ++i) {
      const ExchangedLayers noisy(
          model, {{layer, with_noise(model.device(), model.linear(layer), kNoiseLevels[i], seed + i)}});
      divergences.push_back(probe.divergence({}, layer.layer, progress));
    }
    known.weights[layer.name] = fit(std::move(divergences));
    known.save();
  }
}

/// Measure what each layer's keys and values lose in each format, with that side of that layer alone compressed. Saves
/// after every side.
void measure_cache(Measurements& known, const Probe& probe, Engine& engine, const AllocationRequest& request,
                   Progress& progress) {
  for (int32_t layer = 0; layer < engine.model.config().n_layers; ++layer) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const std::string key = cache_key(layer, side, request.calibrates);
      const std::vector<std::string> left = missing(known, key, request.formats);
      for (const std::string& format : left) {
        const auto policy = kvq::Policy::load(engine.context, lone_policy(layer, side, format, request.calibrates));
        known.cache[key][format] = std::max(probe.divergence({policy}, layer, progress), 0.0);
      }
      if (!left.empty()) known.save();
    }
  }
}

/// Measure what the second half of each window loses if a method keeps a share of the first half, in FP16.
void measure_eviction(Measurements& known, Engine& engine, const std::vector<std::vector<int32_t>>& windows,
                      const std::string& method, const std::vector<double>& left, int32_t chunk) {
  int64_t tokens = 0;
  for (const std::vector<int32_t>& window : windows) tokens += static_cast<int64_t>(window.size());
  Progress progress("measuring eviction", tokens * static_cast<int64_t>(left.size() + 1));
  const Spec plain = load_spec(engine.context, "fp16");
  std::vector<double> sums(left.size());
  for (const std::vector<int32_t>& window : windows) {
    const PerplexityOptions options{.context = static_cast<int32_t>(window.size()), .chunk = chunk};
    std::vector<Spec> formats;
    for (const double share : left) {
      AllocationRequest half;
      half.context = static_cast<int32_t>(half_of(window.size()));
      half.share = share;
      Spec& format = formats.emplace_back();
      format.policy = plain.policy.with_eviction(engine.context, method, half.kept());
    }
    const PerplexityReference reference{engine, plain};
    const auto results = measure_perplexities(engine, formats, window, options, progress, &reference);
    for (size_t i = 0; i < left.size(); ++i) sums[i] += std::max(results[i].comparison->kl_mean, 0.0);
  }
  for (size_t i = 0; i < left.size(); ++i) {
    known.eviction[eviction_key(method, left[i])] = sums[i] / static_cast<double>(windows.size());
  }
  known.save();
}

/// Measure the squared error of Gaussian weights in each scheme: what rotated weights are.
void measure_schemes(Measurements& known, kvq_context* context, std::span<const std::string> schemes) {
  const std::vector<float> gaussian =
      normal_numbers(static_cast<size_t>(kGaussianRows * kGaussianColumns), kGaussianSeed);
  Progress progress("errors of schemes", static_cast<int64_t>(schemes.size()));
  for (const std::string& scheme : schemes) {
    Interrupt::check();
    if (!known.scheme_errors.contains(scheme)) {
      auto options = kvq::initialised<qp_quantize_options>();
      options.scheme = scheme.c_str();
      const auto matrix = kvq::Matrix::quantize(context, options, gaussian, kGaussianRows, kGaussianColumns);
      known.scheme_errors[scheme] = matrix.describe().error;
      known.save();
    }
    progress.advance(1);
  }
}

}  // namespace

Probe::Probe(Engine& engine, std::vector<std::vector<int32_t>> windows, int32_t chunk, Progress& progress)
    : engine_(engine), chunk_(chunk) {
  for (std::vector<int32_t>& tokens : windows) {
    Window& window = windows_.emplace_back();
    window.tokens = std::move(tokens);
    read(window, progress);
  }
}

void Probe::read(Window& window, Progress& progress) {
  const int32_t n_layers = engine_.model.config().n_layers;
  window.inputs.resize(static_cast<size_t>(n_layers));
  llama::Session session(engine_.model, engine_.context, {});
  llama::Array copy;
  session.observe_hidden([&](int32_t layer, std::span<const float> x) {
    const std::span<const float> read = engine_.model.device().read(x, copy);
    std::vector<float>& inputs = window.inputs[static_cast<size_t>(layer)];
    inputs.insert(inputs.end(), read.begin(), read.end());
  });
  for (llama::Tokens rest = window.tokens; !rest.empty();) {
    Interrupt::check();
    const auto tokens = rest.first(std::min(static_cast<size_t>(chunk_), rest.size()));
    const std::span<const float> logits = session.forward(tokens, true);
    window.logits.insert(window.logits.end(), logits.begin(), logits.end());
    rest = rest.subspan(tokens.size());
  }
  progress.advance(n_layers);
}

double Probe::divergence(const llama::CacheFormat& format, int32_t first_layer, Progress& progress) const {
  const llama::ModelConfig& config = engine_.model.config();
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto vocabulary = static_cast<size_t>(config.vocab_size);
  Divergences divergences;
  for (const Window& window : windows_) {
    llama::Session session(engine_.model, engine_.context, format);
    const std::span<const float> inputs = window.inputs[static_cast<size_t>(first_layer)];
    for (size_t begin = 0; begin < window.tokens.size();) {
      Interrupt::check();
      const size_t n = std::min(static_cast<size_t>(chunk_), window.tokens.size() - begin);
      const auto logits = session.forward_from(first_layer, inputs.subspan(begin * hidden, n * hidden), true);
      const auto expected = std::span(window.logits).subspan(begin * vocabulary, n * vocabulary);
      divergences.add(engine_.model.threads(), expected, logits, vocabulary);
      begin += n;
    }
    progress.advance(config.n_layers - first_layer);
  }
  return divergences.mean();
}

int64_t Probe::steps(int32_t first_layer) const {
  return static_cast<int64_t>(windows_.size()) * (engine_.model.config().n_layers - first_layer);
}

std::vector<std::vector<int32_t>> Probe::windows() const {
  std::vector<std::vector<int32_t>> windows;
  for (const Window& window : windows_) windows.push_back(window.tokens);
  return windows;
}

ProbeWindows::ProbeWindows(const Engine& engine, ProbeText text)
    : text_(std::move(text)),
      length_(static_cast<int32_t>(std::min<int64_t>({kWindow, engine.model.config().max_positions, text_.tokens}))) {
  if (text_.file.empty()) {
    note_ = std::to_string(text_.tokens) + " tokens in windows of " + std::to_string(length_) +
            ", written by the model with seed " + std::to_string(text_.seed);
    return;
  }
  const CalibrationTexts texts({text_.file}, {read_corpus(llama::path_of(text_.file))}, engine.tokenizer,
                               engine.model.config(), text_.tokens);
  note_ = texts.note;
  for (const auto each : texts.windows) read_.emplace_back(each.begin(), each.end());
}

bool ProbeWindows::show_scales() const {
  if (read_.empty()) return length_ >= kTokensForScales;
  return std::ranges::all_of(read_,
                             [](const std::vector<int32_t>& window) { return std::ssize(window) >= kTokensForScales; });
}

std::vector<std::vector<int32_t>> ProbeWindows::tokens(Engine& engine) const {
  if (!read_.empty()) return read_;
  std::vector<std::vector<int32_t>> windows;
  Progress progress("writing a text", text_.tokens);
  for (int64_t done = 0; done < text_.tokens; done += length_) {
    windows.push_back(written_by(engine, length_, text_.seed + windows.size(), progress));
  }
  return windows;
}

std::vector<std::string> judged_schemes(const Measurements& known, std::vector<std::string> schemes) {
  const double most = kNoiseLevels.back() * kNoiseLevels.back();
  std::erase_if(schemes, [&](const std::string& scheme) { return known.scheme_errors.at(scheme) > most; });
  return schemes;
}

Probe make_probe(Engine& engine, const ProbeWindows& windows, int32_t chunk) {
  std::vector<std::vector<int32_t>> tokens = windows.tokens(engine);
  Progress progress("reading the text", static_cast<int64_t>(tokens.size()) * engine.model.config().n_layers);
  return {engine, std::move(tokens), chunk, progress};
}

double measure_losses(Measurements& known, Engine& engine, const ProbeWindows& windows,
                      const AllocationRequest& request, int32_t chunk) {
  const llama::ModelConfig& config = engine.model.config();
  const Interrupt interrupt;
  if (request.weights) measure_schemes(known, engine.context, request.schemes);
  const int64_t of_weights = request.weights ? missing_steps(known, config) : 0;
  const int64_t of_caches = request.cache ? missing_steps(known, config.n_layers, request) : 0;
  const bool evicts = request.cache && !request.eviction.empty();
  const std::vector<double> shares = evicts ? missing_shares(known, request.eviction) : std::vector<double>();
  if (of_weights + of_caches == 0 && shares.empty()) return 0.0;
  const Stopwatch watch;
  const Probe probe = make_probe(engine, windows, chunk);
  const auto n_windows = static_cast<int64_t>(probe.windows().size());
  if (of_weights > 0) {
    Progress progress("measuring weights", of_weights * n_windows);
    measure_weights(known, probe, engine.model, llama::all_linear_layers(config), progress);
  }
  if (of_caches > 0) {
    Progress progress("measuring caches", of_caches * n_windows);
    measure_cache(known, probe, engine, request, progress);
  }
  if (!shares.empty()) measure_eviction(known, engine, probe.windows(), request.eviction, shares, chunk);
  return watch.seconds();
}

}  // namespace cli
