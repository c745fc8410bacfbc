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
  // All pieces are alike: a loop may take any of them, and their size follows from the largest of both numbers.
  largest_ = std::max(largest_, bytes);
  size_t ready = 0;
  for (Node* node = nodes_.first(); node != nullptr; node = node->next.get(), ++ready) node->grow(largest_);
  for (; ready < pieces; ++ready) {
    Owned<Node> node = make_owned<Node>(allocator_, allocator_);
    node->grow(largest_);
    nodes_.put_back(std::move(node));
  }
}

Owned<ScratchPool::Node> ScratchPool::wait() noexcept {
  return empty_ ? Owned<Node>(nullptr, Deleter<Node>(allocator_, 0, 0)) : nodes_.wait();
}

Owned<ScratchPool::Node> ScratchPool::take(size_t bytes) {
  Owned<Node> node = nodes_.take();
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
  if (node != nullptr) nodes_.put_back(std::move(node));
}

}  // namespace kvq
