#include "measure/perplexity.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <compare>
#include <deque>
#include <functional>
#include <numeric>

#include "bench/timing.h"
#include "llama/cpu_device.h"
#include "llama/error.h"
#include "llama/sampler.h"
#include "measure/generation.h"
#include "terminal/output.h"

namespace cli {
namespace {

// Negative log-likelihoods of `targets`, summed: logits row i predicts targets[i].
double score(llama::Model& model, std::span<const float> logits, llama::Tokens targets, std::vector<double>& losses) {
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

class ScoredRun {
 public:
  using AfterPrompt = std::function<void(llama::Session& session)>;

  ScoredRun(llama::Model& model, llama::Session& session, Progress& progress, AfterPrompt after_prompt = {})
      : model_(model), session_(session), after_prompt_(std::move(after_prompt)), progress_(progress) {}

  void begin(llama::Tokens prompt, int32_t chunk, size_t window) {
    const Stopwatch watch;
    session_.clear();
    prefill(session_, prompt, chunk, progress_);
    if (after_prompt_) after_prompt_(session_);
    nll_ = 0.0;
    position_ = prompt.size();
    half_ = half_of(window);
    seconds_ += watch.seconds();
  }

  // Logits after those of `tokens` that `next` follows.
  std::span<const float> add(llama::Tokens tokens, llama::Tokens next) {
    const Stopwatch watch;
    const std::span<const float> logits = session_.forward(tokens, true);
    progress_.advance(static_cast<int64_t>(tokens.size()));
    nll_ += score(model_, logits, next, losses_);
    const size_t in_first_half = std::min(half_ - std::min(half_, position_), losses_.size());
    for (const double loss : std::span(losses_).subspan(in_first_half)) second_half_nll_ += loss;
    second_half_scored_ += losses_.size() - in_first_half;
    position_ += tokens.size();
    seconds_ += watch.seconds();
    return logits.first(next.size() * (logits.size() / tokens.size()));
  }

  void compare(std::span<const float> expected, std::span<const float> logits) {
    divergences_.add(model_.threads(), expected, logits, static_cast<size_t>(model_.config().vocab_size));
  }

  void end_window(size_t scored) {
    window_mean_nll_.push_back(nll_ / static_cast<double>(scored));
    all_nll_ += nll_;
    scored_ += scored;
  }

  double nll() const { return nll_; }  // since the sequence began
  double perplexity() const { return std::exp(all_nll_ / static_cast<double>(scored_)); }

  PerplexityResult result(const PerplexityOptions& options, const ScoredRun* reference) const {
    const auto run = static_cast<double>(window_mean_nll_.size()) * options.context;
    PerplexityResult result{
        .perplexity = perplexity(),
        .tokens = static_cast<int64_t>(scored_),
        .second_half = options.second_half,
        .second_half_perplexity = std::exp(second_half_nll_ / static_cast<double>(second_half_scored_)),
        .tokens_per_second = run / seconds_,
        .window_mean_nll = window_mean_nll_,
        .usage = session_.usage(),
        .comparison = std::nullopt};
    if (reference != nullptr) {
      result.comparison = {.perplexity = reference->perplexity(),
                           .kl_mean = divergences_.mean(),
                           .kl_p999 = divergences_.p999(),
                           .top1_agreement = divergences_.top1_agreement()};
    }
    return result;
  }

 private:
  llama::Model& model_;
  llama::Session& session_;
  AfterPrompt after_prompt_;
  Progress& progress_;
  std::vector<double> losses_;
  double nll_ = 0.0;
  size_t position_ = 0;  // in the window
  size_t half_ = 0;
  double second_half_nll_ = 0.0;  // of all windows
  size_t second_half_scored_ = 0;
  double seconds_ = 0.0;
  std::vector<double> window_mean_nll_;
  double all_nll_ = 0.0;
  size_t scored_ = 0;
  Divergences divergences_;
};

// Calls `run(tokens, next)` for each chunk from `begin` on: the tokens that enter, and what follows them in the window.
template <typename Run>
void for_each_chunk(llama::Tokens window, size_t begin, int32_t chunk, Run&& run) {
  while (begin < window.size()) {
    const auto tokens = window.subspan(begin, std::min(static_cast<size_t>(chunk), window.size() - begin));
    const llama::Tokens next = window.subspan(begin + 1);  // one fewer at the window's end
    run(tokens, next.first(std::min(tokens.size(), next.size())));
    begin += tokens.size();
  }
}

// All runs go through a window chunk by chunk, so that logits of a chunk are all that is kept of the reference.
void run_window(llama::Tokens window, const PerplexityOptions& options, std::span<ScoredRun> runs,
                ScoredRun* reference) {
  const size_t prompt = options.second_half ? half_of(window.size()) : 0;  // not scored
  const size_t scored = window.size() - 1 - prompt;
  if (reference != nullptr) reference->begin(window.first(prompt), options.chunk, window.size());
  for (ScoredRun& run : runs) run.begin(window.first(prompt), options.chunk, window.size());
  for_each_chunk(window, prompt, options.chunk, [&](llama::Tokens chunk, llama::Tokens next) {
    const auto expected = reference != nullptr ? reference->add(chunk, next) : std::span<const float>();
    for (ScoredRun& run : runs) {
      const std::span<const float> logits = run.add(chunk, next);
      if (reference != nullptr) run.compare(expected, logits);
    }
  });
  if (reference != nullptr) reference->end_window(scored);
  for (ScoredRun& run : runs) run.end_window(scored);
}

}  // namespace

// With a = p - max p, b = q - max q and Z the sum of their exponentials, ln P = a - ln Z_p and ln Q = b - ln Z_q.
double kl_divergence(std::span<const float> p, std::span<const float> q) {
  const double p_top = *std::ranges::max_element(p);
  const double q_top = *std::ranges::max_element(q);
  double p_sum = 0.0;
  double q_sum = 0.0;
  double weighted = 0.0;  // sum of e^a (a - b)
  for (size_t i = 0; i < p.size(); ++i) {
    const double a = p[i] - p_top;
    const double b = q[i] - q_top;
    const double weight = std::exp(a);
    p_sum += weight;
    q_sum += std::exp(b);
    weighted += weight * (a - b);
  }
  const double divergence = weighted / p_sum + std::log(q_sum) - std::log(p_sum);
  return std::max(divergence, 0.0);  // rounding may leave a little less
}

void Divergences::add(llama::ThreadPool& threads, std::span<const float> reference, std::span<const float> logits,
                      size_t vocabulary) {
  const size_t first = kl_.size();
  const size_t tokens = logits.size() / vocabulary;
  kl_.resize(first + tokens);
  std::atomic<int64_t> agreeing = 0;
  threads.run(static_cast<int32_t>(tokens), [&](int32_t i) {
    const auto token = static_cast<size_t>(i);
    const std::span<const float> p = reference.subspan(token * vocabulary, vocabulary);
    const std::span<const float> q = logits.subspan(token * vocabulary, vocabulary);
    kl_[first + token] = static_cast<float>(kl_divergence(p, q));
    if (llama::greedy(p) == llama::greedy(q)) ++agreeing;
  });
  agreeing_ += agreeing;
}

double Divergences::mean() const {
  return std::accumulate(kl_.begin(), kl_.end(), 0.0) / static_cast<double>(kl_.size());
}

double Divergences::p999() const {
  std::vector<float> sorted = kl_;
  const size_t exceeding = sorted.size() / 1000;
  const auto at = sorted.end() - 1 - static_cast<std::ptrdiff_t>(exceeding);
  // A broken model's NaN has a place in this order too.
  std::nth_element(sorted.begin(), at, sorted.end(), [](float a, float b) { return std::strong_order(a, b) < 0; });
  return *at;
}

double Divergences::top1_agreement() const { return static_cast<double>(agreeing_) / static_cast<double>(kl_.size()); }

std::vector<llama::Tokens> first_windows(llama::Tokens tokens, int32_t context, int32_t most) {
  const auto length = static_cast<size_t>(context);
  if (tokens.size() < length) {
    throw llama::Error("the text has " + std::to_string(tokens.size()) +
                       " tokens, fewer than one window of --context " + std::to_string(context));
  }
  std::vector<llama::Tokens> windows;
  for (; tokens.size() >= length; tokens = tokens.subspan(length)) {
    if (most > 0 && windows.size() == static_cast<size_t>(most)) break;
    windows.push_back(tokens.first(length));
  }
  return windows;
}

std::string too_much_evicted_text(const std::string& format, double rise_percent, const std::string& reference) {
  return "warning: " + format + " evicts too much: its perplexity is " + number_text(rise_percent, 1) +
         " % above that of " + reference + "\n";
}

double score_rest(llama::Model& model, llama::Session& session, llama::Tokens window, int32_t chunk,
                  Progress& progress) {
  ScoredRun run(model, session, progress);
  for_each_chunk(window, static_cast<size_t>(session.length()), chunk,
                 [&](llama::Tokens tokens, llama::Tokens next) { run.add(tokens, next); });
  return run.nll();
}

PerplexityResult measure_perplexity(llama::Model& model, llama::Session& session, llama::Tokens window, int32_t chunk,
                                    Progress& progress) {
  ScoredRun run(model, session, progress);
  const PerplexityOptions options{.context = static_cast<int32_t>(window.size()), .chunk = chunk};
  run_window(window, options, std::span(&run, 1), nullptr);
  return run.result(options, nullptr);
}

std::vector<PerplexityResult> measure_perplexities(Engine& engine, std::span<const Spec> formats, llama::Tokens tokens,
                                                   PerplexityOptions options, Progress& progress,
                                                   const PerplexityReference* reference) {
  std::deque<llama::Session> sessions;
  std::vector<ScoredRun> runs;
  for (const Spec& format : formats) {
    const Spec* from = options.recode_from;
    llama::Session& session = sessions.emplace_back(engine.model, engine.context, from != nullptr ? *from : format);
    ScoredRun::AfterPrompt after_prompt;
    if (from != nullptr) {
      after_prompt = [&format](llama::Session& prompt) { prompt.recode(format.policy); };
    } else if (format.evicts()) {
      after_prompt = [](llama::Session& prompt) { prompt.compress(); };
    }
    options.second_half = options.second_half || after_prompt;
    runs.emplace_back(engine.model, session, progress, std::move(after_prompt));
  }
  std::optional<llama::Session> session;
  std::optional<ScoredRun> beside;
  if (reference != nullptr) {
    Engine& other = reference->engine;
    beside.emplace(other.model, session.emplace(other.model, other.context, reference->format), progress);
  }
  for (const auto window : first_windows(tokens, options.context, options.windows)) {
    run_window(window, options, runs, beside ? &*beside : nullptr);
  }
  std::vector<PerplexityResult> results;
  for (const ScoredRun& run : runs) results.push_back(run.result(options, beside ? &*beside : nullptr));
  return results;
}

PerplexityResult measure_perplexity(Engine& engine, const Spec& format, llama::Tokens tokens,
                                    const PerplexityOptions& options, Progress& progress) {
  return measure_perplexities(engine, {&format, 1}, tokens, options, progress).front();
}

}  // namespace cli
