#pragma once

#include <string>

// Where the tests find things: where the build says, or the environment, on a machine to which the tests were copied.

/// The program kvq, or KVQ_TEST_PROGRAM.
std::string program();
/// The directory of the embedded model, or KVQ_TEST_MODEL.
std::string demo_model();
/// The directory that tests/data and scripts are in, or KVQ_TEST_SOURCE.
std::string source_tree();
/// The directory of modules that are refused, or KVQ_TEST_PLUGINS.
std::string test_plugins();
