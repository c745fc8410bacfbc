#pragma once

#include <string>
#include <string_view>

#include "jinja_values.h"

namespace llama::jinja {

// Of ASCII letters alone.
std::string lower(std::string text);
std::string upper(std::string text);
std::string capitalized(const std::string& text);

/// Without the bytes of `characters` at its ends, or without white space.
std::string strip(std::string_view text, const Value& characters, bool left, bool right);

/// Parts between separators, or between white space.
Json split(const std::string& text, const Value& separator, Budget& budget);

}  // namespace llama::jinja
