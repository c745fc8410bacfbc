#include "router/group_training.h"

#include "core/error.h"
#include "core/splitmix.h"
#include "router/model_router.h"

#include <algorithm>
#include <cmath>

namespace kvq {
namespace {

constexpr int64_t kTokens = 4'000'000;  // that a network learns from by default, in as many passes as that takes
constexpr double kGain = 0.2;           // of the weights' correction by a miss of all bits
constexpr double kMostTilt = 5.0;

/// One group of layers. Networks trained on labels as they come would vote for the most frequent one nearly everywhere:
/// no single key says much, and a page goes with the majority of its tokens. So labels weigh as much as they are rare,
/// which leaves votes about even where keys say nothing, and moreover by a factor for each step to more bits that is
/// moved after every pass, until as many bits are voted for as the labels have.
struct Group {
  Group(Allocator& work, const RouterPages& pages, std::span<const double> expert_bits, uint64_t seed)
      : training(work, pages, expert_bits.size(), seed),
        bits(expert_bits),
        labels(pages.keys.size() * pages.units, 0, StlAllocator<uint8_t>(work)),
        chosen(labels),
        weights(expert_bits.size(), 1.0F, StlAllocator<float>(work)),
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

  /// Route pages as things are, correct the weights, and keep the network if it comes closest so far.
  void look(bool keep) noexcept {
    training.store(current);
    training.route(current, chosen);
    const double wanted = mean_bits(labels);
    const double miss = (wanted - mean_bits(chosen)) / wanted;
    tilt = std::clamp(tilt + kGain * miss, -kMostTilt, kMostTilt);
    weigh_labels();
    if (!keep || std::fabs(miss) >= closest) return;
    closest = std::fabs(miss);
    best = current;  // of the same size: allocates nothing
  }

  NetworkTraining training;
  std::span<const double> bits;  // [experts]
  Vector<uint8_t> labels;        // [pages, units]
  Vector<uint8_t> chosen;        // the same
  Vector<float> weights;         // [experts] of a token with that label
  double tilt = 0.0;
  double closest = HUGE_VAL;
  RouterNetwork current;
  RouterNetwork best;
};

class Groups {
 public:
  Groups(Allocator& work, Parallel& parallel, const RouterSamples& samples, const RouterTrainingOptions& options,
         const ModelRouter& router)
      : parallel_(parallel),
        samples_(samples),
        options_(options),
        router_(router),
        groups_(StlAllocator<Owned<Group>>(work)) {
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
    learn(progress, [](Group& group, double rate, bool late) noexcept {
      group.training.learn_labels(group.labels, group.weights, rate);
      group.look(late);
    });
  }

  void learn_paper(const PaperLoss<float>& loss, const TrainingProgress& progress) {
    learn(progress, [&loss](Group& group, double rate, bool /*late*/) noexcept {
      group.training.learn_paper(loss, rate);
      group.training.store(group.best);
    });
  }

  /// The networks, and what they do.
  void store(ModelRouter& out) {
    out.groups.clear();
    for (const Owned<Group>& group : groups_) {
      GroupRouter& stored = out.groups.emplace_back(*out.groups.get_allocator().source);
      stored.network = group->best;
    }
    const auto route = [&](int32_t i) noexcept {
      Group& group = *groups_[static_cast<size_t>(i)];
      group.training.route(group.best, group.chosen);
    };
    parallel_.run(static_cast<int32_t>(groups_.size()), route);
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

  /// Passes over all groups, with steps that become smaller.
  template <typename Pass>
  void learn(const TrainingProgress& progress, const Pass& pass) {
    const int32_t epochs = this->epochs();
    for (int32_t epoch = 0; epoch < epochs; ++epoch) {
      const double done = static_cast<double>(epoch) / epochs;
      if (!progress.report(done)) fail(KVQ_E_CANCELLED, "the training was cancelled by its progress hook");
      const double rate = options_.learning_rate * (1.0 - done);
      const bool late = 3 * (epoch + 1) > 2 * epochs;
      const auto pass_one = [&](int32_t i) noexcept { pass(*groups_[static_cast<size_t>(i)], rate, late); };
      parallel_.run(static_cast<int32_t>(groups_.size()), pass_one);
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
