#pragma once

#include "cache/sequence.h"

#include <cstddef>
#include <span>

namespace kvq::io {

/// Sequences as bytes, little-endian (docs/architecture/files.md has the layout). The same content gives the same bytes
/// on every backend. Pages that several of them hold are written once.
size_t snapshot_size(std::span<const Sequence* const> sequences);
void write_snapshot(std::span<const Sequence* const> sequences, std::span<std::byte> out);

/// Whether a file begins as snapshots do, of any version.
bool is_snapshot(std::span<const std::byte> bytes);

/// Check everything but the pages, and return the number of sequences. Throws KVQ_E_FORMAT or KVQ_E_MISMATCH.
int32_t snapshot_sequences(std::span<const std::byte> bytes, const Cache& cache);

/// Fill as many empty sequences as the snapshot has. `recode`: write pages anew that are in other formats than their
/// sequence's storage has, else refuse them. Throws KVQ_E_FORMAT or KVQ_E_MISMATCH; then destroy the sequences, which
/// may have some of the pages.
void read_snapshot(std::span<const std::byte> bytes, std::span<Sequence* const> sequences, bool recode);

/// What reading a snapshot takes; the arguments are as for read_snapshot().
struct SnapshotContents {
  int32_t sequences;
  int32_t tokens;         // of the longest layer
  bool trained;           // pages need trained data
  int64_t pages;          // shared ones once
  int64_t recoded_pages;  // among these
  uint64_t bytes;         // of the sequences, at most
  uint64_t needed;        // to load them, at most
};
SnapshotContents describe_snapshot(std::span<const std::byte> bytes, Cache& cache, const Storage& storage, bool recode);

}  // namespace kvq::io
