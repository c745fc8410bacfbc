// Packed matrices as safetensors; docs/weights.md has the layout.
#pragma once

#include "io/safetensors.h"
#include "weights/matrix.h"

#include <cstddef>
#include <span>
#include <string_view>

namespace kvq::io {

inline constexpr std::string_view kMatrixType = "kvq.weights";  // in the metadata
inline constexpr int32_t kMatrixFileVersion = 2;
inline constexpr size_t kMaxMatrixName = 200;

/// Mark a file as one of matrices.
void begin_matrix_file(SafetensorsWriter& file);
/// Add a matrix, which must live until the file is written. Throws KVQ_E_ARGUMENT for a name that is too long, empty,
/// or not UTF-8.
void add_matrix(SafetensorsWriter& file, std::string_view name, const weights::Matrix& matrix);

/// Read a matrix. Throws KVQ_E_ARGUMENT if there is none of that name, KVQ_E_FORMAT, KVQ_E_MISMATCH.
weights::Matrix read_matrix(Allocator& allocator, std::span<const std::byte> bytes, std::string_view name);

}  // namespace kvq::io
