#pragma once

#include "core/error.h"

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

}  // namespace kvq
