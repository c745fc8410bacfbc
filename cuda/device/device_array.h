#pragma once

#include "device/device_block.h"

#include <algorithm>
#include <span>

namespace kvq::cuda {

/// Numbers in device memory. Made, filled and read during a call of the backend.
template <typename Number>
class DeviceArray {
 public:
  DeviceArray(CudaBackend& backend, Allocator& account, size_t n)
      : block_(backend, account, std::max<size_t>(n, 1) * sizeof(Number)), n_(n) {}

  size_t size() const { return n_; }
  Number* data() const { return reinterpret_cast<Number*>(block_.memory()); }
  Number* from(size_t first) const { return data() + first; }

 private:
  DeviceBlock block_;
  size_t n_;
};

template <typename Number>
void upload(const CudaBackend& backend, const CudaBackend::Call& call, std::span<const Number> from, Number* to) {
  if (from.empty()) return;
  call.require(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, backend.stream()),
               "cudaMemcpyAsync");
}

/// Waits for the device.
template <typename Number>
void download(const CudaBackend& backend, const CudaBackend::Call& call, const Number* from, std::span<Number> to) {
  if (!to.empty()) {
    call.require(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, backend.stream()),
                 "cudaMemcpyAsync");
  }
  call.require(cudaStreamSynchronize(backend.stream()), "cudaStreamSynchronize");
}

/// The sums of products that `sum(parts, sums)` launches (products.cuh): [rows][columns].
template <typename Sum>
void sum_on_device(CudaBackend& backend, const CudaBackend::Call& call, Allocator& account, size_t parts, size_t n,
                   double* sums, const Sum& sum) {
  if (parts == 1) return call.require(sum(sums, sums), "kernel of training");
  const DeviceArray<double> of_parts(backend, account, parts * n);
  call.require(sum(of_parts.data(), sums), "kernel of training");
}

}  // namespace kvq::cuda
