// Threads of a block as fibers, on x86-64.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "emulator.h"

namespace emulator {

Index thread_index;
Index block_index;
dim3 block_dim;
dim3 grid_dim;

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kDynamicBytes = 256 << 10;
constexpr size_t kGuardBytes = 4096;  // a page of memory
constexpr size_t kDynamicAlignment = 128;
constexpr unsigned long kPatience = 100'000'000;  // turns of other threads; a longer wait is a deadlock

// Static, near to variables in shared memory, whose addresses are 32 bits. A block's memory ends at the guard, which
// nobody may touch.
alignas(kGuardBytes) unsigned char dynamic[kDynamicBytes + kGuardBytes];

struct Fiber {
  void* stack_pointer;
  bool done;
};

/// Threads that wait for the others of a warp or block.
struct Meeting {
  unsigned members = 0;
  unsigned waiting = 0;
  unsigned long number = 0;

  void release_if(unsigned enough) {
    if (waiting == 0 || waiting < enough) return;
    waiting = 0;
    ++number;
  }
  void wait(unsigned enough) {
    const unsigned long mine = number;
    ++waiting;
    release_if(enough);
    for (unsigned long turns = 0; number == mine; ++turns) {
      if (turns > kPatience) {
        std::fputs("emulated threads wait for each other for ever\n", stderr);
        std::abort();
      }
      yield();
    }
  }
  void leave() {
    --members;
    release_if(members);
  }
};

struct Warp : Meeting {
  unsigned char memory[kLanes * kLaneBytes];
};

std::vector<Fiber> fibers;
std::vector<unsigned char*> stacks;
std::vector<Warp> warps;
Meeting block;
bool any = false;  // as given at the last barrier
unsigned current = 0;
void* outside = nullptr;  // the launcher's stack pointer
const std::function<void()>* work = nullptr;

/// Threads run in ascending order, or with KVQ_EMULATED_ORDER=down in the environment in descending order: results must
/// not differ.
bool goes_down() {
  static const bool kDown = [] {
    const char* order = std::getenv("KVQ_EMULATED_ORDER");
    return order != nullptr && std::strcmp(order, "down") == 0;
  }();
  return kDown;
}

/// Saves callee-saved registers and continues where `to` was saved.
extern "C" void emulator_switch(void** save, void* to);
asm(R"(
.text
.globl emulator_switch
.hidden emulator_switch
emulator_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

void become(unsigned fiber) {
  current = fiber;
  thread_index = {fiber % block_dim.x, fiber / block_dim.x % block_dim.y, fiber / block_dim.x / block_dim.y};
}

void run_fiber() {
  (*work)();
  fibers[current].done = true;
  warps[current / kLanes].leave();
  block.leave();
  yield();
}

void* new_stack(unsigned char* stack) {
  constexpr int kSaved = 6;
  auto** top = reinterpret_cast<void**>(stack + kStackBytes - 64);
  *--top = nullptr;  // no return address
  *--top = reinterpret_cast<void*>(run_fiber);
  return top - kSaved;
}

void run_block() {
  const auto threads = static_cast<unsigned>(fibers.size());
  warps.assign((threads + kLanes - 1) / kLanes, Warp{});
  block = {};
  block.members = threads;
  for (unsigned i = 0; i < threads; ++i) {
    ++warps[i / kLanes].members;
    fibers[i] = {new_stack(stacks[i]), false};
  }
  const unsigned first = goes_down() ? threads - 1 : 0;
  become(first);
  emulator_switch(&outside, fibers[first].stack_pointer);
}

}  // namespace

unsigned char* dynamic_memory = dynamic + kDynamicBytes;

unsigned lane() { return current % kLanes; }
unsigned char* warp_memory() { return warps[current / kLanes].memory; }

/// The next unfinished thread, or the host.
void yield() {
  const auto threads = static_cast<unsigned>(fibers.size());
  Fiber& own = fibers[current];
  for (unsigned i = 1; i <= threads; ++i) {
    const unsigned next = (current + (goes_down() ? threads - i : i)) % threads;
    if (fibers[next].done) continue;
    if (next == current) return;
    become(next);
    emulator_switch(&own.stack_pointer, fibers[next].stack_pointer);
    return;
  }
  emulator_switch(&own.stack_pointer, outside);
}

void sync_block() { block.wait(block.members); }

bool any_of_block(bool value) {
  any = any || value;
  sync_block();
  const bool found = any;
  sync_block();
  any = false;
  sync_block();
  return found;
}

void sync_warp(unsigned lanes) {
  Warp& warp = warps[current / kLanes];
  warp.wait(lanes == kAll ? warp.members : static_cast<unsigned>(__builtin_popcount(lanes)));
}

void run(dim3 grid, dim3 block_size, size_t shared_bytes, const std::function<void()>& kernel) {
  if (shared_bytes > kDynamicBytes) std::abort();
  if (mprotect(dynamic + kDynamicBytes, kGuardBytes, PROT_NONE) != 0) std::abort();
  dynamic_memory = dynamic + (kDynamicBytes - shared_bytes) / kDynamicAlignment * kDynamicAlignment;
  grid_dim = grid;
  block_dim = block_size;
  work = &kernel;
  fibers.resize(size_t{block_size.x} * block_size.y * block_size.z);
  while (stacks.size() < fibers.size()) {
    stacks.push_back(static_cast<unsigned char*>(
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        block_index = {x, y, z};
        std::memset(dynamic_memory, 0x5B, shared_bytes);  // uninitialized memory
        run_block();
      }
    }
  }
}

}  // namespace emulator
