#pragma once

#include <nlohmann/json.hpp>
#include <optional>

namespace cli {

/// null where there is nothing.
template <class T>
nlohmann::ordered_json json_of(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace cli
