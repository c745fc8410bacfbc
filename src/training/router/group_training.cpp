#include "training/router/group_training.h"

#include "core/error.h"
#include "core/splitmix.h"
#include "formats/router/router.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvq {
namespace {

constexpr int64_t kTokens = 4'000'000;  // that a network sees by default, over several passes
constexpr double kTiltGain = 0.2;       // correction of weights for an error of all bits
constexpr int32_t kRounds = 8;          // of the last third of the training
constexpr double kCloseEnough = 0.02;   // bits
constexpr double kMostTilt = 5.0;

/// Search where a rising function crosses a value: doubling steps until it has crossed, then between the last two
/// points.
class Crossing {
 public:
  /// Next point to try, if the function is `missing` below the value at `x`; `step` is the first.
  double next(double x, double missing, double step) noexcept {
    (missing > 0.0 ? low_ : high_) = Point{x, missing};
    if (!low_.has_value() || !high_.has_value()) return x + step * std::exp2(tried_++);
    const double share = low_->missing / (low_->missing - high_->missing);
    return low_->x + std::clamp(share, 0.1, 0.9) * (high_->x - low_->x);
  }

 private:
  struct Point {
    double x;
    double missing;
  };

  std::optional<Point> low_;
  std::optional<Point> high_;
  double tried_ = 0.0;
};

/// Training of one group of layers. Networks trained on unweighted labels vote for the most frequent one nearly
/// everywhere: a single key says little, and a page follows the majority of its tokens. So labels weigh inversely to
/// their frequency, which balances votes where keys say nothing, times a factor per step to more bits, which is
/// searched so that the voted bits equal the labels' bits.
struct Group {
  Group(Allocator& work, const RouterPages& pages, std::span<const double> expert_bits, uint64_t seed)
      : training(work, pages, expert_bits.size(), seed),
        bits(expert_bits),
        labels(pages.keys.size() * pages.units, 0, work),
        chosen(labels),
        weights(expert_bits.size(), 1.0F, work),
        current(work),
        best(work) {
    training.store(current);
    best = current;
  }

  double mean_bits(std::span<const uint8_t> experts) const {
    double sum = 0.0;
    for (const uint8_t expert : experts) sum += bits[expert];
    return sum / static_cast<double>(experts.size());
  }

  void weigh_labels() {
    for (size_t expert = 0; expert < bits.size(); ++expert) {
      const auto found = static_cast<double>(std::count(labels.begin(), labels.end(), expert));
      const double even = static_cast<double>(labels.size()) / static_cast<double>(bits.size());
      const auto steps = static_cast<double>(bits.size() - 1 - expert);
      weights[expert] = static_cast<float>(even / std::max(found, 1.0) * std::exp(tilt * steps));
    }
  }

  /// Bits that pages lack compared with the labels.
  double missing_bits() noexcept {
    training.store(current);
    training.route(current, chosen);
    return mean_bits(labels) - mean_bits(chosen);
  }

  void set_tilt(double value) noexcept {
    tilt = std::clamp(value, -kMostTilt, kMostTilt);
    weigh_labels();
  }

  /// Adjust the weights while the network learns.
  void correct() noexcept { set_tilt(tilt + kTiltGain * missing_bits() / mean_bits(labels)); }

  /// Keep the network if it is the closest so far. Returns the bits that its pages lack.
  double consider() noexcept {
    const double missing = missing_bits();
    if (std::fabs(missing) < closest) best = current;  // of the same size: allocates nothing
    closest = std::min(closest, std::fabs(missing));
    return missing;
  }

  /// Restart another round unless the network is close enough.
  void finish_round() noexcept {
    const double missing = consider();
    if (done()) return;
    training.restore();
    set_tilt(crossing.next(tilt, missing, missing));
  }
  bool done() const { return closest <= kCloseEnough; }

  NetworkTraining training;
  std::span<const double> bits;  // [experts]
  Vector<uint8_t> labels;        // [pages, units]
  Vector<uint8_t> chosen;        // the same
  Vector<float> weights;         // [experts] of a token with that label
  double tilt = 0.0;
  Crossing crossing;
  double closest = HUGE_VAL;  // to the bits of the labels
  RouterNetwork current;
  RouterNetwork best;
};

class Groups {
 public:
  Groups(Allocator& work, Parallel& parallel, const RouterSamples& samples, const RouterTrainingOptions& options,
         const ModelRouter& router)
      : parallel_(parallel), samples_(samples), options_(options), router_(router), groups_(work) {
    for (size_t i = 0; i < samples.pages.size(); ++i) {
      groups_.push_back(
          make_owned<Group>(work, work, samples.pages[i], router.expert_bits, splitmix64(router.seed, i)));
    }
  }

  int32_t epochs() const {
    if (options_.epochs > 0) return options_.epochs;
    const auto tokens = static_cast<int64_t>(samples_.pages.front().tokens());
    return static_cast<int32_t>((kTokens + tokens - 1) / tokens);
  }

