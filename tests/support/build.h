// Test sizes for this build.
#pragma once

namespace kvq_test {

#if defined(KVQ_TEST_SMALL) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSmallRun = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
inline constexpr bool kSmallRun = true;
#else
inline constexpr bool kSmallRun = false;
#endif
#else
inline constexpr bool kSmallRun = false;
#endif

// A size for ordinary runs, and a smaller one for builds that run many times slower.
template <typename T>
constexpr T full_or_small(T full, T small) {
  return kSmallRun ? small : full;
}

}  // namespace kvq_test
