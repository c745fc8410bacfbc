#pragma once

#include "core/aligned_bytes.h"
#include "core/memory.h"

#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>

namespace kvq::cpu {

/// Work space of calls that may come at once: each has a piece of its own, which later calls get again.
class LinearPool {
  struct Node {
    explicit Node(Allocator& allocator) : bytes(allocator), next(nullptr, Deleter<Node>(allocator, 0, 0)) {}

    AlignedBytes bytes;
    size_t size = 0;
    Owned<Node> next;
  };

 public:
  /// A piece for as long as this lives. Its memory comes from an allocator that outlives the pool.
  class Piece {
   public:
    Piece(LinearPool& pool, Allocator& allocator, size_t bytes) : pool_(pool), node_(pool.take(allocator, bytes)) {}
    ~Piece() { pool_.put_back(std::move(node_)); }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    std::byte* data() { return node_->bytes.data(); }

   private:
    LinearPool& pool_;
    Owned<Node> node_;
  };

 private:
  Owned<Node> take(Allocator& allocator, size_t bytes);
  void put_back(Owned<Node> node) noexcept;

  std::mutex mutex_;
  std::optional<Owned<Node>> free_;  // the first of a list
};

}  // namespace kvq::cpu