  void learn_labels(float tolerance, const TrainingProgress& progress) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      label_pages(samples_.errors[i], experts(), tolerance, groups_[i]->labels);
      groups_[i]->weigh_labels();
    }
    const int32_t last = epochs();
    const int32_t turn = last * 2 / 3;
    const double passes = turn + kRounds * (last - turn);  // at most
    learn(0, turn, progress.part(0.0, turn / passes), [](Group& group, double rate) noexcept {
      group.training.learn_labels(group.labels, group.weights, rate);
      group.correct();
    });
    for (const Owned<Group>& group : groups_) group->training.save();
    for (int32_t round = 0; round < kRounds && !all_done(); ++round) {
      const double begin = (turn + round * (last - turn)) / passes;
      const double settled = options_.learning_rate / 6.0;
      const auto learn_one = [settled](Group& group, double rate) noexcept {
        if (group.done()) return;
        group.training.learn_labels(group.labels, group.weights, rate);
        if (rate <= settled) group.consider();
      };
      learn(turn, last, progress.part(begin, begin + (last - turn) / passes), learn_one);
      for_groups([](Group& group) noexcept {
        if (!group.done()) group.finish_round();
      });
    }
  }

  void learn_paper(const PaperLoss<float>& loss, const TrainingProgress& progress) {
    learn(0, epochs(), progress, [&loss](Group& group, double rate) noexcept {
      group.training.learn_paper(loss, rate);
      group.training.store(group.best);
    });
  }

  /// Store the networks and their figures.
  void store(ModelRouter& out) {
    out.groups.clear();
    for (const Owned<Group>& group : groups_) {
      GroupRouter& stored = out.groups.emplace_back(*out.groups.get_allocator().source);
      stored.network = group->best;
    }
    for_groups([](Group& group) noexcept { group.training.route(group.best, group.chosen); });
    out.mean_bits = 0.0;
    out.accuracy = 0.0;
    for (int32_t i = 0; i < out.shape.groups(); ++i) {
      GroupRouter& stored = out.groups[static_cast<size_t>(i)];
      count(*groups_[static_cast<size_t>(i)], stored);
      const double layers = layers_of_group(out.shape, i);
      out.mean_bits += layers * mean_bits(out, stored);
      out.accuracy += layers * stored.accuracy;
    }
    out.mean_bits /= out.shape.n_layers;
    out.accuracy /= out.shape.n_layers;
  }

 private:
  size_t experts() const { return router_.experts.size(); }

  bool all_done() const {
    return std::all_of(groups_.begin(), groups_.end(), [](const Owned<Group>& group) { return group->done(); });
  }

  /// Side by side.
  template <typename Use>
  void for_groups(const Use& use) {
    parallel_.run(static_cast<int32_t>(groups_.size()),
                  [&](int32_t i) noexcept { use(*groups_[static_cast<size_t>(i)]); });
  }

  /// Run passes `begin` to `end` over all groups; steps shrink from the first to the last of all epochs.
  template <typename Pass>
  void learn(int32_t begin, int32_t end, const TrainingProgress& progress, const Pass& pass) {
    for (int32_t epoch = begin; epoch < end; ++epoch) {
      if (!progress.report(static_cast<double>(epoch - begin) / (end - begin))) {
        fail(KVQ_E_CANCELLED, "the training was cancelled by its progress hook");
      }
      const double rate = options_.learning_rate * (1.0 - static_cast<double>(epoch) / epochs());
      for_groups([&](Group& group) noexcept { pass(group, rate); });
    }
  }

  void count(const Group& group, GroupRouter& out) const {
    const auto pages = static_cast<double>(group.chosen.size());
    out.shares.clear();
    for (size_t expert = 0; expert < experts(); ++expert) {
      out.shares.push_back(static_cast<double>(std::count(group.chosen.begin(), group.chosen.end(), expert)) / pages);
    }
    if (router_.method == RouterMethod::kPaper) return;
    size_t right = 0;
    for (size_t i = 0; i < group.chosen.size(); ++i) right += group.chosen[i] == group.labels[i] ? 1 : 0;
    out.accuracy = static_cast<double>(right) / pages;
  }

  Parallel& parallel_;
  const RouterSamples& samples_;
  const RouterTrainingOptions& options_;
  const ModelRouter& router_;
  Vector<Owned<Group>> groups_;
};

}  // namespace

void train_on_labels(Allocator& work, Parallel& parallel, const RouterSamples& samples, double wanted,
                     const RouterTrainingOptions& options, const TrainingProgress& progress, ModelRouter& router) {
  const float tolerance = find_tolerance(samples.errors, router.expert_bits, wanted);
  router.tolerance = static_cast<double>(tolerance);
  Groups groups(work, parallel, samples, options, router);
  groups.learn_labels(tolerance, progress);
  groups.store(router);
}

void train_on_paper_loss(Allocator& work, Parallel& parallel, const RouterSamples& samples, double nll,
                         const RouterTrainingOptions& options, const TrainingProgress& progress, ModelRouter& router) {
  Groups groups(work, parallel, samples, options, router);
  groups.learn_paper({router.lambda, nll, router.expert_bits}, progress);
  groups.store(router);
}

}  // namespace kvq
