#include "solver/searches.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvq::solver {
namespace {

constexpr int kMostDoublings = 400;
constexpr int kBisections = 60;
constexpr double kGolden = 0.6180339887498949;

/// Least price worth trying: total use costs a millionth of the goal.
constexpr double kFirstShare = 1e-6;

/// Searches the prices with the highest bound.
class PriceSearch {
 public:
  PriceSearch(Allocator& allocator, const ReducedProblem& problem)
      : found(allocator, problem.choices()), problem_(problem), selection_(allocator, problem.choices()) {
    found.best.goal = kInfinity;
    for (size_t i = 0; i < problem.choices(); ++i) greatest_goal_ += problem.choice(i).back().goal;
  }

  /// The bound is concave in the second price.
  void run() {
    double value = highest_of_first(0.0);
    if (std::isinf(problem_.limits[1]) || selection_.used[1] <= 0.0) return;
    double high = kFirstShare * greatest_goal_ / selection_.used[1];
    if (high <= 0.0) high = kFirstShare;
    for (int i = 0; i < kMostDoublings; ++i) {
      const double next = highest_of_first(high);
      if (next < value || next > greatest_goal_) break;
      value = next;
      high *= 2.0;
    }
    double low = 0.0;
    double left = high - kGolden * (high - low);
    double right = low + kGolden * (high - low);
    double at_left = highest_of_first(left);
    double at_right = highest_of_first(right);
    for (int i = 0; i < kBisections && high - low > 1e-9 * high; ++i) {
      if (at_left >= at_right) {
        high = right;
        right = left;
        at_right = at_left;
        left = high - kGolden * (high - low);
        at_left = highest_of_first(left);
      } else {
        low = left;
        left = right;
        at_left = at_right;
        right = low + kGolden * (high - low);
        at_right = highest_of_first(right);
      }
    }
  }

  PricedSelections found;

 private:
  /// Find the cheapest selection at these prices; its price less that of the limits is the bound.
  double evaluate(const Amounts& prices) {
    selection_.goal = 0.0;
    selection_.used = {};
    double value = 0.0;
    for (size_t i = 0; i < problem_.choices(); ++i) {
      const std::span<const Alternative> choice = problem_.choice(i);
      uint32_t least = 0;
      double least_price = priced(choice.front(), prices);
      for (uint32_t k = 1; k < choice.size(); ++k) {
        const double price = priced(choice[k], prices);
        if (price >= least_price) continue;
        least = k;
        least_price = price;
      }
      selection_.chosen[i] = least;
      selection_.add(choice[least]);
      value += least_price;
    }
    for (size_t i = 0; i < kResources; ++i) {
      if (prices[i] > 0.0) value -= prices[i] * problem_.limits[i];
    }
    if (keeps(selection_.used, problem_.limits) && selection_.goal < found.best.goal) found.best = selection_;
    if (value > found.bound.value) {
      found.bound = {prices, value};
      found.last = selection_;
    }
    return value;
  }

  /// The highest bound with this price of the second resource.
  double highest_of_first(double second) {
    const auto exceeds = [this] { return selection_.used[0] > problem_.limits[0]; };
    double highest = evaluate({0.0, second});
    if (!exceeds()) return highest;
    double low = 0.0;
    double high = kFirstShare * (greatest_goal_ + second * selection_.used[1]) / selection_.used[0];
    if (high <= 0.0) high = kFirstShare;
    for (int i = 0; i < kMostDoublings; ++i) {
      highest = std::max(highest, evaluate({high, second}));
      if (!exceeds()) break;
      low = high;
      high *= 2.0;
    }
    for (int i = 0; i < kBisections && high - low > 1e-14 * high; ++i) {
      const double middle = 0.5 * (low + high);
      highest = std::max(highest, evaluate({middle, second}));
      (exceeds() ? low : high) = middle;
    }
    return highest;
  }

  const ReducedProblem& problem_;
  double greatest_goal_ = 0.0;
  Selection selection_;
};

}  // namespace

PricedSelections search_prices(Allocator& allocator, const ReducedProblem& problem) {
  PriceSearch search(allocator, problem);
  search.run();
  return std::move(search.found);
}

}  // namespace kvq::solver
