#include "allocation/measurements.h"

#include <limits>

#include "kvq.h"
#include "llama/error.h"
#include "terminal/files.h"
#include "terminal/output.h"

namespace cli {
namespace {

constexpr const char* kType = "kvq.measurements";
constexpr int64_t kVersion = 1;

constexpr double kLargest = std::numeric_limits<double>::max();

std::map<std::string, double> amounts(const llama::JsonObject& object) {
  std::map<std::string, double> numbers;
  for (const auto& [key, value] : object.json().items()) numbers[key] = object.number(key.c_str(), 0.0, kLargest);
  return numbers;
}

std::vector<double> list(const llama::JsonObject& object, const char* key) {
  const nlohmann::json& values = object.at(key);
  if (!values.is_array()) object.refuse(key, "must be a list of numbers");
  std::vector<double> numbers;
  for (const nlohmann::json& value : values) {
    const double number = value.is_number() ? value.get<double>() : -1.0;
    if (!(number >= 0.0 && number <= kLargest)) object.refuse(key, "must be a list of numbers that are not negative");
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

Measurements::Measurements(std::filesystem::path file, uint64_t of_model, const std::string& of_text)
    : path(std::move(file)), model(of_model), text(of_text) {
  if (!std::filesystem::exists(path)) return;
  const nlohmann::json document = llama::read_json(path);
  const llama::JsonObject object(document, path.string());
  check(object);
  read(object);
}

void Measurements::check(const llama::JsonObject& file) const {
  const auto require = [&file](const char* key, const std::string& wanted) {
    if (file.string(key) != wanted) file.refuse(key, "not \"" + wanted + "\"; choose another --measurements");
  };
  require("type", kType);
  file.integer("version", kVersion, kVersion);
  require("model", hexadecimal(model));
  require("text", text);
}

void Measurements::read(const llama::JsonObject& file) {
  noise_levels = list(file, "noise_levels");
  const llama::JsonObject of_weights = file.object("weights");
  for (const auto& [name, value] : of_weights.json().items()) {
    const llama::JsonObject each = of_weights.object(name.c_str());
    weights[name] = {.slope = each.number("slope", 0.0, kLargest),
                     .fit_error = each.number("fit_error", 0.0, kLargest),
                     .divergences = list(each, "divergences")};
  }
  scheme_errors = amounts(file.object("scheme_errors"));
  const llama::JsonObject of_cache = file.object("cache");
  for (const auto& [key, value] : of_cache.json().items()) cache[key] = amounts(of_cache.object(key.c_str()));
  eviction = amounts(file.object("eviction"));
  const llama::JsonObject of_machines = file.object("machines");
  for (const auto& [name, value] : of_machines.json().items()) {
    const llama::JsonObject each = of_machines.object(name.c_str());
    const auto times = [&each](const char* key) {
      return each.has(key) ? amounts(each.object(key)) : std::map<std::string, double>{};
    };
    machines[name] = {.linear = times("linear"), .cache = times("cache"), .others = times("others")};
  }
}

void Measurements::save() const {
  Json file = {{"type", kType},
               {"version", kVersion},
               {"made_with", std::string("kvq ") + kvq_version_string()},
               {"model", hexadecimal(model)},
               {"text", text},
               {"noise_levels", noise_levels},
               {"weights", Json::object()},
               {"scheme_errors", scheme_errors},
               {"cache", cache},
               {"eviction", eviction},
               {"machines", Json::object()}};
  for (const auto& [name, each] : weights) {
    file["weights"][name] = {{"slope", each.slope}, {"fit_error", each.fit_error}, {"divergences", each.divergences}};
  }
  for (const auto& [name, machine] : machines) {
    file["machines"][name] = {{"linear", machine.linear}, {"cache", machine.cache}, {"others", machine.others}};
  }
  write_file(path, file.dump(1) + "\n");
}

std::string linear_key(const std::string& scheme, const std::vector<int64_t>& outs, int64_t in, int32_t batch) {
  std::string rows;
  for (const int64_t out : outs) rows += (rows.empty() ? "" : "+") + std::to_string(out);
  return scheme + " " + rows + "x" + std::to_string(in) + " batch " + std::to_string(batch);
}

}  // namespace cli
