#!/usr/bin/env python3
"""Every function of the API is behind something of kvq.hpp, and all of that is called by tests/cpp.

usage: methods.py ROOT
"""
import json
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
header = (root / "include/kvq.hpp").read_text(encoding="utf-8")
code = re.sub(r"//.*", "", header)
tests = "".join(path.read_text(encoding="utf-8") for path in sorted((root / "tests/cpp").iterdir()))
problems = []

for function in json.loads((root / "bindings/kvq-api.json").read_text(encoding="utf-8"))["functions"]:
    if not re.search(r"\b%s\b" % function["name"], code):
        problems.append("%s is behind nothing" % function["name"])

count = 0
public = code[code.rindex("static_assert("):]
for cls, body in re.findall(r"^class (\w+)\b(.*?)^};", public, re.S | re.M):
    body = body.partition(" private:")[0]
    for static, name in set(re.findall(r"^  (static )?[\w:<>*]+(?: [\w:<>*]+)? (\w+)\(", body, re.M)):
        if name == cls:
            continue
        count += 1
        if not re.search(r"\b%s::%s\(" % (cls, name) if static else r"(?:\.|->)%s\(" % name, tests):
            problems.append("no test calls %s::%s" % (cls, name))
    if re.search(r"^  (explicit )?%s\((?!std::nullptr_t)" % cls, body, re.M):
        count += 1
        if not re.search(r"\bkvq::%s( \w+)?[({]" % cls, tests) and not re.search(r"kvq::%s \w+;" % cls, tests):
            problems.append("no test makes a %s" % cls)
for name in set(re.findall(r"^inline [\w:<>* ]+?(?<![:\w])(\w+)\(", public, re.M)) - {"c_struct"}:  # not methods
    count += 1
    if not re.search(r"\bkvq::%s\(" % name, tests):
        problems.append("no test calls kvq::%s" % name)

if count < 60:  # as many as there were when this was written
    problems.append("only %d methods were found in kvq.hpp" % count)
if problems:
    sys.exit("\n".join("FAILED: " + one for one in problems))
print("ok: %d methods and functions are called by tests" % count)
