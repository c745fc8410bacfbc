#include "accuracy.h"
#include "stored_pages.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace conformance::seal_test {
namespace {

constexpr int32_t kHeadDims[] = {8, 24, 64, 80, 96, 120, 128, 192, 200, 256};

// Stores the tokens on every instruction set and measures both sides.
void check_storage(const HeadTokens& tokens, const Storage& storage, const std::string& where) {
  for (const std::string& isa : kvq_test::backends()) {
    const HeadTokens stored = store(tokens, storage, isa);
    measure({"seal keys", storage.keys, isa, worst_key_error(tokens, stored, storage), 1.0}, where);
    measure({"seal values", storage.values, isa, worst_value_error(tokens, stored, storage), 1.0}, where);
  }
}

}  // namespace

TEST_CASE("a sealed page is within half a step of what was appended or unbiased, and FP16 pages are exact") {
  for (const int32_t head_dim : kHeadDims) {
    const HeadTokens tokens = normal_tokens(133, head_dim, static_cast<uint64_t>(head_dim));
    for (const Storage& storage : all_storages()) {
      check_storage(tokens, storage, "head_dim " + std::to_string(head_dim));
    }
  }
}

TEST_CASE("value groups of every width, also where they do not divide the head") {
  for (const int32_t head_dim : kHeadDims) {
    const HeadTokens tokens = normal_tokens(70, head_dim, 3);
    for (const int group : {32, 64, 128}) {
      for (const char* format : {"int8", "int4", "int3", "int2", "int3+hadamard"}) {
        check_storage(tokens, {format, format, group, 0, 1},
                      "head_dim " + std::to_string(head_dim) + ", group " + std::to_string(group));
      }
    }
  }
}

TEST_CASE("exactly the pages that the policy names stay FP16") {
  for (const int sink : {0, 1, 2, 5}) {
    for (const int recent : {1, 2, 3, 9}) {
      for (const int32_t n : {32, 33, 64, 65, 96, 97, 128, 200}) {
        check_storage(normal_tokens(n, 24, 5), {"int2", "int3", 32, sink, recent},
                      "sink " + std::to_string(sink) + ", recent " + std::to_string(recent));
      }
    }
  }
}

// Pages that should be sealed are: normal numbers do not survive two bits.
TEST_CASE("a page that leaves the newest ones is not exact any more") {
  const Storage storage{"int2", "int2", 32, 1, 2};
  for (const int32_t n : {96, 97, 128, 129, 200}) {
    const HeadTokens tokens = normal_tokens(n, 64, 9);
    const HeadTokens stored = store(tokens, storage, kvq_cpu_isa_name(0));
    for (int page = 0; page * kPageSlots < n; ++page) {
      const auto at = static_cast<size_t>(page) * kPageSlots * 64;
      const auto end = std::min(tokens.k.size(), at + kPageSlots * 64);
      const bool exact = std::equal(tokens.k.begin() + static_cast<std::ptrdiff_t>(at),
                                    tokens.k.begin() + static_cast<std::ptrdiff_t>(end),
                                    stored.k.begin() + static_cast<std::ptrdiff_t>(at));
      CHECK_EQ(exact, !storage.is_sealed(page, n));
    }
  }
}

TEST_CASE("constant channels and constant groups decode exactly") {
  for (const int32_t head_dim : {24, 128}) {
    HeadTokens tokens = normal_tokens(65, head_dim, 11);
    const double constants[] = {0.0, 1.0, -0.333251953125, 65504.0, 0x1p-24, -65504.0};
    for (int32_t t = 0; t < tokens.n(); ++t) {
      for (int32_t c = 0; c < head_dim; ++c) {
        const auto i = static_cast<size_t>(t * head_dim + c);
        if (c % 3 == 0) tokens.k[i] = constants[c / 3 % 6];
        if (c < 32 && t % 2 == 0) tokens.v[i] = constants[t / 2 % 6];
      }
    }
    for (const char* format : {"int8", "int4", "int3", "int2"})
      check_storage(tokens, Storage::uniform(format), "constants");
  }
}

TEST_CASE("numbers at both ends of FP16") {
  for (const double deviation : {1e-7, 1e-5, 1e-3, 100.0, 8000.0}) {
    const HeadTokens tokens = normal_tokens(70, 64, 13, deviation);
    for (const Storage& storage : all_storages()) {
      check_storage(tokens, storage, "deviation " + std::to_string(deviation));
    }
  }
  HeadTokens extremes = normal_tokens(70, 64, 15);
  kvq_test::Random random(1);
  for (std::vector<double>* side : {&extremes.k, &extremes.v}) {
    for (double& x : *side) x = random.integer(0, 1) == 0 ? -65504.0 : 65504.0;
  }
  for (const char* format : {"int8", "int4", "int3", "int2"})
    check_storage(extremes, Storage::uniform(format), "±65504");
}

// Rotated, 128 numbers of 60000 add up to 679000, beyond FP16. Refusing them is documented, and so is storing them with
// a relative error; infinities are not.
TEST_CASE("large numbers survive the Hadamard rotation or are refused") {
  HeadTokens large{128, std::vector<double>(70 * 128, 60000.0), std::vector<double>(70 * 128, -60000.0)};
  for (const char* format : {"int8+hadamard", "int4+hadamard", "int2+hadamard"}) {
    for (const std::string& isa : kvq_test::backends()) {
      CAPTURE(format);
      CAPTURE(isa);
      try {
        const HeadTokens stored = store(large, Storage::uniform(format), isa);
        for (size_t i = 0; i < stored.k.size(); ++i) {
          REQUIRE(std::fabs(stored.k[i] - 60000.0) < 600.0);
          REQUIRE(std::fabs(stored.v[i] + 60000.0) < 600.0);
        }
      } catch (const kvq_test::Error& failure) {
        CHECK_EQ(failure.status(), KVQ_E_ARGUMENT);
      }
    }
  }
}

// Purpose of the rotation: an outlier is spread over the head, so the step shrinks.
TEST_CASE("the Hadamard rotation lowers the error of a head with an outlier") {
  HeadTokens tokens = normal_tokens(65, 128, 21);
  for (int32_t t = 0; t < tokens.n(); ++t) tokens.v[static_cast<size_t>(t) * 128 + 5] = 40.0;
  const auto squared_error = [&](const char* format) {
    const HeadTokens stored = store(tokens, {format, format, 128, 0, 1}, kvq_cpu_isa_name(0));
    double sum = 0.0;
    for (size_t i = 0; i < tokens.v.size(); ++i) sum += (stored.v[i] - tokens.v[i]) * (stored.v[i] - tokens.v[i]);
    return sum;
  };
  for (const char* bits : {"int4", "int3", "int2"}) {
    CHECK(squared_error((std::string(bits) + "+hadamard").c_str()) < 0.5 * squared_error(bits));
  }
}

}  // namespace conformance::seal_test
