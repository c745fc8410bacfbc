"""The exported symbols and the struct layouts, for tests/exports and tests/capi."""
from emitters._text import NOTICE


def symbols(api):
    lines = ["%s@@%s" % (one["name"], "KVQ_EXPERIMENTAL" if one["experimental"] else "KVQ_" + one["since"]) for one in api["functions"]]
    return "".join(line + "\n" for line in sorted(lines))


def layout(api):
    lines = ["/* " + NOTICE + " */",
             "/* The binary layout of every public struct on LP64 and every constant of the API: neither may ever change. */",
             '#include "check.h"', '#include "suites.h"', "", "#include <stddef.h>", "",
             "#define OFFSET(type, member, expected) CHECK(offsetof(type, member) == (expected))", "",
             "static void lp64_offsets(void) {"]
    for struct in api["structs"]:
        lines.append("  CHECK(sizeof(%s) == %d);" % (struct["name"], struct["size"]))
        lines += ["  OFFSET(%s, %s, %d);" % (struct["name"], field["name"], field["offset"]) for field in struct["fields"]]
        lines.append("")
    lines[-1:] = ["}", "", "static void numbers(void) {"]
    for enumeration in api["enumerations"]:
        lines += ["  CHECK(%s == %d);" % (value["name"], value["value"]) for value in enumeration["values"]]
        if enumeration["name"]:
            lines.append("  CHECK(sizeof(%s) == 4);" % enumeration["name"])
        lines.append("")
    lines[-1:] = ["}", "", "void test_layout(void) {",
                  "  if (sizeof(void*) == %d) lp64_offsets();" % (api["pointer_width"] // 8), "  numbers();", "}", ""]
    return "\n".join(lines)


def emit(api):
    return {"tests/exports/symbols.txt": symbols(api), "tests/capi/layout.c": layout(api)}
