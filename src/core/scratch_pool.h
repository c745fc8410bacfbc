#pragma once

#include "core/memory.h"

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace kvq {

/// Work space for the bodies of a parallel loop: too large for the stacks of some hosts' threads, and for one piece per
/// iteration. Kept from loop to loop.
class ScratchPool {
 public:
  explicit ScratchPool(Allocator& allocator)
      : lines_(StlAllocator<Line>(allocator)), free_(StlAllocator<std::byte*>(allocator)) {}

  /// Before a loop: that many pieces of that many bytes, which may be 0.
  void prepare(size_t pieces, size_t bytes);

  /// One piece, as long as this lives. More bodies than pieces wait for each other.
  class Piece {
   public:
    explicit Piece(ScratchPool& pool) noexcept : pool_(pool), data_(pool.take()) {}
    ~Piece() { pool_.put_back(data_); }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    std::byte* data() const { return data_; }  // null if pieces have no bytes

   private:
    ScratchPool& pool_;
    std::byte* data_;
  };

 private:
  struct alignas(kDataAlignment) Line {
    std::byte bytes[kDataAlignment];
  };

  std::byte* take() noexcept;
  void put_back(std::byte* piece) noexcept;

  Vector<Line> lines_;
  Vector<std::byte*> free_;
  bool empty_ = true;  // pieces have no bytes
  std::mutex mutex_;
  std::condition_variable returned_;
};

}  // namespace kvq
