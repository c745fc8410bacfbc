#include "temporary_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "llama/error.h"

namespace cli {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "kvq-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw llama::Error("cannot make " + name + ": " + std::strerror(errno));
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace cli
