#include "core/scratch_pool.h"

namespace kvq {

void ScratchPool::prepare(size_t pieces, size_t bytes) {
  const size_t lines = (bytes + sizeof(Line) - 1) / sizeof(Line);
  empty_ = lines == 0;
  if (empty_) return;
  free_.clear();
  free_.reserve(pieces);
  if (lines_.size() < pieces * lines) {
    lines_.clear();
    lines_.resize(pieces * lines);
  }
  for (size_t i = 0; i < pieces; ++i) free_.push_back(lines_[i * lines].bytes);
}

std::byte* ScratchPool::take() noexcept {
  if (empty_) return nullptr;
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return !free_.empty(); });
  std::byte* piece = free_.back();
  free_.pop_back();
  return piece;
}

void ScratchPool::put_back(std::byte* piece) noexcept {
  if (piece == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(piece);
  }
  returned_.notify_one();
}

}  // namespace kvq
