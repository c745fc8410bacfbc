// A device that stores pages and computes on them: a set of facets, some of which may be missing.
#pragma once

#include "backend/attention.h"
#include "backend/block_pools.h"
#include "backend/linear.h"
#include "backend/pages.h"
#include "backend/training.h"
#include "backend/voting.h"
#include "backend/weighing.h"
#include "core/error.h"
#include "weights/quantizing.h"

namespace kvq {

/// An optional part of a backend, with the reason if it is missing.
template <typename Part>
class Facet {
 public:
  Facet(Part& part) : part_(&part) {}
  /// `reason`: the missing feature, as in "cuda does not train routers"; the pointer is kept.
  static Facet missing(const char* reason) { return Facet(reason); }

  explicit operator bool() const { return part_ != nullptr; }
  Part& operator*() const { return *part_; }
  Part* operator->() const { return part_; }
  const char* reason() const { return reason_; }
  /// Returns the part; throws KVQ_E_UNSUPPORTED with the reason if it is missing.
  Part& require() const {
    if (part_ == nullptr) fail(KVQ_E_UNSUPPORTED, "%s", reason_);
    return *part_;
  }

 private:
  explicit Facet(const char* reason) : reason_(reason) {}

  Part* part_ = nullptr;
  const char* reason_ = "";
};

/// Everything throws Error; nothing changes on failure.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual const char* isa() const = 0;
  /// Run later work after all work issued so far, on another queue of the device.
  virtual void set_stream(void* stream) = 0;
  /// Work is being recorded for repeated replay: nothing may be allocated or waited for.
  virtual bool recording() = 0;

  virtual Pages& pages() = 0;
  virtual Attention& attention() = 0;
  virtual Facet<BlockPools> block_pools() = 0;
  virtual Facet<Weighing> weighing() = 0;
  virtual Facet<Voting> voting() = 0;
  virtual Facet<Linear> linear() = 0;
  virtual Facet<Tuning> tuning() = 0;
  virtual Facet<Training> training() = 0;
  virtual Facet<weights::Quantizing> quantizing() = 0;
};

}  // namespace kvq
