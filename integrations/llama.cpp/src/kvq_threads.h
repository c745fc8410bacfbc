#pragma once

#include <kvq.h>

#include <atomic>
#include <cstdint>

namespace llama_kvq {

/// ggml's threads of one graph node do kvq's parallel loops: ggml keeps them spinning until the node is done, so
/// threads of kvq's own would compete with them for cores.
class Threads {
 public:
  /// Body of a kvq_parallel_for_hook; `user` is a Threads.
  static int32_t run(void* user, int32_t n, kvq_parallel_body body, void* argument);

  /// What a node's threads other than the first do, until the first one sets `done`.
  void help(const std::atomic<bool>& done);

 private:
  void take_indices();

  std::atomic<bool> open_{false};   // there is a loop to help with
  std::atomic<int32_t> inside_{0};  // helpers that may be looking at the loop
  std::atomic<int32_t> next_{0};
  int32_t n_ = 0;
  kvq_parallel_body body_ = nullptr;
  void* argument_ = nullptr;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
};

}  // namespace llama_kvq
