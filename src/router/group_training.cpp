#include "router/group_training.h"

#include "core/error.h"
#include "core/splitmix.h"
#include "router/model_router.h"

#include <algorithm>
#include <cmath>

namespace kvq {
namespace {

constexpr int32_t kRounds = 8;         // of the search for labels that lead to the wanted bits
constexpr double kCloseEnough = 0.02;  // bits
constexpr double kBalance = 0.5;
constexpr int64_t kSteps = 8000;
constexpr int64_t kStepTokens = 128;

struct Group {
  Group(Allocator& work, const RouterPages& pages, size_t experts, uint64_t seed)
      : training(work, pages, experts, seed),
        labels(pages.keys.size() * pages.units, 0, StlAllocator<uint8_t>(work)),
        chosen(labels),
        weights(experts, 1.0F, StlAllocator<float>(work)) {}

  NetworkTraining training;
  Vector<uint8_t> labels;  // [pages, units]
  Vector<uint8_t> chosen;  // the same
  Vector<float> weights;   // [experts] of a token with that label
};

class Groups {
 public:
  Groups(Allocator& work, Parallel& parallel, const RouterSamples& samples, const RouterTrainingOptions& options,
         const ModelRouter& router)
      : work_(work),
        parallel_(parallel),
        samples_(samples),
        options_(options),
        router_(router),
        groups_(StlAllocator<Owned<Group>>(work)) {
    for (size_t i = 0; i < samples.pages.size(); ++i) {
      groups_.push_back(make_owned<Group>(work, work, samples.pages[i], experts(), splitmix64(router.seed, i)));
    }
  }

  int32_t epochs() const {
    if (options_.epochs > 0) return options_.epochs;
    const auto tokens = static_cast<int64_t>(samples_.pages.front().tokens());
    return static_cast<int32_t>((kSteps * kStepTokens + tokens - 1) / tokens);
  }

  void label(float tolerance) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      Group& group = *groups_[i];
      label_pages(samples_.errors[i], experts(), tolerance, group.labels);
      balance(group);
    }
  }

  void learn_labels(const TrainingProgress& progress) {
    learn(progress,
          [](Group& group, double rate) noexcept { group.training.learn_labels(group.labels, group.weights, rate); });
  }

  void learn_paper(const PaperLoss<float>& loss, const TrainingProgress& progress) {
    learn(progress, [&loss](Group& group, double rate) noexcept { group.training.learn_paper(loss, rate); });
  }

  /// The networks as they are, and what they do.
  void store(ModelRouter& out) {
    out.groups.clear();
    for (const Owned<Group>& group : groups_) {
      GroupRouter& stored = out.groups.emplace_back(*out.groups.get_allocator().source);
      group->training.store(stored.network);
    }
    const auto route = [&](int32_t i) noexcept {
      Group& group = *groups_[static_cast<size_t>(i)];
      group.training.route(out.groups[static_cast<size_t>(i)].network, group.chosen);
    };
    parallel_.run(static_cast<int32_t>(groups_.size()), route);
    out.mean_bits = 0.0;
    out.accuracy = 0.0;
    for (int32_t i = 0; i < out.shape.groups(); ++i) {
      GroupRouter& stored = out.groups[static_cast<size_t>(i)];
      count(*groups_[static_cast<size_t>(i)], stored);
      const double layers = static_cast<double>(layers_of_group(out.shape, i)) / out.shape.n_layers;
      out.mean_bits += layers * mean_bits(out, stored);
      out.accuracy += layers * stored.accuracy;
    }
  }

 private:
  size_t experts() const { return router_.experts.size(); }

  /// Rare labels weigh more, or the networks would give every page the most frequent one: by the square root of how
  /// rare they are, since with equal weights for all labels pages that need many bits would crowd out the others.
  void balance(Group& group) const {
    for (size_t expert = 0; expert < experts(); ++expert) {
      const auto found = static_cast<double>(std::count(group.labels.begin(), group.labels.end(), expert));
      const double expected = static_cast<double>(group.labels.size()) / static_cast<double>(experts());
      group.weights[expert] = static_cast<float>(std::pow(expected / std::max(found, 1.0), kBalance));
    }
  }

