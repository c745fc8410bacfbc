// What is used here of C++20 and is not in the C++ library of Debian's Emscripten, libc++ 13.
#pragma once

#if defined(__cplusplus)
#include <version>

#if _LIBCPP_VERSION < 14000

#include <algorithm>
#include <functional>
#include <iterator>

namespace std {

template <typename To, typename From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

}  // namespace std

namespace std::ranges {

#define KVQ_PREDICATE_ALGORITHM(name)                                                              \
  template <typename Range, typename Test, typename Projection = identity>                         \
  constexpr auto name(Range&& range, Test test, Projection projection = {}) {                      \
    return std::name(begin(range), end(range),                                                     \
                     [&](auto&& each) -> bool { return invoke(test, invoke(projection, each)); }); \
  }
KVQ_PREDICATE_ALGORITHM(all_of)
KVQ_PREDICATE_ALGORITHM(any_of)
KVQ_PREDICATE_ALGORITHM(none_of)
KVQ_PREDICATE_ALGORITHM(find_if)
KVQ_PREDICATE_ALGORITHM(find_if_not)
KVQ_PREDICATE_ALGORITHM(count_if)
#undef KVQ_PREDICATE_ALGORITHM

template <typename Range, typename Value, typename Projection = identity>
constexpr auto find(Range&& range, const Value& value, Projection projection = {}) {
  return find_if(
      range, [&](const auto& each) { return each == value; }, projection);
}

template <typename Range, typename Value>
constexpr auto count(Range&& range, const Value& value) {
  return std::count(begin(range), end(range), value);
}

template <typename Range, typename Projection = identity>
constexpr auto adjacent_find(Range&& range, std::equal_to<> equal = {}, Projection projection = {}) {
  return std::adjacent_find(begin(range), end(range), [&](const auto& a, const auto& b) {
    return equal(invoke(projection, a), invoke(projection, b));
  });
}

template <typename Range, typename Less = std::less<>, typename Projection = identity>
constexpr void sort(Range&& range, Less less_than = {}, Projection projection = {}) {
  std::sort(begin(range), end(range), [&](const auto& a, const auto& b) {
    return invoke(less_than, invoke(projection, a), invoke(projection, b));
  });
}

template <typename Range, typename Value, typename Less = std::less<>, typename Projection = identity>
constexpr auto lower_bound(Range&& range, const Value& value, Less less_than = {}, Projection projection = {}) {
  return std::lower_bound(begin(range), end(range), value, [&](const auto& each, const Value& wanted) {
    return invoke(less_than, invoke(projection, each), wanted);
  });
}

template <typename Range, typename Value, typename Less = std::less<>, typename Projection = identity>
constexpr auto upper_bound(Range&& range, const Value& value, Less less_than = {}, Projection projection = {}) {
  return std::upper_bound(begin(range), end(range), value, [&](const Value& wanted, const auto& each) {
    return invoke(less_than, wanted, invoke(projection, each));
  });
}

template <typename Range, typename Less = std::less<>, typename Projection = identity>
constexpr auto max_element(Range&& range, Less less_than = {}, Projection projection = {}) {
  return std::max_element(begin(range), end(range), [&](const auto& a, const auto& b) {
    return invoke(less_than, invoke(projection, a), invoke(projection, b));
  });
}

template <typename Range, typename Less = std::less<>, typename Projection = identity>
constexpr auto max(Range&& range, Less less_than = {}, Projection projection = {}) {
  return *max_element(range, less_than, projection);
}

template <typename Range>
constexpr auto minmax(Range&& range) {
  const auto found = std::minmax_element(begin(range), end(range));
  struct Result {
    decay_t<decltype(*found.first)> min;
    decay_t<decltype(*found.first)> max;
  };
  return Result{*found.first, *found.second};
}

template <typename A, typename B>
constexpr bool equal(A&& a, B&& b) {
  return std::equal(begin(a), end(a), begin(b), end(b));
}

template <typename Range, typename Value>
constexpr void fill(Range&& range, const Value& value) {
  std::fill(begin(range), end(range), value);
}

template <typename Range, typename Out>
constexpr void copy(Range&& range, Out out) {
  std::copy(begin(range), end(range), out);
}

template <typename Range, typename Out, typename Operation>
constexpr void transform(Range&& range, Out out, Operation operation) {
  std::transform(begin(range), end(range), out, [&](const auto& each) { return invoke(operation, each); });
}

template <typename A, typename B, typename Out, typename Operation>
constexpr void transform(A&& a, B&& b, Out out, Operation operation) {
  std::transform(begin(a), end(a), begin(b), out, operation);
}

}  // namespace std::ranges

#endif
#endif
