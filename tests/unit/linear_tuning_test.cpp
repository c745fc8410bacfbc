// Measured kernels as text.
#include "linear/measured_kernels.h"
#include "support/damaged_files.h"
#include "weights/scheme.h"

#include <doctest/doctest.h>

#include <array>
#include <string>

namespace linear_tuning_test {

using kvq::cuda::kFewRows;
using kvq::cuda::kFusedInputs;
using kvq::cuda::LinearKernel;
using kvq::cuda::LinearShape;
using kvq::cuda::MeasuredKernels;

namespace {

const std::string kHead = "kvq tuning 1\ndevice\tscheme\toutputs\tinputs\trows\tway\n";

LinearShape shape(const char* scheme, std::array<int32_t, 4> outs, int32_t in, int32_t rows) {
  return {kvq::weights::index_of(*kvq::weights::parse_scheme(scheme)), in, rows, outs};
}

bool is(const LinearKernel* found, const LinearKernel& kernel) { return found != nullptr && *found == kernel; }

}  // namespace

TEST_CASE("measured kernels come back from their text") {
  const LinearKernel tiles{false, 256, 3};
  MeasuredKernels tuning("A GPU, 8 multiprocessors");
  CHECK(tuning.text() == kHead);
  tuning.put(shape("tcx-2.5", {4096, 1024, 1024}, 4096, 64), tiles);
  tuning.put(shape("nuq-4", {14336}, 4096, 1), kFusedInputs);
  tuning.put(shape("nuq-4", {14336}, 4096, 8), kFewRows);
  CHECK(tuning.text() == kHead +
                             "A GPU, 8 multiprocessors\tnuq-4\t14336\t4096\t1\town\n"
                             "A GPU, 8 multiprocessors\tnuq-4\t14336\t4096\t8\tfew\n"
                             "A GPU, 8 multiprocessors\ttcx-2.5\t4096+1024+1024\t4096\t64\ttiles 256 3\n");
  MeasuredKernels same("A GPU, 8 multiprocessors");
  same.load(tuning.text());
  CHECK(same.text() == tuning.text());
  CHECK(is(same.find(shape("tcx-2.5", {4096, 1024, 1024}, 4096, 64)), tiles));
  CHECK(is(same.find(shape("nuq-4", {14336}, 4096, 1)), kFusedInputs));
  CHECK(same.find(shape("nuq-4", {14336}, 4096, 2)) == nullptr);
  CHECK(same.find(shape("tcx-2.5", {4096, 1024}, 4096, 64)) == nullptr);
  // The last of several lines wins.
  same.load(kHead + "A GPU, 8 multiprocessors\tnuq-4\t14336\t4096\t1\tfew\n");
  CHECK(is(same.find(shape("nuq-4", {14336}, 4096, 1)), kFewRows));
}

TEST_CASE("kernels of another device are kept and not used") {
  MeasuredKernels tuning("this one");
  const std::string other = "another\tnuq-4\t64\t128\t1\town\n";
  tuning.load(kHead + other);
  CHECK(tuning.find(shape("nuq-4", {64}, 128, 1)) == nullptr);
  CHECK(tuning.text() == kHead + other);
  tuning.load(kHead + "another\tnuq-4\t64\t128\t1\tfew\nthis one\tnuq-4\t64\t128\t1\town\n");
  CHECK(tuning.text() == kHead + "this one\tnuq-4\t64\t128\t1\town\nanother\tnuq-4\t64\t128\t1\tfew\n");
}

TEST_CASE("a damaged text of measured kernels is refused whole, with the line") {
  MeasuredKernels tuning("this one");
  const std::string good = "this one\tnuq-4\t64\t128\t1\town\n";
  tuning.load(kHead + good);
  const auto refuses = [&](const std::string& text, kvq_status status, const std::string& message) {
    CAPTURE(text);
    std::string said;
    CHECK(kvq_test::status_of([&](const kvq_test::Bytes& /*none*/) { tuning.load(text); }, {}, &said) == status);
    CHECK(said.find(message) != std::string::npos);
    CHECK(tuning.text() == kHead + good);
  };
  refuses("", KVQ_E_FORMAT, "line 1");
  refuses("kvq policy\n", KVQ_E_FORMAT, "kvq policy");
  refuses("kvq tuning 2\n", KVQ_E_MISMATCH, "kvq tuning 2");
  for (const char* line :
       {"this one", "this one\tnuq-4\t64\t128\t1", "this one\tnuq-4\t64\t128\t1\town\tmore", "\tnuq-4\t64\t128\t1\town",
        "this one\tnuq-7\t64\t128\t1\town", "this one\tnuq-4\t0\t128\t1\town", "this one\tnuq-4\t-1\t128\t1\town",
        "this one\tnuq-4\t1+2+3+4+5\t128\t1\town", "this one\tnuq-4\t64+\t128\t1\town",
        "this one\tnuq-4\t64++64\t128\t1\town", "this one\tnuq-4\t64\t99999999999\t1\town",
        "this one\tnuq-4\t64\t128\t1 \town", "this one\tnuq-4\t64\t128\t1\tbest", "this one\tnuq-4\t64\t128\t1\ttiles",
        "this one\tnuq-4\t64\t128\t1\ttiles 64", "this one\tnuq-4\t64\t128\t1\ttiles 64 0",
        "this one\tnuq-4\t64\t128\t1\ttiles 64 1 1", "another\tnuq-4\t64\t128\t1\tbest"}) {
    refuses(kHead + "this one\tnuq-4\t64\t128\t1\tfew\n" + line + "\n", KVQ_E_FORMAT, "line 4");
  }
}

}  // namespace linear_tuning_test
