// Errors against float64: checked where they are measured; a table at the end shows the worst of each kind.
#pragma once

#include <string>
#include <string_view>

namespace conformance {

struct Measurement {
  std::string operation;  // "attend", "seal keys", …
  std::string format;     // format of the pages
  std::string isa;
  double error;
  double limit;
};

// Fails the running test case if the error is above its limit (or not a number); `where` says which input it was.
void measure(const Measurement& measurement, std::string_view where);

// One line per operation, format and instruction set: the worst error relative to its limit.
void print_accuracy_table();

}  // namespace conformance
