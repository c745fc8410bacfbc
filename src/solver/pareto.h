// Pareto filter.
#pragma once

#include "core/memory.h"

#include <algorithm>
#include <array>

namespace kvq::solver {

/// Costs other than the goal.
inline constexpr size_t kResources = 2;
using Amounts = std::array<double, kResources>;

/// Pareto front of pairs: the larger the first number, the smaller the second.
class Staircase {
 public:
  explicit Staircase(Allocator& allocator) : steps_(allocator) {}

  /// Insert a pair and drop those that it dominates; false if it is dominated itself.
  bool take(const Amounts& pair) {
    const auto lies_before = [](const Amounts& step, double first) { return step[0] < first; };
    auto begin = std::lower_bound(steps_.begin(), steps_.end(), pair[0], lies_before);
    if (begin != steps_.begin() && std::prev(begin)->at(1) <= pair[1]) return false;
    if (begin != steps_.end() && begin->at(0) == pair[0] && begin->at(1) <= pair[1]) return false;
    auto end = begin;
    while (end != steps_.end() && end->at(1) >= pair[1]) ++end;
    if (begin == end) {
      steps_.insert(begin, pair);
    } else {
      *begin = pair;
      steps_.erase(std::next(begin), end);
    }
    return true;
  }

 private:
  Vector<Amounts> steps_;
};

/// Sort things with a `goal` and a `use` by their goal, and drop the dominated ones.
template <typename T>
void keep_undominated(Allocator& allocator, Vector<T>& things) {
  std::sort(things.begin(), things.end(),
            [](const T& a, const T& b) { return a.goal != b.goal ? a.goal < b.goal : a.use < b.use; });
  Staircase stairs(allocator);
  const auto kept =
      std::remove_if(things.begin(), things.end(), [&stairs](const T& each) { return !stairs.take(each.use); });
  things.erase(kept, things.end());
}

}  // namespace kvq::solver
