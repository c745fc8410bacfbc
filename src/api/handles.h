#pragma once

#include "backend/backend.h"
#include "cache/policy.h"
#include "cache/sequence.h"
#include "core/parallel.h"
#include "formats/commvq/model_coder.h"
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
            std::shared_ptr<const kvq::ModelCoder> shared_coder, std::shared_ptr<const kvq::ModelRouter> shared_router)
      : kvq::Cache(context.allocator, *context.backend, options, policy, std::move(shared_coder),
                   std::move(shared_router)) {}
};

struct kvq_sequence : kvq::Sequence {
  using kvq::Sequence::Sequence;
};

/// Caches hold `shared` and a coder made from it, which outlive the handle.
struct kvq_codebook {
  kvq_codebook(kvq::Allocator& source, std::shared_ptr<const kvq::ModelCodebook> codebook)
      : allocator(source), shared(std::move(codebook)) {}

  /// One for all caches that exist at the same time.
  std::shared_ptr<const kvq::ModelCoder> coder(kvq::Parallel& parallel) const {
    const std::lock_guard lock(coder_mutex);
    std::shared_ptr<const kvq::ModelCoder> made = last_coder.lock();
    if (made == nullptr) {
      made = std::allocate_shared<const kvq::ModelCoder>(kvq::StlAllocator<kvq::ModelCoder>(allocator), allocator,
                                                         parallel, shared);
      last_coder = made;
    }
    return made;
  }

  kvq::Allocator& allocator;
  std::shared_ptr<const kvq::ModelCodebook> shared;
  mutable std::mutex coder_mutex;
  mutable std::weak_ptr<const kvq::ModelCoder> last_coder;
};

/// Caches hold `shared`, which outlives the handle.
struct kvq_router {
  kvq_router(kvq::Allocator& source, std::shared_ptr<const kvq::ModelRouter> router);

  kvq::Allocator& allocator;
  std::shared_ptr<const kvq::ModelRouter> shared;
  kvq::String experts;  // their names
};

struct qp_matrix : kvq::weights::Matrix {
  qp_matrix(kvq_context& owner, kvq::weights::Matrix&& matrix) : Matrix(std::move(matrix)), context(owner) {}
  kvq_context& context;
};

// Usage counts these objects by the size of their base.
static_assert(sizeof(kvq_cache) == sizeof(kvq::Cache));
static_assert(sizeof(kvq_sequence) == sizeof(kvq::Sequence));
