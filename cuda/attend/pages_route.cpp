// Attention to pages as they are.
#include "attend/routes.h"
#include "attend/workspace.h"
#include "pages/page_table.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// The number of pages that every list has, or −1.
int32_t uniform_pages(std::span<const RoutedSequence* const> sequences, int32_t kv_heads) {
  const int32_t pages = sequences[0]->sequence->page_counts[0];
  for (const RoutedSequence* each : sequences) {
    const std::span<const int32_t> counts(each->sequence->page_counts, static_cast<size_t>(kv_heads));
    if (std::any_of(counts.begin(), counts.end(), [pages](int32_t count) { return count != pages; })) return -1;
  }
  return pages;
}

}  // namespace

void AttendCall::attend_pages(LaunchSequences sequences) {
  set_sequences(sequences);
  const auto any = [sequences](bool (PageTable::*has)() const) {
    return std::any_of(sequences.begin(), sequences.end(),
                       [has](const RoutedSequence* each) { return (table_of(*each->sequence).*has)(); })
               ? 1
               : 0;
  };
  arguments_.any_gains = any(&PageTable::any_gains);
  arguments_.any_centres = any(&PageTable::any_centres);
  const int32_t even_pages = uniform_pages(sequences, batch_.kv_heads);
  arguments_.uniform_pages = batch_.recorded ? -1 : even_pages;
  const AttendLaunch launch = choose_launch(arguments_, even_pages, device_.multiprocessors(), device_.shared_limit());
  space_.reserve(launch, batch_.recorded);
  call_.require(launch_attend(launch, arguments_, space_.partials(), space_.tickets(), call_.stream()),
                "attention kernel");
}

}  // namespace kvq::cuda
