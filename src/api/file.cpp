#include "api/boundary.h"
#include "api/handles.h"
#include "io/file_kind.h"

using namespace kvq;
using namespace kvq::api;

kvq_status kvq_file_type(kvq_context* context, const void* data, size_t size, kvq_file_kind* kind, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    require(data, "data");
    require(kind, "kind");
    *kind = io::file_kind(context->allocator, {static_cast<const std::byte*>(data), size});
  });
}
