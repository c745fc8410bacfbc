#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "kvq.h"
#include "options/usage_error.h"

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

void add_commands(CLI::App& app) {
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("kvq ") + kvq_version_string());
  cli::add_demo(app);
  cli::add_info(app);
  cli::add_generate(app);
  cli::add_chat(app);
  CLI::App* eval = app.add_subcommand("eval", "Measure the quality of a model on a compressed cache");
  eval->require_subcommand(1);
  cli::add_eval_perplexity(*eval);
  cli::add_eval_generate(*eval);
  cli::add_eval_needle(*eval);
  cli::add_eval_error(*eval);
  cli::add_eval_eviction(*eval);
  CLI::App* train = app.add_subcommand("train", "Train what compression needs to know about a model");
  train->require_subcommand(1);
  cli::add_train_centres(*train);
  cli::add_train_codebook(*train);
  cli::add_train_router(*train);
  cli::add_plan(app);
  cli::add_quantize(app);
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  cli::add_bench_attend(*bench);
  cli::add_bench_append(*bench);
  cli::add_bench_compress(*bench);
  cli::add_bench_decode(*bench);
  cli::add_bench_linear(*bench);
  cli::add_bench_quantize(*bench);
  cli::add_reference(app);
}

int run(int argc, char** argv) {
  CLI::App app("A compressed key/value cache for language models, and programs to try it.", "kvq");
  add_commands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::string message = error.what();
    const std::vector<std::string> unknown = app.remaining(true);
    if (!unknown.empty() && message.find(unknown.front()) == std::string::npos) message += ", not " + unknown.front();
    return report(message + " (see --help)", kWrongUsage);
  }
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
