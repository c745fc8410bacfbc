#pragma once

#include "core/sizes.h"
#include "kvq.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvq {

/// Page data and work space are aligned for the widest vector registers, which are also cache lines.
inline constexpr size_t kDataAlignment = 64;

/// The caller's memory hooks; both null for the C++ runtime. Catches what a hook throws.
struct AllocatorHooks {
  kvq_allocate_hook allocate = nullptr;
  kvq_free_hook free = nullptr;
  void* user = nullptr;

  void* call_allocate(size_t bytes, size_t alignment) const noexcept;
  void call_free(void* pointer, size_t bytes, size_t alignment) const noexcept;
};

/// Counts every byte and enforces a limit. A context has a root allocator; caches and work spaces have children, whose
/// bytes also count in all their ancestors.
class Allocator {
 public:
  /// `own_bytes`: bytes of the object that contains the allocator and so is allocated elsewhere. They count here, not
  /// in ancestors.
  Allocator(const AllocatorHooks& hooks, uint64_t limit, uint64_t own_bytes = 0) noexcept
      : hooks_(hooks), limit_(limit), bytes_(own_bytes), peak_(own_bytes) {}
  Allocator(Allocator& parent, uint64_t limit, const char* owner, uint64_t own_bytes = 0) noexcept
      : parent_(&parent), limit_(limit), owner_(owner), bytes_(own_bytes), peak_(own_bytes) {}
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  ~Allocator() { drop_block(); }

  /// Throws KVQ_E_LIMIT or KVQ_E_MEMORY.
  void* allocate(size_t bytes, size_t alignment);
  void release(void* pointer, size_t bytes, size_t alignment) noexcept;

  /// Keep a block, which allocations are served from while it has room for them: last in, first out, by one thread at a
  /// time. Nothing of an earlier block may be in use. Throws like allocate(); there may be no block then.
  void keep_block(uint64_t bytes);
  void drop_block() noexcept;
  /// Bytes of a block that an allocation takes, at most.
  static constexpr uint64_t bytes_in_block(uint64_t bytes) { return bytes + sizeof(BlockPiece) + kDataAlignment; }

  /// Count memory of another source, a device. `reserve` throws KVQ_E_LIMIT.
  void reserve(uint64_t bytes);
  void unreserve(uint64_t bytes) noexcept;

  /// Keep bytes of the limits, here and in ancestors, from all allocations until give_back(). Throws KVQ_E_LIMIT if
  /// they are not free.
  void keep_back(uint64_t bytes);
  void give_back(uint64_t bytes) noexcept;

  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const noexcept { return peak_.load(std::memory_order_relaxed); }
  uint64_t limit() const noexcept { return limit_; }
  Allocator& parent() const noexcept { return *parent_; }
  const AllocatorHooks& hooks() const noexcept { return hooks_; }

 private:
  /// Before each allocation in the block.
  struct BlockPiece {
    BlockPiece* previous;
    bool in_use;
  };
  static BlockPiece* piece_of(void* pointer) noexcept { return static_cast<BlockPiece*>(pointer) - 1; }

  const Allocator& root() const noexcept { return parent_ != nullptr ? parent_->root() : *this; }
  /// Null if the block has no room.
  void* take_from_block(size_t bytes, size_t alignment) noexcept;
  bool is_in_block(const void* pointer) const noexcept;
  void return_to_block(void* pointer) noexcept;

  /// Throw KVQ_E_LIMIT unless these bytes, already counted, are within the limit.
  void check_limit(uint64_t bytes, uint64_t more) const;

  Allocator* parent_ = nullptr;
  AllocatorHooks hooks_;
  uint64_t limit_;
  const char* owner_ = "context";
  std::atomic<uint64_t> bytes_;
  std::atomic<uint64_t> peak_;
  std::atomic<uint64_t> kept_back_{0};
  std::byte* block_ = nullptr;
  size_t block_bytes_ = 0;
  size_t block_used_ = 0;
  BlockPiece* newest_piece_ = nullptr;
};

/// Adapter for standard containers. An Allocator converts to it.
template <typename T>
struct StlAllocator {
  using value_type = T;

  StlAllocator(Allocator& allocator) noexcept : source(&allocator) {}
  template <typename U>
  StlAllocator(const StlAllocator<U>& other) noexcept : source(other.source) {}

  static constexpr size_t kAlignment = alignof(T) > 16 ? alignof(T) : 16;
  T* allocate(size_t n) { return static_cast<T*>(source->allocate(size(n, sizeof(T)), kAlignment)); }
  void deallocate(T* pointer, size_t n) noexcept { source->release(pointer, n * sizeof(T), kAlignment); }

