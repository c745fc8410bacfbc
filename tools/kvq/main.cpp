#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <string>

#include "commands/commands.h"
#include "kvq.h"
#include "options/command.h"

namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

int report(std::string message, int exit_code) {
  for (char& character : message) {
    if (character == '\n' || character == '\r') character = ' ';
  }
  std::cerr << "kvq: " << message << '\n';
  return exit_code;
}

void add_commands(cli::Command app) {
  cli::add_demo(app);
  cli::add_info(app);
  cli::add_generate(app);
  cli::add_chat(app);
  cli::Command eval = app.add_command("eval", "Measure the quality of a model on a compressed cache");
  eval.require_command();
  cli::add_eval_perplexity(eval);
  cli::add_eval_generate(eval);
  cli::add_eval_needle(eval);
  cli::add_eval_error(eval);
  cli::add_eval_eviction(eval);
  cli::Command train = app.add_command("train", "Train what compression needs to know about a model");
  train.require_command();
  cli::add_train_centres(train);
  cli::add_train_codebook(train);
  cli::add_train_router(train);
  cli::add_plan(app);
  cli::add_quantize(app);
  cli::Command bench = app.add_command("bench", "Measure speed");
  bench.require_command();
  cli::add_bench_attend(bench);
  cli::add_bench_append(bench);
  cli::add_bench_compress(bench);
  cli::add_bench_decode(bench);
  cli::add_bench_linear(bench);
  cli::add_bench_quantize(bench);
  cli::add_reference(app);
}

int run(int argc, char** argv) {
  cli::Program program("kvq", "A compressed key/value cache for language models, and programs to try it.",
                       kvq_version_string());
  add_commands(program.root());
  if (!program.run(argc, argv)) return 0;
  std::cout.flush();
  return std::cout ? 0 : report("cannot write to standard output", kFailed);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of the stream, reported like any other
  try {
    return run(argc, argv);
  } catch (const cli::UsageError& error) {
    return report(error.what(), kWrongUsage);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kFailed);
  }
}
