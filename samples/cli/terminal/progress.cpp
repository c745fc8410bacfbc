#include "terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace cli {
namespace {

constexpr std::chrono::seconds kPatience{2};
constexpr std::chrono::milliseconds kRedraw{100};
constexpr int64_t kWidth = 40;

}  // namespace

Progress::Progress(std::string label, int64_t total)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 1)),
      terminal_(isatty(STDERR_FILENO) == 1),
      begin_(Clock::now()),
      next_draw_(begin_ + kPatience) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::advance(int64_t steps) {
  done_ = std::min(done_ + steps, total_);
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedraw;
  draw(now);
}

void Progress::draw(Clock::time_point now) {
  drawn_ = true;
  const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const std::string bar(static_cast<size_t>(kWidth * done_ / total_), '#');
  std::fprintf(stderr, "\r%s [%-*s] %3.0f %%", label_.c_str(), static_cast<int>(kWidth), bar.c_str(), 100.0 * fraction);
  if (done_ > 0) std::fprintf(stderr, "  %.0f s left", elapsed / fraction - elapsed);
  std::fputs("\033[K", stderr);
}

}  // namespace cli
