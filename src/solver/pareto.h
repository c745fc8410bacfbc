// Leaving out what is beaten in everything.
#pragma once

#include "core/memory.h"

#include <algorithm>
#include <array>

namespace kvq::solver {

/// The costs beside the goal.
inline constexpr size_t kResources = 2;
using Amounts = std::array<double, kResources>;

/// Pairs of which none is at most another one in both numbers: the larger the first, the smaller the second.
class Staircase {
 public:
  explicit Staircase(Allocator& allocator) : steps_(allocator) {}

  /// Take a pair up, and let go of those that it is at most; false if it is no less than one that is there.
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

/// Sort things with a `goal` and a `use` by their goal, and drop each that has neither a smaller goal nor a smaller use
/// of a resource than some other one.
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
