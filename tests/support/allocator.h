// An allocator for objects of the library.
#pragma once

#include "core/memory.h"

namespace kvq_test {

inline kvq::Allocator& test_allocator() {
  static kvq::Allocator allocator(kvq::AllocatorHooks{}, 0);
  return allocator;
}

}  // namespace kvq_test
