#include "io/policy_yaml.h"
#include <string>
namespace kvq::io { std::string policy_yaml(const Policy&) { return "keys: fp16\n"; } }
