// Every operation on every page format and instruction set, against float64 brute force through the C API alone.
#define DOCTEST_CONFIG_IMPLEMENT
#include "accuracy.h"

#include <doctest/doctest.h>

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int result = context.run();
  conformance::print_accuracy_table();
  return result;
}
