// How tokens become pages: what CudaPages and page tables call.
#pragma once

#include "device/device.h"
#include "kernels/append/append.h"
#include "kernels/device/rope.h"
#include "pages/page_table.h"

namespace kvq::cuda {

/// Raise the shared-memory limits of the kernels.
void prepare_appending(const Device& device);

/// Pages::append of at least one page.
void append_pages(Device& device, const Call& call, const TokenBatch& tokens, const PageWrites& writes,
                  std::span<const AppendedLayer> layers, Allocator& scratch);

/// Writes pages without CommVQ codes, or FP16 pages in place of pages with them. Tables have room.
void append_plain(Device& device, const Call& call, const TokenBatch& tokens, std::span<const PageWrite> writes,
                  std::span<const AppendedLayer> layers, Allocator& scratch);

/// Writes pages of a batch that has some with CommVQ codes. Tables have room.
void append_commvq(Device& device, const Call& call, const TokenBatch& tokens, const PageWrites& writes,
                   std::span<const AppendedLayer> layers, Allocator& scratch);

/// LayerMirror::record_append.
void record_append(Device& device, const TokenBatch& tokens, AppendKind kind, PageTable& table);

/// What kernels that write pages know of tokens, without pages.
AppendArguments append_arguments(const Device& device, const TokenBatch& tokens);
RopeArguments rope_arguments(const Rope& rope);

}  // namespace kvq::cuda
