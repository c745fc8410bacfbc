#include "conversation.h"
#include "support/build.h"
#include "support/guarded_memory.h"

#include <doctest/doctest.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace conformance::bounds_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::GuardedArray;
using kvq_test::GuardedBlock;
using kvq_test::Sequence;

namespace {

// Allocator hooks that place every block in front of a guard page.
struct GuardedHeap {
  std::mutex mutex;
  std::unordered_map<void*, std::unique_ptr<GuardedBlock>> blocks;

  static void* allocate(void* user, size_t bytes, size_t alignment) {
    auto* heap = static_cast<GuardedHeap*>(user);
    auto block = std::make_unique<GuardedBlock>(bytes, alignment);
    void* const data = block->data();
    const std::lock_guard lock(heap->mutex);
    if (data != nullptr) heap->blocks.emplace(data, std::move(block));
    return data;
  }
  static void release(void* user, void* pointer, size_t, size_t) {
    auto* heap = static_cast<GuardedHeap*>(user);
    const std::lock_guard lock(heap->mutex);
    heap->blocks.erase(pointer);
  }
};

std::vector<float> attend_guarded(const Shape& shape, kvq_cache* cache, const kvq_sequence* sequence, int32_t count) {
  GuardedArray<float> q(queries(shape, static_cast<size_t>(count)));
  GuardedArray<float> out(std::vector<float>(q.values().size()));
  GuardedArray<int32_t> counts(std::vector<int32_t>{count});
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.query_counts = counts.data();
  batch.q = q.data();
  batch.output = out.data();
  kvq_test::attend(cache, 0, batch);
  return {out.values().begin(), out.values().end()};
}

}  // namespace

// Crashes if a kernel reads or writes beyond a page, the workspace or the caller's tensors. Compares the results with
// those of ordinary memory, which also detects reads before a block.
TEST_CASE("nothing is read or written beyond its end") {
  for (const int32_t head_dim : {8, 24, 80, 96, 128, 200, 256}) {
    if (kvq_test::kSmallRun && head_dim != 24 && head_dim != 128) continue;
    std::vector<Storage> storages = all_storages();
    for (const Storage& storage : coded_storages()) storages.push_back(storage);
    for (const Storage& storage : centred_storages()) storages.push_back(storage);
    const Shape shape{.q_heads = 3, .kv_heads = 1, .head_dim = head_dim, .n_layers = 1};
    for (const std::string& isa : kvq_test::cpu_isa_names()) {
      for (const Storage& storage : storages) {
        for (const int32_t n : {1, 33, 70}) {
          CAPTURE(head_dim);
          CAPTURE(isa);
          CAPTURE(storage.name());
          GuardedHeap heap;
          auto options = kvq_test::initialised<kvq_context_options>();
          options.cpu_isa = isa.c_str();
          options.allocate = GuardedHeap::allocate;
          options.free = GuardedHeap::release;
          options.allocator_user = &heap;
          const size_t scalars = static_cast<size_t>(n) * shape.token_scalars();
          const std::vector<float> k = kvq_test::normal_tensor(scalars, 1);
          const std::vector<float> v = kvq_test::normal_tensor(scalars, 2);
          std::vector<float> results[2];
          kvq_test::Snapshot snapshots[2];
          for (const bool guarded : {false, true}) {
            const Context context = guarded ? kvq_test::Context(options) : kvq_test::make_context(isa.c_str());
            const Cache cache = make_cache(context, shape.options(), storage);
            Sequence sequence(cache);
            GuardedArray<float> k_guarded(k);
            GuardedArray<float> v_guarded(v);
            kvq_test::append(sequence, 0, n, k_guarded.data(), v_guarded.data());
            for (const int32_t count : {1, std::min(n, 9)}) {
              const std::vector<float> out = attend_guarded(shape, cache, sequence, count);
              results[guarded].insert(results[guarded].end(), out.begin(), out.end());
            }
            snapshots[guarded] = sequence.save();
            GuardedArray<std::byte> bytes(snapshots[guarded]);
            Sequence loaded = kvq_test::Sequence::load(cache, bytes.values());
            kvq_test::decode(loaded, 0, 0, 0, n, head_dim);
          }
          CHECK(results[0] == results[1]);
          CHECK(snapshots[0] == snapshots[1]);
          CHECK(heap.blocks.empty());
        }
      }
    }
  }
}

}  // namespace conformance::bounds_test
