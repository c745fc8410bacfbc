// Every codec and kind that there is, by every name, instruction set and reference: a new one is walked by its entry in
// all_codecs() alone, and says what is missing.
#include "formats/codec.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/dispatch/isa.h"
#include "formats/format_name.h"
#include "io/snapshot_layout.h"
#include "sealed_pages.h"
#include "support/allocator.h"

namespace codecs_test {
namespace {

using kvq::Codec;
using kvq::PageFormat;
using kvq::Side;
using kvq::SideFormat;
using kvq_test::Codes;
using kvq_test::codes_for;
using kvq_test::for_each_kind;
using kvq_test::for_each_name;
using kvq_test::Kind;
using kvq_test::SealedPages;

constexpr size_t kKinds = 20;

/// Codes and numbers per layer, per head, and both.
constexpr Codes kCodes[] = {
    {.stages = 3, .codes = 16, .group = 4, .bits = 1},
    {.stages = 2, .codes = 64, .bits = 2, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD},
    {.stages = 2, .codes = 8, .bits = 1, .scope = KVQ_SCOPE_HEAD},
    {.stages = 2, .codes = 8, .bits = 1, .norms = KVQ_SCOPE_HEAD},
};

}  // namespace

TEST_CASE("the name of every kind is read back, with what its codec takes after it and nothing else") {
  std::set<std::string> names;
  for_each_kind([&](const Codec& codec, const Kind& kind) {
    const std::string& name = kind.name;
    CAPTURE(name);
    CHECK(names.insert(name).second);
    CHECK(&kvq::codec_of(kind.format.code) == &codec);
    CHECK(kvq::describe(kind.format.code).code == kind.format.code);
    CHECK(kvq::kind_name(kind.format) == name);
    REQUIRE(kvq::parse_format(name).has_value());
    CHECK(*kvq::parse_format(name) == kind.format);
    CHECK(kvq::format_name(kind.format) == name);
    const auto check_ending = [&](const std::string& ending, bool taken, const SideFormat& format) {
      CAPTURE(ending);
      const auto found = kvq::parse_format(name + ending);
      REQUIRE(found.has_value() == taken);
      if (found.has_value()) {
        CHECK(*found == format);
        CHECK(kvq::format_name(format) == name + ending);
      }
      CHECK(!kvq::parse_format(name + ending + ending).has_value());
    };
    SideFormat rotated = kind.format;
    rotated.rotation = kvq::Rotation::kHadamard;
    check_ending("+hadamard", codec.takes_hadamard, rotated);
    SideFormat plain = kind.format;
    plain.centre = kvq::Centre::kNone;
    check_ending("+nocentre", kind.format.centre == kvq::Centre::kPageMean, plain);
    CHECK(!kvq::parse_format(name + "+nocentre+hadamard").has_value());
    CHECK(!kvq::parse_format(name + "+hadamard+nocentre").has_value());
    CHECK(!kvq::parse_format(name + "+").has_value());
    CHECK(!kvq::parse_format(name.substr(0, name.size() - 1)).has_value());
  });
  CHECK(names.size() == kKinds);
  CHECK(!kvq::parse_format("").has_value());
  CHECK(!kvq::parse_format("+hadamard").has_value());
  CHECK(!kvq::parse_format("+nocentre").has_value());
}

TEST_CASE("a name that is none is answered with what to write") {
  struct Line {
    const char* name;
    const char* advice;
  };
  constexpr Line kLines[] = {{"gs5", "nearest: gs4"},
                             {"gs0", "nearest: gs1"},
                             {"gt4", "nearest: gt3"},
                             {"int1", "nearest: int2"},
                             {"int4+hadamart", "nearest: int4+hadamard"},
                             {"gt2+nocenter", "nearest: gt2+nocentre"},
                             {"gt2+centre", "nearest: gt2+centres"},
                             {"gs2+centres+nocentre", "not two of them: write gs2+centres"},
                             {"gs2+nocentre+centres", "not two of them: write gs2+nocentre"},
                             {"gs2+centres+centres", "not two of them: write gs2+centres"},
                             {"gs2+centres+hadamard", "is always rotated: write gs2+centres"},
                             {"int4+centres", "only gain-shape formats have centres: write int4"},
                             {"gs2+hadamard", "gs2 is always rotated: write gs2"},
                             {"gs2+nocentre+hadamard", "gs2 is always rotated: write gs2+nocentre"},
                             {"fp16+hadamard", "rotation is for integer formats: write fp16"},
                             {"commvq+hadamard", "rotation is for integer formats: write commvq"},
                             {"q4_0", "as other programs call a format: write int4, which is nearest"},
                             {"Q8_0", "write int8, which is nearest"},
                             {"bf16", "write fp16, which is nearest"},
                             {"commvq:a.safetensors", "when a cache is made, not in names: write commvq"},
                             {"gs2:a.safetensors", "when a cache is made, not in names: write gs2+centres"},
                             {"int4+nocentre", "only gain-shape formats have centres: write int4"}};
  for (const Line& line : kLines) {
    CAPTURE(std::string(line.name));
    REQUIRE(!kvq::parse_format(line.name).has_value());
    const std::string advice = kvq::format_name_advice(line.name);
    CAPTURE(advice);
    CHECK(advice.ends_with(line.advice));
    CHECK(advice.size() < 190);  // beside the line and the key in the message of an error
  }
  for (const std::string& name : {std::string("nonsense"), std::string("x"), std::string(), std::string(100000, 'g')}) {
    const std::string advice = kvq::format_name_advice(name);
    CHECK(advice.find("must be one of fp16, ") == 0);
    CHECK(advice.find("nearest") == std::string::npos);
  }
}

TEST_CASE("a page of a format that is always rotated is, whether its name was parsed or not") {
  for_each_kind([&](const Codec& codec, const Kind& kind) {
    const PageFormat page({.code = kind.format.code}, {.code = kind.format.code}, 64);
    CHECK(page.keys.is_rotated() == codec.always_hadamard);
    CHECK(page.values.is_rotated() == codec.always_hadamard);
  });
}

// Existing snapshots contain these. A new kind adds a line; no line ever changes.
TEST_CASE("snapshots number codecs and widths as they always have") {
  struct Line {
    const char* name;
    int codec;
    int bits;
  };
  constexpr Line kLines[] = {
      {"fp16", 0, 16},       {"int8", 1, 8},         {"int4", 1, 4},         {"int3", 1, 3},
      {"int2", 1, 2},        {"commvq", 2, 0},       {"gs4", 3, 4},          {"gs3", 3, 3},
      {"gs2", 3, 2},         {"gs1", 3, 1},          {"gt3", 3, 19},         {"gt2", 3, 18},
      {"gt1", 3, 17},        {"gs4+centres", 4, 4},  {"gs3+centres", 4, 3},  {"gs2+centres", 4, 2},
      {"gs1+centres", 4, 1}, {"gt3+centres", 4, 19}, {"gt2+centres", 4, 18}, {"gt1+centres", 4, 17}};
  CHECK(std::size(kLines) == kKinds);
  for (const Line& line : kLines) {
    CAPTURE(line.name);
    const auto format = kvq::parse_format(line.name);
    REQUIRE(format.has_value());
    for (const Side side : kvq_test::kSides) {
      const kvq::io::SideRecord record = kvq::io::side_record(side, *format, 64);
      CHECK(int{record.codec} == line.codec);
      CHECK(int{record.bits} == line.bits);
    }
  }
}

TEST_CASE("snapshots tell rotation and means of pages apart as they always have") {
  struct Line {
    const char* name;
    int of_keys;
    int of_values;
    int of_mixed_keys;  // at head sizes that are no powers of two
    int of_mixed_values;
  };
  constexpr Line kLines[] = {{"fp16", 0, 0, 0, 0},   {"int4", 0, 0, 0, 0}, {"int4+hadamard", 1, 1, 4, 4},
                             {"commvq", 0, 0, 0, 0}, {"gs2", 3, 1, 6, 4},  {"gt1+nocentre", 1, 1, 4, 4}};
  for (const Line& line : kLines) {
    CAPTURE(line.name);
    const auto format = kvq::parse_format(line.name);
    REQUIRE(format.has_value());
    for (const int32_t head_dim : {8, 64, 256}) {
      CHECK(int{kvq::io::side_record(Side::kKeys, *format, head_dim).flags} == line.of_keys);
      CHECK(int{kvq::io::side_record(Side::kValues, *format, head_dim).flags} == line.of_values);
    }
    for (const int32_t head_dim : {24, 80, 248}) {
      CHECK(int{kvq::io::side_record(Side::kKeys, *format, head_dim).flags} == line.of_mixed_keys);
      CHECK(int{kvq::io::side_record(Side::kValues, *format, head_dim).flags} == line.of_mixed_values);
    }
  }
}

TEST_CASE("every instruction set has all kernels of a kind, or its codec's context, and a backend knows no half") {
  kvq::Parallel parallel(1, nullptr, nullptr);
  const auto knows = [&](const kvq::cpu::KernelTable& table, const SideFormat& keys, const SideFormat& values) {
    kvq::cpu::CpuBackend backend(kvq_test::test_allocator(), table, parallel);
    return static_cast<kvq::Backend&>(backend).pages().knows(PageFormat(keys, values, 64));
  };
  for (const kvq::cpu::KernelTable* table : kvq::cpu::available_tables()) {
    CAPTURE(std::string(table->name));
    for_each_kind([&](const Codec& codec, const Kind& kind) {
      CAPTURE(kind.name);
      const kvq::cpu::SideKernels& side = table->side(kind.format);
      const bool with_context = codec.needs_training(kind.format);
      for (const bool there : {side.encode != nullptr, side.keys != nullptr, side.values != nullptr}) {
        CHECK(there == !with_context);
      }
      const bool has_context = codec.trained_as != nullptr;
      CHECK((table->contexts[codec.number] != nullptr) == has_context);
      CHECK((codec.make_context != nullptr) == has_context);
      CHECK((codec.make_resident != nullptr) == has_context);
      CHECK((codec.check != nullptr) == has_context);
      for_each_kind(
          [&](const Codec& /*codec*/, const Kind& other) { CHECK(knows(*table, kind.format, other.format)); });

      // Without one of what it has, which is the kernels or the context.
      for (int missing = 0; missing < 4; ++missing) {
        kvq::cpu::KernelTable damaged = *table;
        if (missing == 0) damaged.plain(kind.format.code).encode = nullptr;
        if (missing == 1) damaged.plain(kind.format.code).keys = nullptr;
        if (missing == 2) damaged.plain(kind.format.code).values = nullptr;
        if (missing == 3) damaged.contexts[codec.number] = nullptr;
        const bool had_it = with_context == (missing == 3);
        for_each_kind([&](const Codec& /*codec*/, const Kind& other) {
          if (&kvq::codec_of(other.format.code) == &codec) return;
          CHECK(knows(damaged, kind.format, other.format) != had_it);
          CHECK(knows(damaged, other.format, kind.format) != had_it);
        });
      }
    });
  }
}

TEST_CASE("pages that a CPU seals have the bytes that the codec's reference encodes") {
  for (const std::string& isa : kvq_test::cpu_isa_names()) {
    CAPTURE(isa);
    const kvq_test::Context context = kvq_test::make_context(isa.c_str());
    for_each_name([&](const Codec& codec, const std::string& name) {
      CAPTURE(name);
      for (const Codes* codes : codes_for(codec, kCodes)) {
        const std::string which = codes != nullptr ? codes->name() : "";
        CAPTURE(which);
        for (const int32_t position_step : {1, 3}) {
          const SealedPages pages(context, kvq_test::cache_options(3, 3, 40), kvq_test::policy_of(codec, name, 32),
                                  codes, 100, position_step);
          for (const Side side : kvq_test::kSides) {
            CHECK(pages.format().side(side) == *kvq::parse_format(name));
            for (int32_t index = 0; index < pages.count(); ++index) {
              const auto sides = pages.encode(side, index);
              for (int32_t head = 0; head < pages.heads(); ++head) {
                const SealedPages::Bytes& expected = sides[static_cast<size_t>(head)];
                CHECK(std::equal(expected.begin(), expected.end(), pages.sealed(side, head, index)));
              }
            }
          }
        }
      }
    });
  }
}

}  // namespace codecs_test
