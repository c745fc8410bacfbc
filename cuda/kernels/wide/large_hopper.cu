#include "kernels/wide/instances.cuh"
#include "kernels/wide/pipeline.cuh"

namespace kvq::cuda {
namespace {

/// Whether so many channels take at least half of a width; the rest is multiplied as zeros.
constexpr bool fills(int32_t channels, int32_t width) { return channels <= width && 2 * channels > width; }

template <typename S>
WideKernel kernel(const HeadShape& head, int32_t shared_limit) {
  constexpr WideWidths kWidths{
      .key_width = 64 * S::kKeyPlanes, .common_width = 64 * S::kCommonPlanes, .value_width = S::kValues};
  if (head.is_latent != S::kLatent || !fills(head.values, kWidths.value_width)) return {};
  const bool keys = S::kLatent ? head.keys > 0 && head.keys <= kWidths.key_width : fills(head.keys, kWidths.key_width);
  if (!keys) return {};
  WideKernel kernel = wide_kernel_of<S, pipeline_kernel<S>>(head, kWidths, shared_limit);
  kernel.reads_tiles = !S::kDecodes;
  return kernel;
}

template <template <int, int, int> typename Shape>
WideKernel kernel_of(const HeadShape& head, int32_t shared_limit) {
  for (const auto of_shape : {kernel<Shape<8, 1, 512>>, kernel<Shape<4, 1, 256>>, kernel<Shape<0, 8, 512>>}) {
    const WideKernel each = of_shape(head, shared_limit);
    if (each.launch != nullptr) return each;
  }
  return {};
}

}  // namespace

WideKernel hopper_wide(const HeadShape& head, int32_t shared_limit) {
  return kernel_of<DecodingShape>(head, shared_limit);
}
WideKernel hopper_tiled_wide(const HeadShape& head, int32_t shared_limit) {
  return kernel_of<CopyingShape>(head, shared_limit);
}

}  // namespace kvq::cuda
