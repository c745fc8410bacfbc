#pragma once

#include "backend/backend.h"
#include "cache/policy.h"
#include "cache/sequence.h"
#include "core/parallel.h"
#include "formats/commvq/model_codebook.h"
#include "formats/gain_shape/model_centres.h"
#include "formats/router/router.h"
#include "weights/matrix.h"

#include <atomic>
#include <memory>
#include <mutex>

// The C handles are the internal objects themselves, under the names that kvq.h declares.

namespace kvq::api {

/// Counts the holders of an object: the caller until it destroys the handle, and everything made from it.
class Holders {
 public:
  void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  /// Whether it was the last.
  bool drop() noexcept { return count_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

 private:
  std::atomic<uint32_t> count_{1};
};

/// Drop a holder; the last one destroys the object.
void release(kvq_context* context) noexcept;
void release(kvq_cache* cache) noexcept;
void release(kvq_pool* pool) noexcept;

/// The caller's hooks for device memory, called so that nothing they throw reaches a plug-in.
struct DeviceHooks {
  kvq_device_allocate_hook allocate;
  kvq_device_free_hook free;
  void* user;
};

/// Defaults of cache options.
kvq_cache_options default_cache_options();

/// Keeps an object's parent alive.
template <typename Handle>
class Kept {
 public:
  explicit Kept(Handle& handle) noexcept : handle_(&handle) { handle_->holders.add(); }
  Kept(const Kept& other) noexcept : Kept(*other.handle_) {}
  Kept& operator=(const Kept&) = delete;
  ~Kept() { release(handle_); }

  Handle& operator*() const noexcept { return *handle_; }
  Handle* operator->() const noexcept { return handle_; }

 private:
  Handle* handle_;
};

/// Destroy an object in its context's memory, and the context if this was its last holder.
template <typename Handle>
void destroy(Handle* handle) noexcept {
  if (handle == nullptr) return;
  const auto context = handle->context;
  Deleter<Handle>(context->allocator, sizeof(Handle), alignof(Handle))(handle);
}

}  // namespace kvq::api

struct kvq_context {
  kvq_context(const kvq_context_options& options, const kvq::AllocatorHooks& hooks);
  void log(kvq_log_level level, const char* message) const noexcept;

  kvq::api::Holders holders;
  kvq::Allocator allocator;
  kvq_device device;
  kvq_log_hook log_hook;
  void* log_user;
  kvq_released_hook released;
  void* released_user;
  kvq::Parallel parallel;
  kvq::api::DeviceHooks device_hooks;
  kvq::Owned<kvq::Backend> backend;
};

struct kvq_policy : kvq::Policy {
  kvq_policy(kvq_context& owner, kvq::Policy&& policy) : kvq::Policy(std::move(policy)), context(owner) {}

  kvq::api::Kept<kvq_context> context;
};

struct kvq_cache : kvq::Cache {
  kvq_cache(kvq_context& owner, const kvq_cache_options& options, const kvq_policy* policy, kvq::CacheTraining trained)
      : kvq::Cache(owner.allocator, *owner.backend, options, policy, std::move(trained), sizeof(kvq_cache)),
        context(owner) {}

  kvq::api::Holders holders;
  kvq::api::Kept<kvq_context> context;
};

struct kvq_sequence : kvq::Sequence {
  template <typename... Arguments>
  explicit kvq_sequence(kvq_cache& owner, const Arguments&... arguments) : kvq::Sequence(owner, arguments...) {
    owner.holders.add();
  }
  /// Its memory is the cache's, which its destroyer keeps until the memory is released.
  ~kvq_sequence() { kvq::api::release(&owner()); }

  kvq_cache& owner() const { return static_cast<kvq_cache&>(cache); }
};

namespace kvq::api {

/// Trained data. Caches hold `shared` and its backend form, which outlive the handle.
template <typename Data>
struct TrainedHandle {
  TrainedHandle(kvq_context& owner, std::shared_ptr<const Data> data) : context(owner), shared(std::move(data)) {}

  /// Backend form, one for all simultaneous caches, made by `make`.
  template <typename Make>
  std::shared_ptr<const Resident> resident(const Make& make) const {
    const std::lock_guard lock(mutex);
    std::shared_ptr<const Resident> made = last.lock();
    if (made == nullptr) last = made = make(shared);
    return made;
  }

  Kept<kvq_context> context;
  std::shared_ptr<const Data> shared;
  mutable std::mutex mutex;
  mutable std::weak_ptr<const Resident> last;
};

/// Throw unless the sequence belongs to the cache, and let it catch up with replays.
void require_current(const kvq_cache* cache, const kvq_sequence* sequence, const char* argument = "sequence");
/// Throw unless entry `index` of batch->sequences belongs to the cache.
void require_owner_of_entry(const kvq_cache& cache, const kvq_sequence* sequence, int32_t index);
/// The storage of a policy for sequences of a cache; null: the cache's. Throws unless the cache can hold it.
const Storage& storage_for(kvq_cache& cache, const kvq_policy* policy);
void write_layer(const Storage& storage, const LayerShape& shape, kvq_layer_info* info);

/// Layer of the model. Throws unless the cache has it.
const LayerShape& any_layer_of(const Cache& cache, int32_t layer);
/// The same of layers that hold tokens or read others' pages. Throws for a recurrent one.
const LayerShape& layer_of(const Cache& cache, int32_t layer);
/// Index among Cache::layers() of the layer that tokens are appended to. Throws if `layer` reads another one's pages.
int32_t appended_layer(const Cache& cache, int32_t layer);

}  // namespace kvq::api

struct kvq_codebook : kvq::api::TrainedHandle<kvq::ModelCodebook> {
  using TrainedHandle::TrainedHandle;
};

struct kvq_centres : kvq::api::TrainedHandle<kvq::ModelCentres> {
  using TrainedHandle::TrainedHandle;
};

struct kvq_router : kvq::api::TrainedHandle<kvq::ModelRouter> {
  kvq_router(kvq_context& owner, std::shared_ptr<const kvq::ModelRouter> router);
  kvq::String experts;  // their names
};

/// A packed matrix is in its backend's memory; its description is on the host.
struct qp_matrix {
  qp_matrix(kvq_context& owner, kvq::weights::Matrix&& matrix);
  /// Bytes of a matrix in host memory, this object included.
  static uint64_t allocated_bytes(const kvq::weights::MatrixShape& shape) {
    return sizeof(qp_matrix) + kvq::weights::MatrixInfo::allocated_bytes(shape) + sizeof(kvq::HostMatrix) +
           shape.allocated_bytes();
  }

  kvq::api::Kept<kvq_context> context;
  kvq::weights::MatrixInfo info;
  kvq::Owned<kvq::Resident> resident;
};

// Usage counts the size of its base.
static_assert(sizeof(kvq_sequence) == sizeof(kvq::Sequence));
