// Files of packed matrices: round trips, damage everywhere, and inconsistent fields.
#include "io/matrix_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/float16.h"
#include "support/allocator.h"
#include "support/damaged_files.h"
#include "support/random.h"
#include "weights/quantize.h"

namespace matrix_file_test {
namespace {

using kvq::weights::Matrix;
using kvq_test::Bytes;
using kvq_test::test_allocator;

Matrix packed(const char* scheme, const float* bias = nullptr) {
  kvq::Parallel alone(1, nullptr, nullptr);
  const std::vector<float> w = kvq_test::normal_tensor(17 * 64, 1, 0.03);
  return kvq::weights::quantize(test_allocator(), {alone},
                                {.scheme = kvq::weights::parse_scheme(scheme).value(), .bias = bias}, w.data(), KVQ_F32,
                                17, 64, {nullptr, nullptr});
}

Bytes file_of(const Matrix& matrix) {
  kvq::io::SafetensorsWriter file(test_allocator());
  kvq::io::begin_matrix_file(file);
  kvq::io::add_matrix(file, "a.b", matrix);
  file.finish();
  Bytes bytes(file.size());
  file.write(bytes);
  return bytes;
}

// Reads the matrix and checks everything that products rely on. A file without the matrix counts as damaged.
void read_checked(const Bytes& bytes) {
  try {
    const Matrix matrix = kvq::io::read_matrix(test_allocator(), bytes, "a.b");
    std::vector<float> rows(static_cast<size_t>(matrix.out) * static_cast<size_t>(matrix.in));
    kvq::weights::dequantize_rows(matrix, 0, matrix.out, rows);
    for (const float each : rows) {
      if (matrix.signs.empty() || std::isfinite(each)) continue;
      kvq::fail(KVQ_E_INTERNAL, "a weight is %g", static_cast<double>(each));
    }
  } catch (const kvq::Error& error) {
    if (error.status() == KVQ_E_ARGUMENT) kvq::fail(KVQ_E_FORMAT, "%s", error.what());
    throw;
  }
}

}  // namespace

TEST_CASE("a matrix is read back as it was written") {
  const std::vector<float> bias = kvq_test::normal_tensor(17, 2);
  for (const char* scheme : {"nuq-3", "vq-1.5", "tcq-2.25", "tcx-5", "fp16"}) {
    CAPTURE(scheme);
    const Matrix matrix = packed(scheme, bias.data());
    const Matrix again = kvq::io::read_matrix(test_allocator(), file_of(matrix), "a.b");
    std::vector<float> before(17 * 64);
    std::vector<float> after(17 * 64);
    kvq::weights::dequantize_rows(matrix, 0, 17, before);
    kvq::weights::dequantize_rows(again, 0, 17, after);
    CHECK(before == after);
    CHECK(again.bias == matrix.bias);
    CHECK(again.error == matrix.error);
    CHECK(file_of(again) == file_of(matrix));
  }
}

TEST_CASE("damaged files of matrices are refused, or give a matrix that can be used") {
  kvq_test::check_damaged(read_checked, file_of(packed("nuq-2")));
}

TEST_CASE("fields of a matrix that do not fit together are refused by name") {
  const kvq_test::WrongFields refused(read_checked, file_of(packed("nuq-2")));
  refused("\"a.b.scheme\":\"nuq-2\"", "\"a.b.scheme\":\"nuq-7\"", "a.b.scheme");
  refused("\"a.b.scheme\":\"nuq-2\"", "\"a.b.scheme\":\"nuq-3\"", "a.b.codes");
  refused("\"a.b.in\":\"64\"", "\"a.b.in\":\"65\"", "a.b.in");
  refused("\"a.b.in\":\"64\"", "\"a.b.in\":\"-4\"", "a.b.in");
  refused("\"a.b.out\":\"17\"", "\"a.b.out\":\"33\"", "a.b.codes");
  refused("\"a.b.out\":\"17\"", "\"a.b.out\":\"18\"", "a.b.scales");
  refused("\"a.b.out\":\"17\"", "\"a.b.out\":\"x7\"", "a.b.out");
  refused("\"a.b.signs\"", "\"a.b.sighs\"", "a.b.signs");
  refused("\"version\":\"2\"", "\"version\":\"1\"", "version", KVQ_E_MISMATCH);
}

TEST_CASE("scales of rows that are not finite are refused") {
  Matrix matrix = packed("nuq-2");
  matrix.row_scales[3] = 0x7C00;  // infinity
  std::string message;
  CHECK(kvq_test::status_of(read_checked, file_of(matrix), &message) == KVQ_E_FORMAT);
  CHECK(message.find("number 3") != std::string::npos);
  matrix.row_scales[3] = kvq::to_float16(-0.5F);
  CHECK(kvq_test::status_of(read_checked, file_of(matrix)) == KVQ_E_FORMAT);
}

}  // namespace matrix_file_test
