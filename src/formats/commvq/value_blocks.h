// Parallel loops whose iterations need work space.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvq {

/// Run body(block, workspace) for every block in [0, blocks), each with `count` numbers of its own while it runs.
/// Blocks that share a work space run one after the other.
template <typename Number = float, typename Body>
void for_each_block(Parallel& parallel, Allocator& allocator, size_t blocks, size_t count, const Body& body) {
  constexpr size_t kSharesOfThread = 4;  // so that a thread that is late leaves some of its share to others
  const size_t threads = parallel.n_threads() > 0 ? static_cast<size_t>(parallel.n_threads()) : 16;
  const size_t shares = std::min(blocks, threads == 1 ? 1 : threads * kSharesOfThread);
  count += -count % (kDataAlignment / sizeof(Number));
  Vector<Number> workspace(shares * count, StlAllocator<Number>(allocator));
  const auto run_share = [&](int32_t index) noexcept {
    const auto share = static_cast<size_t>(index);
    for (size_t block = blocks * share / shares; block < blocks * (share + 1) / shares; ++block) {
      body(block, workspace.data() + share * count);
    }
  };
  parallel.run(static_cast<int32_t>(shares), run_share);
}

}  // namespace kvq
