#include "support/system.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace kvq_test {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what + " failed");
}

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

}  // namespace

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

std::byte* map_guarded(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(memory);
  require(mprotect(begin + bytes - page_bytes(), page_bytes(), PROT_NONE) == 0, "mprotect");
  return begin;
}

void unmap_guarded(std::byte* memory, size_t bytes) { munmap(memory, bytes); }

void* allocate_aligned(size_t alignment, size_t size) noexcept { return std::aligned_alloc(alignment, size); }
void free_aligned(void* memory) noexcept { std::free(memory); }

std::optional<int> run_with_few_addresses(size_t bytes, const std::function<int()>& body) {
  constexpr int kUnlimited = 77;
  const pid_t child = fork();
  require(child >= 0, "fork");
  if (child == 0) {
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    // An emulator does not limit its programs.
    if (mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) _exit(kUnlimited);
    _exit(body());
  }
  int status = -1;
  require(waitpid(child, &status, 0) == child, "waitpid");
  const int code = exit_code_of(status);
  return code == kUnlimited ? std::optional<int>() : code;
}

void link_or_copy(const std::filesystem::path& file, const std::filesystem::path& link) {
  std::filesystem::create_symlink(file, link);
}

bool can_make_links() { return true; }

bool make_pipe(const std::filesystem::path& path) {
  require(mkfifo(path.c_str(), 0600) == 0, "mkfifo");
  return true;
}

const char* const kNothing = "/dev/null";
const char* const kFullOutput = "/dev/full";
const char* const kLibrarySuffix = ".so";
const char* const kSystemLibrary = "libm.so.6";
const char* const kNoFile = "No such file";
const char* const kNoLibrary = "cannot open shared object file";
const char* const kMissingLibrary = "libkvq_test_nowhere.so.7: cannot open shared object file";

struct Process::Running {
  pid_t id = 0;
};

Process::Process(const std::string& program, const std::vector<std::string>& arguments, const Streams& streams)
    : running_(std::make_unique<Running>()) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, streams.in.c_str(), O_RDONLY | O_NOCTTY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, streams.out.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, streams.err.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
  const int failure = posix_spawn(&running_->id, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  require(failure == 0, "starting " + program);
}

Process::~Process() = default;

std::optional<int> Process::exit_code() {
  int status = 0;
  const pid_t ended = waitpid(running_->id, &status, WNOHANG);
  require(ended >= 0, "waitpid");
  return ended == 0 ? std::optional<int>() : exit_code_of(status);
}

int Process::wait() {
  int status = 0;
  require(waitpid(running_->id, &status, 0) == running_->id, "waitpid");
  return exit_code_of(status);
}

void Process::interrupt() { kill(running_->id, SIGINT); }

std::optional<Shown> run_in_terminal(const std::string& program, const std::vector<std::string>& arguments,
                                     const std::string& typed) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  require(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0, "making a terminal");
  const std::string name = ptsname(terminal);
  const int held = open(name.c_str(), O_RDWR | O_NOCTTY);  // or reads fail until the program opens it
  Process process(program, arguments, {name, name, name});
  close(held);
  const std::string keys = typed.empty() ? "\x04" : typed;  // Ctrl-D: the end of input
  require(write(terminal, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()), "typing");
  Shown shown;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = read(terminal, part.data(), part.size())) > 0;)
    shown.text.append(part.data(), static_cast<size_t>(n));
  close(terminal);
  shown.exit_code = process.wait();
  return shown;
}

}  // namespace kvq_test
