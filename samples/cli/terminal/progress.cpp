#include "terminal/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "terminal/output.h"

namespace cli {
namespace {

constexpr std::chrono::milliseconds kRedraw{250};  // seldom enough not to disturb what is timed
constexpr int64_t kWidth = 40;

}  // namespace

Progress::Progress(std::string label, int64_t total, std::chrono::milliseconds patience)
    : label_(std::move(label)), total_(std::max<int64_t>(total, 1)), begin_(Clock::now()) {
  if (isatty(STDERR_FILENO) != 1) return;
  drawing_ = std::jthread([this, patience](std::stop_token stop) { draw_until(std::move(stop), patience); });
}

Progress::~Progress() = default;

void Progress::draw_until(std::stop_token stop, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto stopped_within = [&](std::chrono::milliseconds time) {
    stopped_.wait_for(lock, stop, time, [] { return false; });
    return stop.stop_requested();
  };
  if (patience.count() > 0 && stopped_within(patience)) return;
  do {
    draw();
  } while (!stopped_within(kRedraw));
  std::fputs("\r\033[K", stderr);
}

void Progress::draw() const {
  const int64_t done = std::min(done_.load(), total_);
  const double fraction = static_cast<double>(done) / static_cast<double>(total_);
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  const std::string bar(static_cast<size_t>(static_cast<double>(kWidth) * fraction), '#');
  const std::string time =
      done > 0 ? duration_text(elapsed / fraction - elapsed) + " left" : duration_text(elapsed) + " so far";
  std::fprintf(stderr, "\r%s [%-*s] %3.0f %%  %s\033[K", label_.c_str(), static_cast<int>(kWidth), bar.c_str(),
               100.0 * fraction, time.c_str());
}

}  // namespace cli
