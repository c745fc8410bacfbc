// Dynamic programming over choices: all sums that may still lead to a better solution.
#pragma once

#include "solver/dual_bound.h"

namespace kvq::solver {

/// Searches the best solution with a goal below a wanted one.
class StateSearch {
 public:
  /// Searches goals below `wanted`.
  StateSearch(Allocator& allocator, const ReducedProblem& problem, const DualBound& bound, double wanted);

  /// Replaces `best` by the best such solution, if there is any.
  /// \returns a lower bound of all goals: that of the solution, or `wanted` without one; less only if there were too
  ///          many states.
  double run(Selection& best);

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

  void add_stage(size_t choice);
  void add_rests();
  double least_end(const State& state, const Rest& rest) const;
  void extend(Vector<State>& states, const Stage& stage) const;
  double leave_out(Vector<State>& states, const Rest& rest) const;
  void trace_back(const State& end, Selection& best) const;

  Allocator& allocator_;
  const ReducedProblem& problem_;
  const DualBound& bound_;
  double wanted_;
  Vector<Stage> stages_;  // those with most candidates last
};

}  // namespace kvq::solver
