#pragma once

#include "backend/backend.h"
#include "cache/policy.h"
#include "cache/sequence.h"
#include "core/parallel.h"
#include "formats/commvq/model_codebook.h"
#include "router/router.h"
#include "weights/matrix.h"

#include <memory>
#include <mutex>

// The C handles are the internal objects themselves, under the names that kvq.h declares.

struct kvq_context {
  kvq_context(const kvq_context_options& options, const kvq::AllocatorHooks& hooks);
  void log(kvq_log_level level, const char* message) const {
    if (log_hook != nullptr) log_hook(log_user, level, message);
  }

  kvq::Allocator allocator;
  kvq::Parallel parallel;
  kvq::Owned<kvq::Backend> backend;
  kvq_device device;
  kvq_log_hook log_hook;
  void* log_user;
};

struct kvq_policy : kvq::Policy {
  kvq_policy(kvq::Allocator& source, kvq::Policy&& policy) : kvq::Policy(std::move(policy)), allocator(source) {}
  kvq::Allocator& allocator;
};

struct kvq_cache : kvq::Cache {
  kvq_cache(kvq_context& context, const kvq_cache_options& options, const kvq_policy* policy,
            kvq::CacheTraining trained)
      : kvq::Cache(context.allocator, *context.backend, options, policy, std::move(trained)) {}
};

struct kvq_sequence : kvq::Sequence {
  using kvq::Sequence::Sequence;
};

namespace kvq::api {

/// What was trained. Caches hold `shared` and what the backend made of it, which outlive the handle.
template <typename Data>
struct TrainedHandle {
  TrainedHandle(Allocator& source, std::shared_ptr<const Data> data) : allocator(source), shared(std::move(data)) {}

  /// One for all caches that exist at the same time; `make` makes it.
  template <typename Make>
  std::shared_ptr<const Resident> resident(const Make& make) const {
    const std::lock_guard lock(mutex);
    std::shared_ptr<const Resident> made = last.lock();
    if (made == nullptr) last = made = make(shared);
    return made;
  }

  Allocator& allocator;
  std::shared_ptr<const Data> shared;
  mutable std::mutex mutex;
  mutable std::weak_ptr<const Resident> last;
};

/// A sequence is one of its cache's.
void require_owner(const kvq_cache* cache, const kvq_sequence* sequence, const char* argument);

/// Destroy a handle that lies in `allocator`.
template <typename Handle>
void destroy(Handle* handle, Allocator& allocator) {
  Deleter<Handle>(allocator, sizeof(Handle), alignof(Handle))(handle);
}

}  // namespace kvq::api

struct kvq_codebook : kvq::api::TrainedHandle<kvq::ModelCodebook> {
  using TrainedHandle::TrainedHandle;
};

struct kvq_router : kvq::api::TrainedHandle<kvq::ModelRouter> {
  kvq_router(kvq::Allocator& source, std::shared_ptr<const kvq::ModelRouter> router);
  kvq::String experts;  // their names
};

/// A packed matrix lies where the context computes with it; what it is, the host knows too.
struct qp_matrix {
  qp_matrix(kvq_context& owner, kvq::weights::Matrix&& matrix);

  kvq_context& context;
  kvq::weights::MatrixInfo info;
  kvq::Owned<kvq::Resident> resident;
};

// Usage counts these objects by the size of their base.
static_assert(sizeof(kvq_cache) == sizeof(kvq::Cache));
static_assert(sizeof(kvq_sequence) == sizeof(kvq::Sequence));
