#include "kernels/wide/instances.cuh"
#include "kernels/wide/pipeline.cuh"

namespace kvq::cuda {
namespace {

/// Channels are those of the shape, except that a latent may have fewer of the key side.
template <typename S>
WideKernel kernel(const HeadShape& head, int32_t shared_limit) {
  const WideLaunch widths = wide_widths(head);
  if (widths.common_width != 64 * S::kCommonPlanes || widths.key_width != 64 * S::kKeyPlanes) return {};
  if (head.values != S::kValues) return {};
  WideKernel kernel = wide_kernel_of<S, pipeline_kernel<S>>(head, shared_limit);
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
