// Invariants of sequences and caches between operations, for tests.
#pragma once

#include "cache/sequence.h"

#include <chrono>
#include <optional>
#include <vector>

namespace kvq {

/// Whether the library checks invariants after every operation (CMake's KVQ_CHECK_INVARIANTS).
#ifdef KVQ_CHECK_INVARIANTS
constexpr bool kChecksInvariants = true;
#else
constexpr bool kChecksInvariants = false;
#endif

/// Which pages of a sequence are sealed.
enum class Sealing : uint8_t {
  kByPolicy,
  kAny,  // a snapshot may come from a policy with other `sink` and `recent` pages
};
Sealing sealing_of(const Sequence& sequence);

/// Throw KVQ_E_INTERNAL, with layer, head, page and the two values that disagree, if a sequence breaks an invariant.
/// Uses the C++ runtime's memory, so that limits and hooks do not notice.
///
/// \param patience  how long accounts may disagree. Other threads change them one by one, with other sequences.
void check_invariants(const Sequence& sequence, Sealing sealing = Sealing::kByPolicy,
                      std::chrono::milliseconds patience = std::chrono::seconds(5));
/// The same for a cache's totals over all its pages.
void check_invariants(const Cache& cache, std::chrono::milliseconds patience = std::chrono::seconds(5));

/// Change a sequence. Checking builds verify its invariants afterwards, even if `change` fails. `after`: how pages are
/// sealed if it succeeds; empty: as before.
template <typename Change>
void checked(const Sequence& sequence, const Change& change, std::optional<Sealing> after = std::nullopt) {
  // While a backend records, lists do not change.
  if (!kChecksInvariants || sequence.cache.backend.recording()) return change();
  const Sealing sealing = sealing_of(sequence);
  try {
    change();
  } catch (...) {
    check_invariants(sequence, sealing);
    throw;
  }
  check_invariants(sequence, after.value_or(sealing));
}

/// The same for several sequences, members `sequence` of a list's entries.
template <typename Entries, typename Change>
auto checked(const Entries& entries, const Change& change) -> decltype(*entries.front().sequence, void()) {
  if (!kChecksInvariants || entries.front().sequence->cache.backend.recording()) return change();
  std::vector<Sealing> sealings;
  sealings.reserve(entries.size());
  for (const auto& each : entries) sealings.push_back(sealing_of(*each.sequence));
  const auto check_all = [&] {
    for (size_t i = 0; i < entries.size(); ++i) check_invariants(*entries[i].sequence, sealings[i]);
  };
  try {
    change();
  } catch (...) {
    check_all();
    throw;
  }
  check_all();
}

/// Make a sequence, a fork unless `parent` is null. Checking builds verify both, or what a failure left.
template <typename Make>
auto checked_new(const Cache& cache, const Sequence* parent, const Make& make) {
  if constexpr (!kChecksInvariants) return make();
  const auto check_others = [&] {
    check_invariants(cache);
    if (parent != nullptr) check_invariants(*parent, Sealing::kAny);
  };
  try {
    auto made = make();
    check_invariants(*made, Sealing::kAny);
    check_others();
    return made;
  } catch (...) {
    check_others();
    throw;
  }
}

}  // namespace kvq
