// Dynamic programming over choices.
#include "solver/searches.h"

#include <algorithm>
#include <cmath>

namespace kvq::solver {
namespace {

/// States kept per stage. More would take seconds and are rarely needed.
constexpr size_t kMostStates = 5000;

class StateSearch {
 public:
  StateSearch(Allocator& allocator, const ReducedProblem& problem, const DualBound& bound, double wanted)
      : allocator_(allocator), problem_(problem), bound_(bound), wanted_(wanted), stages_(allocator) {
    stages_.reserve(problem.choices());
    for (size_t i = 0; i < problem.choices(); ++i) add_stage(i);
    std::stable_sort(stages_.begin(), stages_.end(),
                     [](const Stage& a, const Stage& b) { return a.candidates.size() < b.candidates.size(); });
    add_rests();
  }

  double run(Selection& best) {
    const bool is_possible =
        std::none_of(stages_.begin(), stages_.end(), [](const Stage& stage) { return stage.candidates.empty(); });
    Vector<State> states(allocator_);
    if (is_possible) states.push_back({});
    double left_out = kInfinity;
    for (Stage& stage : stages_) {
      extend(states, stage);
      left_out = std::min(left_out, leave_out(states, stage.rest));
      stage.steps.reserve(states.size());
      for (const State& state : states) stage.steps.push_back({state.parent, state.alternative});
    }
    if (states.empty()) return std::min(wanted_, left_out);
    const auto end =
        std::min_element(states.begin(), states.end(), [](const State& a, const State& b) { return a.goal < b.goal; });
    trace_back(*end, best);
    return std::min(end->goal, left_out);
  }

 private:
  /// Sum of alternatives of some choices.
  struct State {
    double goal;
    Amounts use;
    uint32_t parent;  // among the states before the last of these choices
    uint32_t alternative;
  };
  struct Step {
    uint32_t parent;
    uint32_t alternative;
  };
  /// Alternative that may be part of such a solution.
  struct Candidate {
    double goal;
    Amounts use;
    uint32_t alternative;
  };
  /// Lower bounds over all following choices.
  struct Rest {
    double priced = 0.0;
    Amounts use{};
  };
  /// One choice.
  struct Stage {
    size_t choice;
    Vector<Candidate> candidates;
    Rest rest;  // of the stages behind it
    Vector<Step> steps;
  };

  /// A solution with an alternative costs at least the bound plus the alternative's price above the least.
  void add_stage(size_t choice) {
    Stage& stage = stages_.emplace_back(Stage{choice, Vector<Candidate>(allocator_), {}, Vector<Step>(allocator_)});
    const std::span<const Alternative> alternatives = problem_.choice(choice);
    double least = kInfinity;
    for (const Alternative& each : alternatives) least = std::min(least, priced(each, bound_.prices));
    for (uint32_t i = 0; i < alternatives.size(); ++i) {
      const Alternative& each = alternatives[i];
      if (bound_.value + (priced(each, bound_.prices) - least) >= wanted_) continue;
      stage.candidates.push_back({each.goal, each.use, i});
    }
  }

  void add_rests() {
    Rest rest;
    for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
      stage->rest = rest;
      double least_price = kInfinity;
      Amounts least_use = {kInfinity, kInfinity};
      for (const Candidate& each : stage->candidates) {
        least_price = std::min(least_price, priced(each, bound_.prices));
        for (size_t i = 0; i < kResources; ++i) least_use[i] = std::min(least_use[i], each.use[i]);
      }
      rest.priced += least_price;
      for (size_t i = 0; i < kResources; ++i) rest.use[i] += least_use[i];
    }
  }

  /// Lower bound of solutions that begin with a state; infinity if none keeps the limits.
  double least_end(const State& state, const Rest& rest) const {
    if (!keeps({state.use[0] + rest.use[0], state.use[1] + rest.use[1]}, problem_.limits)) return kInfinity;
    double least = state.goal + rest.priced;
    for (size_t i = 0; i < kResources; ++i) {
      if (bound_.prices[i] > 0.0) least += bound_.prices[i] * (state.use[i] - problem_.limits[i]);
    }
    return std::max(least, state.goal);
  }

  /// Extend every state by every candidate of a stage; drop those that cannot reach the wanted goal.
  void extend(Vector<State>& states, const Stage& stage) const {
    Vector<State> next(allocator_);
    for (uint32_t parent = 0; parent < states.size(); ++parent) {
      const State& from = states[parent];
      for (const Candidate& each : stage.candidates) {
        const State state{
            from.goal + each.goal, {from.use[0] + each.use[0], from.use[1] + each.use[1]}, parent, each.alternative};
        if (least_end(state, stage.rest) < wanted_) next.push_back(state);
      }
    }
    keep_undominated(allocator_, next);
    states.swap(next);
  }

  /// Drop the least promising states, if there are too many.
  /// \returns their best lower bound.
  double leave_out(Vector<State>& states, const Rest& rest) const {
    if (states.size() <= kMostStates) return kInfinity;
    const auto first_left_out = states.begin() + kMostStates;
    std::nth_element(states.begin(), first_left_out, states.end(),
                     [&](const State& a, const State& b) { return least_end(a, rest) < least_end(b, rest); });
    const double promised = least_end(*first_left_out, rest);
    states.erase(first_left_out, states.end());
    return promised;
  }

  void trace_back(const State& end, Selection& best) const {
    Step step{end.parent, end.alternative};
    for (size_t i = stages_.size(); i-- > 0;) {
      best.chosen[stages_[i].choice] = step.alternative;
      if (i > 0) step = stages_[i - 1].steps[step.parent];
    }
    best.sum_up(problem_);
  }

  Allocator& allocator_;
  const ReducedProblem& problem_;
  const DualBound& bound_;
  double wanted_;
  Vector<Stage> stages_;  // those with most candidates last
};

}  // namespace

double search_states(Allocator& allocator, const ReducedProblem& problem, const DualBound& bound, double wanted,
                     Selection& best) {
  return StateSearch(allocator, problem, bound, wanted).run(best);
}

}  // namespace kvq::solver