  /// Passes over all groups, with steps that become smaller.
  template <typename Pass>
  void learn(const TrainingProgress& progress, const Pass& pass) {
    const int32_t epochs = this->epochs();
    for (int32_t epoch = 0; epoch < epochs; ++epoch) {
      const double done = static_cast<double>(epoch) / epochs;
      if (!progress.report(done)) fail(KVQ_E_CANCELLED, "the training was cancelled by its progress hook");
      const double rate = options_.learning_rate * (1.0 - done);
      const auto pass_one = [&](int32_t i) noexcept { pass(*groups_[static_cast<size_t>(i)], rate); };
      parallel_.run(static_cast<int32_t>(groups_.size()), pass_one);
    }
  }

  void count(const Group& group, GroupRouter& out) const {
    const auto pages = static_cast<double>(group.chosen.size());
    size_t right = 0;
    out.shares.assign(experts(), 0.0);
    for (size_t i = 0; i < group.chosen.size(); ++i) {
      out.shares[group.chosen[i]] += 1.0 / pages;
      if (group.chosen[i] == group.labels[i]) ++right;
    }
    for (double& share : out.shares) share = std::min(share, 1.0);
    out.accuracy = router_.method == RouterMethod::kLabel ? static_cast<double>(right) / pages : 0.0;
  }

  Allocator& work_;
  Parallel& parallel_;
  const RouterSamples& samples_;
  const RouterTrainingOptions& options_;
  const ModelRouter& router_;
  Vector<Owned<Group>> groups_;
};

/// Where to look next for the mean bits of labels with which pages get the wanted mean bits.
class TargetSearch {
 public:
  TargetSearch(double lowest, double highest, double wanted)
      : low_{lowest, lowest}, high_{highest, highest}, wanted_(wanted), target_(wanted) {}

  double target() const { return target_; }

  void found(double bits) {
    (bits > wanted_ ? high_ : low_) = {target_, bits};
    const double width = high_.target - low_.target;
    const double share = high_.bits > low_.bits ? (wanted_ - low_.bits) / (high_.bits - low_.bits) : 0.5;
    target_ = low_.target + width * std::clamp(share, 0.1, 0.9);  // so that a part of the range is out of the way
  }

 private:
  struct Point {
    double target;
    double bits;
  };

  Point low_;
  Point high_;
  double wanted_;
  double target_;
};

}  // namespace

void train_on_labels(Allocator& work, Parallel& parallel, const RouterSamples& samples, double wanted,
                     const RouterTrainingOptions& options, const TrainingProgress& progress, ModelRouter& router) {
  TargetSearch search(router.expert_bits.back(), router.expert_bits.front(), wanted);
  ModelRouter candidate(router);
  double closest = HUGE_VAL;
  float last_tolerance = -1.0F;
  for (int32_t round = 0; round < kRounds; ++round) {
    const float tolerance = find_tolerance(samples.errors, router.expert_bits, search.target());
    if (tolerance == last_tolerance) break;
    last_tolerance = tolerance;
    Groups groups(work, parallel, samples, options, router);
    groups.label(tolerance);
    groups.learn_labels(progress.part(static_cast<double>(round) / kRounds, (round + 1.0) / kRounds));
    groups.store(candidate);
    candidate.tolerance = static_cast<double>(tolerance);
    const double miss = std::fabs(candidate.mean_bits - wanted);
    if (miss < closest) router = candidate;
    closest = std::min(closest, miss);
    if (closest <= kCloseEnough) break;
    search.found(candidate.mean_bits);
  }
}

void train_on_paper_loss(Allocator& work, Parallel& parallel, const RouterSamples& samples, double nll,
                         const RouterTrainingOptions& options, const TrainingProgress& progress, ModelRouter& router) {
  Groups groups(work, parallel, samples, options, router);
  groups.learn_paper({router.lambda, nll, router.expert_bits}, progress);
  groups.store(router);
}

}  // namespace kvq
