// Work space of loops and calls, and arrays cut from it.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace kvq {

/// Cuts arrays from a block of memory, each aligned for vectors; without a block it only counts.
class MemoryCutter {
 public:
  /// `block` is aligned to kDataAlignment, or null.
  explicit MemoryCutter(std::byte* block) : block_(block) {}

  template <typename T>
  T* take(size_t n) {
    std::byte* array = block_ != nullptr ? block_ + used_ : nullptr;
    used_ += (n * sizeof(T) + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
    return reinterpret_cast<T*>(array);
  }

  size_t used() const { return used_; }

 private:
  std::byte* block_;
  size_t used_ = 0;
};

/// Objects kept from use to use, for concurrent users. The one put back last is taken next. T has a member `Owned<T>
/// next`, which links the free ones.
template <typename T>
class Pool {
 public:
  explicit Pool(Allocator& allocator) : free_(nullptr, Deleter<T>(allocator, 0, 0)) {}

  /// Null if there is none.
  Owned<T> take() noexcept {
    const std::lock_guard lock(mutex_);
    return free_ != nullptr ? pop() : Owned<T>(nullptr, free_.get_deleter());
  }
  Owned<T> wait() noexcept {
    std::unique_lock lock(mutex_);
    returned_.wait(lock, [this] { return free_ != nullptr; });
    return pop();
  }
  void put_back(Owned<T> object) noexcept {
    {
      const std::lock_guard lock(mutex_);
      object->next = std::move(free_);
      free_ = std::move(object);
    }
    returned_.notify_one();
  }
  /// First free object; only while no other thread takes or puts back.
  T* first() const { return free_.get(); }

 private:
  Owned<T> pop() noexcept {
    Owned<T> object = std::move(free_);
    free_ = std::move(object->next);
    return object;
  }

  std::mutex mutex_;
  std::condition_variable returned_;
  Owned<T> free_;
};

/// Pieces of work space kept from use to use: for the bodies of a parallel loop, where they are too large for the
/// stacks of some hosts' threads or for one piece per iteration, and for concurrent calls.
class ScratchPool {
  struct Node {
    explicit Node(Allocator& allocator) : bytes(allocator), next(nullptr, Deleter<Node>(allocator, 0, 0)) {}
    void grow(size_t wanted);

    AlignedBytes bytes;
    size_t size = 0;
    Owned<Node> next;
  };

 public:
  /// Its memory comes from `allocator`, which must outlive it.
  explicit ScratchPool(Allocator& allocator) : allocator_(allocator), nodes_(allocator) {}

  /// Prepare a loop, whose bodies cannot fail: `pieces` pieces of at least `bytes` bytes, which may be 0. None may be
  /// in use.
  void prepare(size_t pieces, size_t bytes);
  /// Upper bound of a pool's bytes after this prepare() alone.
  static uint64_t bytes_of(uint64_t pieces, uint64_t bytes) {
    return bytes == 0 ? 0 : pieces * (sizeof(Node) + AlignedBytes::bytes_of(bytes));
  }
  /// The same of bytes in an allocator's block.
  static uint64_t bytes_in_block(uint64_t pieces, uint64_t bytes) {
    return bytes == 0 ? 0
                      : pieces * (Allocator::bytes_in_block(sizeof(Node)) +
                                  Allocator::bytes_in_block(AlignedBytes::bytes_of(bytes)));
  }

  class Piece {
   public:
    /// Borrows a prepared piece for its lifetime. Bodies beyond the number of pieces wait.
    explicit Piece(ScratchPool& pool) noexcept : pool_(pool), node_(pool.wait()) {}
    /// Borrows a piece of at least `bytes` bytes, made if none is free.
    Piece(ScratchPool& pool, size_t bytes) : pool_(pool), node_(pool.take(bytes)) {}
    ~Piece() { pool_.put_back(std::move(node_)); }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    std::byte* data() const { return node_ != nullptr ? node_->bytes.data() : nullptr; }  // null if it has no bytes

   private:
    ScratchPool& pool_;
    Owned<Node> node_;
  };

 private:
  Owned<Node> wait() noexcept;
  Owned<Node> take(size_t bytes);
  void put_back(Owned<Node> node) noexcept;

  Allocator& allocator_;
  Pool<Node> nodes_;
  bool empty_ = true;   // prepared pieces have no bytes
  size_t largest_ = 0;  // most bytes prepared so far
};

/// How a loop over blocks is shared.
struct BlockShares {
  BlockShares(const Parallel& parallel, uint64_t blocks) {
    constexpr size_t kSharesOfThread = 4;  // so that other threads take shares of a late one
    const size_t threads = parallel.n_threads() > 0 ? static_cast<size_t>(parallel.n_threads()) : 16;
    const size_t most = threads == 1 ? 1 : threads * kSharesOfThread;
    shares = blocks < most ? static_cast<size_t>(blocks) : most;
    pieces = parallel.n_threads() > 0 ? std::min(shares, threads) : shares;
  }

  size_t shares;
  size_t pieces;  // of work space
};

/// Upper bound of the bytes of for_each_block() in an allocator's block.
template <typename Number = float>
uint64_t bytes_of_blocks(const Parallel& parallel, uint64_t blocks, uint64_t count) {
  return ScratchPool::bytes_in_block(BlockShares(parallel, blocks).pieces, count * sizeof(Number));
}

/// Run body(block, workspace) for every block in [0, blocks), each with `count` numbers of its own while it runs.
/// Blocks that share a work space run in turn.
template <typename Number = float, typename Body>
void for_each_block(Parallel& parallel, Allocator& allocator, size_t blocks, size_t count, const Body& body) {
  const BlockShares shared(parallel, blocks);
  const size_t shares = shared.shares;
  ScratchPool pool(allocator);
  pool.prepare(shared.pieces, size(count, sizeof(Number)));
  const auto run_share = [&](int32_t index) noexcept {
    const ScratchPool::Piece workspace(pool);
    const auto share = static_cast<size_t>(index);
    for (size_t block = blocks * share / shares; block < blocks * (share + 1) / shares; ++block) {
      body(block, reinterpret_cast<Number*>(workspace.data()));
    }
  };
  parallel.run(static_cast<int32_t>(shares), run_share);
}

}  // namespace kvq
