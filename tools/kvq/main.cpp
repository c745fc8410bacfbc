#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "kvq.h"
#include "llama/system.h"
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

using Add = void (*)(cli::Command);

void add_group(cli::Command app, const char* name, const char* help, std::initializer_list<Add> commands) {
  cli::Command group = app.add_command(name, help);
  group.require_command();
  for (const Add add : commands) add(group);
}

void add_commands(cli::Command app) {
  for (const Add add : {cli::add_demo, cli::add_info, cli::add_doctor, cli::add_generate, cli::add_chat}) add(app);
  add_group(app, "eval", "Measure the quality of a model on a compressed cache",
            {cli::add_eval_perplexity, cli::add_eval_generate, cli::add_eval_needle, cli::add_eval_error,
             cli::add_eval_eviction});
  add_group(app, "train", "Train what compression needs to know about a model",
            {cli::add_train_centres, cli::add_train_codebook, cli::add_train_router});
  for (const Add add : {cli::add_plan, cli::add_balance, cli::add_quantize}) add(app);
  add_group(app, "bench", "Measure speed",
            {cli::add_bench_attend, cli::add_bench_append, cli::add_bench_compress, cli::add_bench_recode,
             cli::add_bench_decode, cli::add_bench_linear, cli::add_bench_quantize});
  cli::add_reference(app);
}

int run(std::vector<std::string> words) {
  cli::Program program("kvq", "A compressed key/value cache for language models, and programs to try it.",
                       kvq_version_string());
  add_commands(program.root());
  if (!program.run(std::move(words))) return 0;
  std::cout.flush();
  return std::cout ? 0 : report("cannot write to standard output", kFailed);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    llama::prepare_streams();
    return run(llama::command_line(argc, argv));
  } catch (const cli::UsageError& error) {
    return report(error.what(), kWrongUsage);
  } catch (const std::bad_alloc&) {
    return report("out of memory", kFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kFailed);
  }
}
