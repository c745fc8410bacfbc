#pragma once

#include "config.h"
#include "kvq.h"
#include "kvq.hpp"

namespace llama {

/// Numbers in the memory that a Device computes on. Copies share them.
struct Array {
  std::shared_ptr<float> data;
  size_t size = 0;

  bool empty() const { return size == 0; }
  std::span<float> first(size_t n) const { return {data.get(), n}; }
  std::span<const float> all() const { return {data.get(), size}; }
};

/// Numbers as a file holds them, little-endian: in host memory, of any alignment, or in a GPU's. Copies share them.
struct StoredNumbers {
  std::shared_ptr<const std::byte> data;
  kvq_dtype dtype = KVQ_F32;  // or KVQ_F16 or KVQ_BF16
};

/// Bytes of one such number.
constexpr int64_t bytes_of(kvq_dtype dtype) { return dtype == KVQ_F32 ? 4 : 2; }

/// Floats as such numbers.
inline StoredNumbers numbers_of(const Array& floats) {
  return {{floats.data, reinterpret_cast<const std::byte*>(floats.data.get())}, KVQ_F32};
}

/// A weight matrix, `[rows, columns]`, in the memory of the device that multiplies with it: on the CPU the checkpoint's
/// file.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  StoredNumbers numbers;
};

/// A linear layer: weights as numbers, or written in few bits by the library.
struct Linear {
  Matrix weight;                                        // [out, in]; without numbers if packed
  Array bias;                                           // [out], or empty, as it is if packed
  std::shared_ptr<const kvq::Matrix> packed = nullptr;  // weights and bias
};

/// One of several linear layers that read the same inputs, and where its outputs go.
struct Product {
  const Linear* linear;
  std::span<float> y;
};

/// Where a model computes all but its attention: weights and activations lie in its memory, which is also where
/// contexts of its kind expect their tensors.
///
/// Operations run in the order of their calls, and in order with what such contexts issue to their default stream. They
/// may still be under way when they return; read() waits. Tensors are `[rows, width]`; the number of rows follows from
/// the length of a span. Failures are Errors. One caller at a time.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Kind of the contexts that can be used with this, those of packed layers included.
  virtual kvq_device kind() const = 0;
  /// All of the host's, or what is free on a GPU.
  virtual uint64_t memory_bytes() const = 0;

  virtual Array allocate(size_t n) = 0;
  virtual Array upload(std::vector<float> numbers) = 0;
  /// The same `n` numbers of host memory where matrices of this device are: on the CPU where they were.
  virtual StoredNumbers place(const StoredNumbers& numbers, size_t n) = 0;
  /// The numbers where the host can read them, once they are computed: in `host`, which grows as needed, unless they
  /// are in host memory anyway.
  virtual std::span<const float> read(std::span<const float> numbers, Array& host) = 0;

  /// The numbers of a matrix, as floats.
  std::vector<float> read(const Matrix& matrix);

  /// x = scale · the rows of `embedding` that the tokens, which must be among them, number.
  virtual void embed(const Matrix& embedding, std::span<const int32_t> tokens, float scale, std::span<float> x) = 0;
  /// y = x / rms(x) · weight for each row of `weight.size` numbers; `x` and `y` may be the same.
  virtual void rms_norm(std::span<const float> x, const Array& weight, float epsilon, std::span<float> y) = 0;
  /// y = x·Wᵀ + b.
  void apply(const Linear& linear, std::span<const float> x, std::span<float> y);
  /// y = x·Wᵀ + b of each. Packed layers share work on their inputs.
  void apply_shared(std::span<const Product> products, std::span<const float> x);
  /// y += x·Wᵀ + b.
  void apply_and_add(const Linear& linear, std::span<const float> x, std::span<float> y);
  /// gate = activation(gate) · up.
  virtual void gate(Activation activation, int32_t rows, std::span<float> gate, std::span<const float> up) = 0;
  /// y += x.
  virtual void add(std::span<const float> x, std::span<float> y) = 0;
  /// x = cap · tanh(x / cap).
  virtual void softcap(float cap, std::span<float> x) = 0;
  /// sums = xᵀ·x + beta·sums with x `[n, in]` and sums `[in, in]`, of which the upper triangle is what counts. With a
  /// beta of 0, sums is not read.
  virtual void add_gram(std::span<const float> x, int64_t in, float beta, std::span<float> sums) = 0;

 private:
  /// The same `n` numbers, of a matrix of this device, in host memory.
  virtual StoredNumbers on_host(const StoredNumbers& numbers, size_t n) = 0;
  /// y = x·Wᵀ + b + beta·y of a layer whose weights are numbers.
  virtual void multiply(const Linear& linear, std::span<const float> x, float beta, std::span<float> y) = 0;

  std::vector<Product> packed_;  // of the call under way
  Array product_;                // what is about to be added, for the largest call so far
};

}  // namespace llama
