// What systems do differently for the program: system_posix.cpp and system_windows.cpp implement it. Texts are UTF-8,
// and so are paths where they are texts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// The words of the command line behind the program's name.
/// \param argc, argv  as main has got them.
std::vector<std::string> command_line(int argc, char** argv);

/// Standard output and standard error take UTF-8, byte by byte, and a closed pipe is an error of the stream like any
/// other.
void prepare_streams();

/// Whether somebody sits at the other end: `stream` is one of the standard streams.
bool is_terminal(std::FILE* stream);

/// Standard input, from now on with every byte as it comes.
std::FILE* binary_input();

/// The file of this name, which is UTF-8; its string() is the name again. Windows' paths are UTF-16, and the C++
/// library would read a std::string there by the code page of the C locale.
std::filesystem::path path_of(std::string_view name);

/// Bytes of a file; null, with errno, if it cannot be opened.
std::FILE* open_to_read(const std::filesystem::path& path);
std::FILE* open_to_write(const std::filesystem::path& path);

/// The bytes of a regular file, without reading them; none of an empty one. An Error that names it and says why not.
std::span<const std::byte> map_file(const std::filesystem::path& path);
void unmap_file(std::span<const std::byte> bytes);
/// Count no bytes read so far as memory of this process.
void forget_mapped(std::span<const std::byte> bytes);

/// A new empty directory of a name beginning so, under the system's temporary one, for this user alone. An Error if
/// none can be made.
std::filesystem::path make_temporary_directory(const std::string& prefix);

/// The program's own file; empty if unknown.
std::filesystem::path program_file();

/// Folders where a library of the program may lie: that of libkvq, if it is shared, and the program's.
std::vector<std::filesystem::path> own_folders();

/// The file of the model runner's GPU half.
extern const char* const kCudaModuleFile;

/// Open a library for good, which is searched for if `path` is a name alone; null, with the reason, if that fails.
void* open_library(const std::string& path, std::string& reason);
/// A function of an open library; null if it has none of this name.
void* find_function(void* library, const char* name);

/// Seconds of processors that the threads of this process have had so far.
double processor_seconds();

uint64_t host_memory_bytes();
/// Bytes of the processor's last cache, which its cores share; 0 if unknown.
uint64_t last_level_cache_bytes();
/// The processor as its maker calls it; empty if unknown.
std::string processor_name();

std::tm local_time(std::time_t time);

/// As `text.find(part, begin)`, in linear time whatever both hold: std::string_view compares anew at every place.
size_t find_text(std::string_view text, std::string_view part, size_t begin = 0);

/// Sleep while `value` is `old`; it may return early. With wake_all, what std::atomic has, but for a system without
/// futexes, where GCC 12's loses wake-ups between its look at the value and its sleep.
void sleep_while(const std::atomic<uint32_t>& value, uint32_t old);
void wake_one(std::atomic<uint32_t>& value);
void wake_all(std::atomic<uint32_t>& value);

/// While one lives, Ctrl-C and a request to end call `note`, once; the next ends the program.
class InterruptHandler {
 public:
  using Note = void (*)(int signal);

  explicit InterruptHandler(Note note);
  ~InterruptHandler();
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;

 private:
  struct Replaced;
  std::unique_ptr<Replaced> replaced_;
};

}  // namespace llama
