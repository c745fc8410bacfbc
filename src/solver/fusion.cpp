#include "solver/fusion.h"

#include "solver/pareto.h"

#include <bit>
#include <cmath>

namespace kvq::solver {
namespace {

struct Partial {
  double goal;  // the loss
  Amounts use;  // bytes and seconds
  std::array<int32_t, kMostMembers> groups;
  std::array<int32_t, kMostMembers> schemes;
};

/// Extends options of grouped members by the members not yet grouped.
class Fusion {
 public:
  Fusion(Allocator& allocator, const FusionProblem& problem) : allocator_(allocator), problem_(problem) {}

  Vector<Partial> run() {
    Vector<Partial> all(allocator_);
    Vector<Partial> nothing(allocator_);
    nothing.push_back({});
    add(nothing, (1 << problem_.members) - 1, all);
    keep_undominated(allocator_, all);
    return all;
  }

 private:
  /// Enumerate every grouping once: the first ungrouped member joins every subset of the others.
  void add(const Vector<Partial>& begun, int32_t left, Vector<Partial>& all) const {
    if (left == 0) {
      all.insert(all.end(), begun.begin(), begun.end());
      return;
    }
    const int32_t first = left & -left;
    const int32_t others = left ^ first;
    for (int32_t with = others;; with = (with - 1) & others) {
      Vector<Partial> more = with_group(begun, first | with);
      if (!more.empty()) add(more, left ^ (first | with), all);
      if (with == 0) break;
    }
  }

  Vector<Partial> with_group(const Vector<Partial>& begun, int32_t group) const {
    Vector<Partial> more(allocator_);
    for (int32_t scheme = 0; scheme < problem_.schemes; ++scheme) {
      const double seconds = problem_.seconds[at(group - 1, scheme)];
      if (std::isinf(seconds)) continue;
      Partial own{0.0, {0.0, seconds}, {}, {}};
      for (int32_t member = 0; member < problem_.members; ++member) {
        if ((group >> member & 1) == 0) continue;
        own.goal += problem_.loss[at(member, scheme)];
        own.use[0] += problem_.bytes[at(member, scheme)];
      }
      for (const Partial& each : begun) more.push_back(joined(each, own, group, scheme));
    }
    keep_undominated(allocator_, more);
    return more;
  }

  Partial joined(Partial option, const Partial& own, int32_t group, int32_t scheme) const {
    option.goal += own.goal;
    for (size_t i = 0; i < kResources; ++i) option.use[i] += own.use[i];
    for (int32_t member = 0; member < problem_.members; ++member) {
      if ((group >> member & 1) == 0) continue;
      option.groups[static_cast<size_t>(member)] = group;
      option.schemes[static_cast<size_t>(member)] = scheme;
    }
    return option;
  }

  size_t at(int32_t row, int32_t scheme) const {
    return static_cast<size_t>(row) * static_cast<size_t>(problem_.schemes) + static_cast<size_t>(scheme);
  }

  Allocator& allocator_;
  const FusionProblem& problem_;
};

}  // namespace

Vector<FusedOption> fuse(Allocator& allocator, const FusionProblem& problem) {
  Vector<FusedOption> options(allocator);
  for (const Partial& each : Fusion(allocator, problem).run()) {
    options.push_back({{each.use[0], each.use[1], each.goal}, each.groups, each.schemes});
  }
  return options;
}

}  // namespace kvq::solver
