#include "measure/perplexity.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "bench/stopwatch.h"
#include "llama/error.h"
#include "llama/model_math.h"
#include "measure/generation.h"

namespace cli {
namespace {

// Negative log-likelihoods of `targets`, summed: logits row i predicts targets[i].
double score(llama::Model& model, std::span<const float> logits, std::span<const int32_t> targets,
             std::vector<double>& losses) {
  const auto vocabulary = static_cast<size_t>(model.config().vocab_size);
  losses.resize(targets.size());
  model.threads().run(static_cast<int32_t>(targets.size()), [&](int32_t i) {
    const auto row = static_cast<size_t>(i);
    losses[row] = llama::negative_log_likelihood(logits.subspan(row * vocabulary, vocabulary), targets[row]);
  });
  double sum = 0.0;
  for (const double loss : losses) sum += loss;
  return sum;
}

double window_nll(llama::Model& model, llama::Session& session, std::span<const int32_t> window,
                  const PerplexityOptions& options, Progress& progress) {
  session.clear();
  if (options.second_half) prefill(session, window.first(half_of(window.size())), options.chunk, progress);
  if (options.second_half && options.compress) session.compress();
  return score_rest(model, session, window, options.chunk, progress);
}

}  // namespace

std::vector<std::span<const int32_t>> first_windows(std::span<const int32_t> tokens, int32_t context, int32_t most) {
  const auto length = static_cast<size_t>(context);
  if (tokens.size() < length) {
    throw llama::Error("the text has " + std::to_string(tokens.size()) +
                       " tokens, fewer than one window of --context " + std::to_string(context));
  }
  std::vector<std::span<const int32_t>> windows;
  for (; tokens.size() >= length; tokens = tokens.subspan(length)) {
    if (most > 0 && windows.size() == static_cast<size_t>(most)) break;
    windows.push_back(tokens.first(length));
  }
  return windows;
}

double score_rest(llama::Model& model, llama::Session& session, std::span<const int32_t> window, int32_t chunk,
                  Progress& progress) {
  std::vector<double> losses;
  double sum = 0.0;
  for (auto begin = static_cast<size_t>(session.length()); begin < window.size();) {
    const auto tokens = window.subspan(begin, std::min(static_cast<size_t>(chunk), window.size() - begin));
    const std::span<const float> logits = session.forward(tokens, true);
    progress.advance(static_cast<int64_t>(tokens.size()));
    const std::span<const int32_t> next = window.subspan(begin + 1);  // one fewer at the window's end
    sum += score(model, logits, next.first(std::min(tokens.size(), next.size())), losses);
    begin += tokens.size();
  }
  return sum;
}

PerplexityResult measure_perplexity(llama::Model& model, llama::Session& session, std::span<const int32_t> tokens,
                                    const PerplexityOptions& options, Progress& progress) {
  const auto context = static_cast<size_t>(options.context);
  const size_t scored = context - 1 - (options.second_half ? half_of(context) : 0);  // of a window
  PerplexityResult result;
  double sum = 0.0;
  const Stopwatch watch;
  for (const auto window : first_windows(tokens, options.context, options.windows)) {
    const double nll = window_nll(model, session, window, options, progress);
    result.window_mean_nll.push_back(nll / static_cast<double>(scored));
    sum += nll;
  }
  const size_t windows = result.window_mean_nll.size();
  result.tokens_per_second = static_cast<double>(windows * context) / watch.seconds();
  result.tokens = static_cast<int64_t>(windows * scored);
  result.perplexity = std::exp(sum / static_cast<double>(result.tokens));
  result.usage = session.usage();
  return result;
}

PerplexityResult measure_perplexity(Engine& engine, const Spec& format, std::span<const int32_t> tokens,
                                    PerplexityOptions options, Progress& progress) {
  options.compress = format.evicts();
  options.second_half = options.second_half || options.compress;
  llama::Session session(engine.model, engine.context, format);
  return measure_perplexity(engine.model, session, tokens, options, progress);
}

}  // namespace cli
