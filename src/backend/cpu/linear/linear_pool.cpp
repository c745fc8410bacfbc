#include "backend/cpu/linear/linear_pool.h"

namespace kvq::cpu {

Owned<LinearPool::Node> LinearPool::take(Allocator& allocator, size_t bytes) {
  std::optional<Owned<Node>> taken;
  {
    const std::lock_guard lock(mutex_);
    if (free_.has_value() && *free_ != nullptr) {
      taken = std::move(free_);
      free_ = std::move((*taken)->next);
    }
  }
  Owned<Node> node = taken.has_value() ? std::move(*taken) : make_owned<Node>(allocator, allocator);
  if (node->size < bytes) {
    node->bytes.resize(bytes);
    node->size = bytes;
  }
  return node;
}

void LinearPool::put_back(Owned<Node> node) noexcept {
  const std::lock_guard lock(mutex_);
  if (free_.has_value()) node->next = std::move(*free_);
  free_ = std::move(node);
}

}  // namespace kvq::cpu
