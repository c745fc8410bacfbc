#pragma once

#include "cache/sequence.h"

#include <cstddef>
#include <span>

namespace kvq::io {

/// A sequence as bytes, little-endian (docs/architecture/files.md has the layout). The same content gives the same
/// bytes on every backend.
size_t snapshot_size(const Sequence& sequence);
void write_snapshot(const Sequence& sequence, std::span<std::byte> out);

/// Whether a file begins as snapshots do, of any version.
bool is_snapshot(std::span<const std::byte> bytes);

/// Fill an empty sequence. Throws KVQ_E_FORMAT or KVQ_E_MISMATCH; then destroy the sequence, which may have some of the
/// pages.
void read_snapshot(std::span<const std::byte> bytes, Sequence& sequence);

}  // namespace kvq::io
