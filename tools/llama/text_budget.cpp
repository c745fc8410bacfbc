#include "text_budget.h"

#include "error.h"

namespace llama {

void TextBudget::check_size(size_t bytes, const std::string& place) const {
  if (bytes <= most_bytes_) return;
  throw Error(place + ": text of " + std::to_string(bytes_) + " bytes grows beyond the limit of " +
              std::to_string(most_bytes_) + " bytes");
}

void TextBudget::refuse_work(const std::string& place) const {
  throw Error(place + ": text of " + std::to_string(bytes_) + " bytes takes more than the limit of " +
              std::to_string(most_steps_) + " steps");
}

}  // namespace llama
