#pragma once

#include <cstddef>
#include <cstdint>

namespace kvq {

/// A count, and the elements of `rows` rows of `columns` columns, as size_t.
inline size_t size(int32_t n) { return static_cast<size_t>(n); }
inline size_t size(int32_t rows, int32_t columns) { return size(rows) * size(columns); }

}  // namespace kvq
