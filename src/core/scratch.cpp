#include "core/scratch.h"

#include <utility>

namespace kvq {

void ScratchPool::Node::grow(size_t wanted) {
  if (wanted <= size) return;
  bytes.resize(wanted);
  size = wanted;
}

void ScratchPool::prepare(size_t pieces, size_t bytes) {
  empty_ = bytes == 0;
  if (empty_) return;
  size_t ready = 0;
  for (Node* node = free_.get(); node != nullptr && ready < pieces; node = node->next.get(), ++ready) node->grow(bytes);
  for (; ready < pieces; ++ready) {
    Owned<Node> node = make_owned<Node>(allocator_, allocator_);
    node->grow(bytes);
    node->next = std::move(free_);
    free_ = std::move(node);
  }
}

Owned<ScratchPool::Node> ScratchPool::pop() noexcept {
  Owned<Node> node = std::move(free_);
  free_ = std::move(node->next);
  return node;
}

Owned<ScratchPool::Node> ScratchPool::wait() noexcept {
  if (empty_) return none();
  std::unique_lock lock(mutex_);
  returned_.wait(lock, [this] { return free_ != nullptr; });
  return pop();
}

Owned<ScratchPool::Node> ScratchPool::take(size_t bytes) {
  Owned<Node> node = none();
  {
    const std::lock_guard lock(mutex_);
    if (free_ != nullptr) node = pop();
  }
  if (node == nullptr) node = make_owned<Node>(allocator_, allocator_);
  try {
    node->grow(bytes);
  } catch (...) {
    put_back(std::move(node));
    throw;
  }
  return node;
}

void ScratchPool::put_back(Owned<Node> node) noexcept {
  if (node == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    node->next = std::move(free_);
    free_ = std::move(node);
  }
  returned_.notify_one();
}

}  // namespace kvq
