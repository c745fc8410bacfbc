#pragma once

#include <string>
#include <vector>

#include "jinja_values.h"

namespace llama::jinja {

Value apply_filter(const std::string& name, const Value& value, const std::vector<Argument>& arguments);
bool apply_test(const std::string& name, const Value& value, const std::vector<Argument>& arguments);
/// A method of a text or a mapping.
Value call_method(const std::string& name, const Value& object, const std::vector<Argument>& arguments);

}  // namespace llama::jinja
