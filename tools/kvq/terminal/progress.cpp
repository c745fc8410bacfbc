#include "terminal/progress.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "terminal/output.h"

namespace cli {
namespace {

volatile std::sig_atomic_t noted = 0;

void note(int /*signal*/) { noted = 1; }

llama::InterruptHandler::Note note_from_now_on() {
  noted = 0;
  return note;
}

constexpr std::chrono::milliseconds kRedraw{250};  // seldom enough not to disturb what is timed
constexpr std::chrono::seconds kLinePause{30};     // of a log
constexpr int64_t kProgressWidth = 40;

}  // namespace

Interrupt::Interrupt() : handler_(note_from_now_on()) {}

bool Interrupt::requested() { return noted != 0; }

void Interrupt::check() {
  if (requested()) throw Interrupted();
}

Progress::Progress(std::string label, int64_t total, std::chrono::milliseconds patience)
    : label_(std::move(label)), total_(std::max<int64_t>(total, 1)), begin_(Clock::now()) {
  const bool terminal = llama::is_terminal(stderr);
  drawing_ = std::jthread([this, patience, terminal](const std::stop_token& stop) {
    if (!terminal) {
      draw_until(stop, kLinePause, kLinePause, &Progress::draw_line);
    } else if (draw_until(stop, patience, kRedraw, &Progress::draw_bar)) {
      std::fputs("\r\033[K", stderr);
    }
  });
}

Progress::~Progress() = default;

bool Progress::draw_until(const std::stop_token& stop, std::chrono::milliseconds patience,
                          std::chrono::milliseconds pause, void (Progress::*draw)() const) {
  std::unique_lock lock(mutex_);
  const auto stopped_within = [&](std::chrono::milliseconds time) {
    stopped_.wait_for(lock, stop, time, [] { return false; });
    return stop.stop_requested();
  };
  if (patience.count() > 0 && stopped_within(patience)) return false;
  do {
    (this->*draw)();
  } while (!stopped_within(pause));
  return true;
}

void Progress::advance(int64_t steps) {
  done_ += steps;
  last_ = Clock::now() - begin_;
}

/// What is left by the steps that are done; once a single one takes longer than that, what has passed.
std::string Progress::time_text(double fraction) const {
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const double passed = seconds(Clock::now() - begin_);
  const double left = fraction > 0.0 ? seconds(last_.load()) / fraction - passed : -1.0;
  return left >= 0.0 ? duration_text(left) + " left" : duration_text(passed) + " so far";
}

double Progress::fraction() const {
  return static_cast<double>(std::min(done_.load(), total_)) / static_cast<double>(total_);
}

void Progress::draw_bar() const {
  const double done = fraction();
  const std::string bar(static_cast<size_t>(static_cast<double>(kProgressWidth) * done), '#');
  std::fprintf(stderr, "\r%s [%-*s] %3.0f %%  %s\033[K", label_.c_str(), static_cast<int>(kProgressWidth), bar.c_str(),
               100.0 * done, time_text(done).c_str());
}

void Progress::draw_line() const {
  const double done = fraction();
  std::fprintf(stderr, "%s: %.0f %%, %s\n", label_.c_str(), 100.0 * done, time_text(done).c_str());
}

int32_t TrainingBar::hook(void* user, double done) {
  auto& self = *static_cast<TrainingBar*>(user);
  self.advance_to(std::min(static_cast<int64_t>(done * static_cast<double>(self.total_)), self.total_));
  return Interrupt::requested() ? 1 : 0;
}

void TrainingBar::finish() { advance_to(total_); }

void TrainingBar::advance_to(int64_t steps) {
  bar_->advance(steps - steps_);
  steps_ = steps;
}

}  // namespace cli
