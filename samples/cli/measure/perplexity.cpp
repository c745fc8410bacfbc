#include "measure/perplexity.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "bench/stopwatch.h"
#include "llama/error.h"
#include "llama/model_math.h"
#include "measure/divergence.h"
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

// A session that windows run through, and what they cost it.
class ScoredRun {
 public:
  ScoredRun(llama::Model& model, llama::Session& session, Progress& progress)
      : model_(model), session_(session), progress_(progress) {}

  // An empty sequence that reads `prompt`.
  void begin(std::span<const int32_t> prompt, const PerplexityOptions& options, bool compress) {
    const Stopwatch watch;
    session_.clear();
    prefill(session_, prompt, options.chunk, progress_);
    if (compress) session_.compress();
    nll_ = 0.0;
    seconds_ += watch.seconds();
  }

  // Logits after those of `tokens` that `next` follows.
  std::span<const float> add(std::span<const int32_t> tokens, std::span<const int32_t> next) {
    const Stopwatch watch;
    const std::span<const float> logits = session_.forward(tokens, true);
    progress_.advance(static_cast<int64_t>(tokens.size()));
    nll_ += score(model_, logits, next, losses_);
    seconds_ += watch.seconds();
    return logits.first(next.size() * (logits.size() / tokens.size()));
  }

  double nll() const { return nll_; }  // since the sequence began
  double seconds() const { return seconds_; }

 private:
  llama::Model& model_;
  llama::Session& session_;
  Progress& progress_;
  std::vector<double> losses_;
  double nll_ = 0.0;
  double seconds_ = 0.0;
};

// Calls `run(tokens, next)` for each chunk from `begin` on: the tokens that enter, and what follows them in the window.
template <typename Run>
void for_each_chunk(std::span<const int32_t> window, size_t begin, int32_t chunk, Run&& run) {
  while (begin < window.size()) {
    const auto tokens = window.subspan(begin, std::min(static_cast<size_t>(chunk), window.size() - begin));
    const std::span<const int32_t> next = window.subspan(begin + 1);  // one fewer at the window's end
    run(tokens, next.first(std::min(tokens.size(), next.size())));
    begin += tokens.size();
  }
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
  ScoredRun run(model, session, progress);
  for_each_chunk(window, static_cast<size_t>(session.length()), chunk,
                 [&](std::span<const int32_t> tokens, std::span<const int32_t> next) { run.add(tokens, next); });
  return run.nll();
}

PerplexityResult measure_perplexity(llama::Model& model, llama::Session& session, std::span<const int32_t> tokens,
                                    const PerplexityOptions& options, Progress& progress, llama::Session* reference) {
  const auto context = static_cast<size_t>(options.context);
  const size_t prompt = options.second_half ? half_of(context) : 0;  // of a window, not scored
  const size_t scored = context - 1 - prompt;
  const auto vocabulary = static_cast<size_t>(model.config().vocab_size);
  PerplexityResult result;
  ScoredRun run(model, session, progress);
  std::optional<ScoredRun> beside;
  if (reference != nullptr) beside.emplace(model, *reference, progress);
  Divergences divergences;
  double nll = 0.0;
  double reference_nll = 0.0;
  for (const auto window : first_windows(tokens, options.context, options.windows)) {
    if (beside) beside->begin(window.first(prompt), options, false);
    run.begin(window.first(prompt), options, options.compress);
    for_each_chunk(window, prompt, options.chunk, [&](std::span<const int32_t> chunk, std::span<const int32_t> next) {
      const auto expected = beside ? beside->add(chunk, next) : std::span<const float>();
      const std::span<const float> logits = run.add(chunk, next);
      if (beside) divergences.add(model.threads(), expected, logits, vocabulary);
    });
    result.window_mean_nll.push_back(run.nll() / static_cast<double>(scored));
    nll += run.nll();
    if (beside) reference_nll += beside->nll();
  }
  const size_t windows = result.window_mean_nll.size();
  result.tokens_per_second = static_cast<double>(windows * context) / run.seconds();
  result.tokens = static_cast<int64_t>(windows * scored);
  result.perplexity = std::exp(nll / static_cast<double>(result.tokens));
  result.usage = session.usage();
  if (beside) {
    result.comparison = {.perplexity = std::exp(reference_nll / static_cast<double>(result.tokens)),
                         .kl_mean = divergences.mean(),
                         .kl_p999 = divergences.p999(),
                         .top1_agreement = divergences.top1_agreement()};
  }
  return result;
}

PerplexityResult measure_perplexity(Engine& engine, const Spec& format, std::span<const int32_t> tokens,
                                    PerplexityOptions options, Progress& progress, const Spec* reference) {
  options.compress = format.evicts();
  options.second_half = options.second_half || options.compress;
  llama::Session session(engine.model, engine.context, format);
  std::optional<llama::Session> beside;
  if (reference != nullptr) beside.emplace(engine.model, engine.context, *reference);
  return measure_perplexity(engine.model, session, tokens, options, progress, beside ? &*beside : nullptr);
}

}  // namespace cli