  template <typename U>
  bool operator==(const StlAllocator<U>& other) const noexcept {
    return source == other.source;
  }

  Allocator* source;
};

template <typename T>
using Vector = std::vector<T, StlAllocator<T>>;
using String = std::basic_string<char, std::char_traits<char>, StlAllocator<char>>;

/// Uninitialized numbers. Memory costs most at its first write: large arrays are best first written by the threads that
/// fill them.
template <typename T>
class Unwritten {
 public:
  explicit Unwritten(Allocator& allocator, size_t n = 0) : allocator_(allocator) { reset(n); }
  ~Unwritten() { reset(0); }
  Unwritten(const Unwritten&) = delete;
  Unwritten& operator=(const Unwritten&) = delete;

  /// Replace by `n` uninitialized numbers.
  void reset(size_t n) {
    if (data_ != nullptr) allocator_.deallocate(std::exchange(data_, nullptr), std::exchange(n_, 0));
    if (n == 0) return;
    data_ = allocator_.allocate(n);
    n_ = n;
  }
  size_t size() const { return n_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  static_assert(std::is_trivial_v<T>);

  StlAllocator<T> allocator_;
  T* data_ = nullptr;
  size_t n_ = 0;
};

/// Bytes aligned for page data, unlike those of a Vector.
class AlignedBytes {
 public:
  explicit AlignedBytes(Allocator& allocator) : bytes_(allocator) {}

  /// Resize; new bytes are zeros. Invalidates data().
  void resize(size_t bytes) {
    const size_t all = size(bytes_of(bytes));
    bytes_.reserve(all);  // exact, since bytes are counted
    bytes_.resize(all);
  }
  /// Bytes allocated for `bytes`.
  static constexpr uint64_t bytes_of(uint64_t bytes) { return bytes + kDataAlignment; }
  bool empty() const { return bytes_.empty(); }
  std::byte* data() { return bytes_.data() + offset(); }
  const std::byte* data() const { return bytes_.data() + offset(); }

 private:
  size_t offset() const { return -reinterpret_cast<uintptr_t>(bytes_.data()) & (kDataAlignment - 1); }

  Vector<std::byte> bytes_;
};

/// Tells how much it is asked for.
template <typename T>
struct MeasuringAllocator {
  using value_type = T;

  explicit MeasuringAllocator(size_t& bytes_) : bytes(&bytes_) {}
  template <typename U>
  explicit MeasuringAllocator(const MeasuringAllocator<U>& other) : bytes(other.bytes) {}
  T* allocate(size_t n) {
    *bytes = n * sizeof(T);
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* pointer, size_t n) { std::allocator<T>().deallocate(pointer, n); }

  size_t* bytes;
};

/// Bytes that std::allocate_shared() takes for a T with a StlAllocator: the object and its count.
template <typename T>
size_t shared_bytes() {
  struct alignas(T) Alike {
    std::byte bytes[sizeof(T)];
  };
  static_assert(sizeof(MeasuringAllocator<T>) == sizeof(StlAllocator<T>));
  size_t bytes = 0;
  std::allocate_shared<Alike>(MeasuringAllocator<Alike>(bytes));
  return bytes;
}

/// Destroys an object and returns its memory; an Owned<Derived> converts to an Owned<Base> with a virtual destructor.
template <typename T>
struct Deleter {
  Allocator* allocator;
  size_t bytes;
  size_t alignment;

  Deleter(Allocator& source, size_t bytes_, size_t alignment_) noexcept
      : allocator(&source), bytes(bytes_), alignment(alignment_) {}
  template <typename U>
  Deleter(const Deleter<U>& other) noexcept
      : allocator(other.allocator), bytes(other.bytes), alignment(other.alignment) {}

  void operator()(T* object) const noexcept {
    object->~T();
    allocator->release(object, bytes, alignment);
  }
};

template <typename T>
using Owned = std::unique_ptr<T, Deleter<T>>;

/// Construct a T in memory from `allocator`.
template <typename T, typename... Arguments>
Owned<T> make_owned(Allocator& allocator, Arguments&&... arguments) {
  void* memory = allocator.allocate(sizeof(T), alignof(T));
  try {
    return Owned<T>(new (memory) T(std::forward<Arguments>(arguments)...),
                    Deleter<T>(allocator, sizeof(T), alignof(T)));
  } catch (...) {
    allocator.release(memory, sizeof(T), alignof(T));
    throw;
  }
}

}  // namespace kvq
