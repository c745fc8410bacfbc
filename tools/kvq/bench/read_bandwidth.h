#pragma once

#include "llama/threads.h"

namespace cli {

/// Bytes per second that the threads together read from memory: the best of several passes over far more data than
/// the processor caches.
double read_bandwidth(llama::ThreadPool& threads);

}  // namespace cli
