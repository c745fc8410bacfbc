#pragma once

#include <string>

// Paths of test inputs: from the build, or from the environment on a machine that the tests were copied to.

/// The program kvq, or KVQ_TEST_PROGRAM.
std::string program();
/// The directory of the embedded model, or KVQ_TEST_MODEL.
std::string demo_model();
/// The directory that tests/data and scripts are in, or KVQ_TEST_SOURCE.
std::string source_tree();
/// The directory of modules that are refused, or KVQ_TEST_PLUGINS.
std::string test_plugins();
