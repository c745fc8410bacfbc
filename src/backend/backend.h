// A device that stores pages and computes on them: a set of facets, some of which may be missing.
#pragma once

#include "backend/attention.h"
#include "backend/facet.h"
#include "backend/linear.h"
#include "backend/pages.h"
#include "backend/training.h"
#include "backend/tuning.h"
#include "backend/voting.h"
#include "backend/weighing.h"
#include "weights/quantizing.h"

namespace kvq {

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
  virtual Facet<Weighing> weighing() = 0;
  virtual Facet<Voting> voting() = 0;
  virtual Facet<Linear> linear() = 0;
  virtual Facet<Tuning> tuning() = 0;
  virtual Facet<Training> training() = 0;
  virtual Facet<weights::Quantizing> quantizing() = 0;
};

}  // namespace kvq
