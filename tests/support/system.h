// What systems do differently for tests: system_posix.cpp and system_windows.cpp implement it. What a system refuses is
// a std::runtime_error.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvq_test {

size_t page_bytes();
/// Memory of whole pages of which the last cannot be touched; null if there is none.
std::byte* map_guarded(size_t bytes);
void unmap_guarded(std::byte* memory, size_t bytes);

/// For operator new: null if there is no memory. `size` is a multiple of `alignment`.
void* allocate_aligned(size_t alignment, size_t size) noexcept;
void free_aligned(void* memory) noexcept;

/// What `body` returns in a copy of this process that may use so many bytes of addresses; nothing where processes
/// cannot be copied or so limited.
std::optional<int> run_with_few_addresses(size_t bytes, const std::function<int()>& body);

/// A link to a file, or a copy where links are for administrators alone.
void link_or_copy(const std::filesystem::path& file, const std::filesystem::path& link);
/// False if this system does not let users make links.
bool can_make_links();

/// Something that is there under a name in a file's place and is no file; false if this system has nothing like it.
bool make_pipe(const std::filesystem::path& path);

/// The empty input.
extern const char* const kNothing;
/// An output that is always full; null if this system has none.
extern const char* const kFullOutput;
/// What the system adds to the name of a library, and a library that it always has.
extern const char* const kLibrarySuffix;
extern const char* const kSystemLibrary;
/// What the system says of a file that is not there.
extern const char* const kNoFile;
/// What the loader says if there is no such library, and of plugins/missing_library.
extern const char* const kNoLibrary;
extern const char* const kMissingLibrary;

/// Where a program reads and writes.
struct Streams {
  std::string in;
  std::string out;
  std::string err;
};

/// A program that runs. It must have been waited for before its end.
class Process {
 public:
  Process(const std::string& program, const std::vector<std::string>& arguments, const Streams& streams);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// What it exited with, -1 if a signal ended it; nothing if it still runs.
  std::optional<int> exit_code();
  int wait();
  /// As Ctrl-C does.
  void interrupt();

 private:
  struct Running;
  std::unique_ptr<Running> running_;
};

/// What a program in a terminal of its own showed there when `typed` was typed.
struct Shown {
  int exit_code = -1;
  std::string text;
};

/// Nothing if this system has no terminals for tests.
std::optional<Shown> run_in_terminal(const std::string& program, const std::vector<std::string>& arguments,
                                     const std::string& typed);

}  // namespace kvq_test
