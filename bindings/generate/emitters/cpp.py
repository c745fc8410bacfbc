"""include/kvq.hpp: the API in C++20, with ownership, exceptions and spans."""
import pathlib
import re
from types import SimpleNamespace

from emitters import _cpp_batches as batches
from emitters._cpp_calls import SHARED, Call, class_of, function_name
from emitters._cpp_text import WIDTH, comment, constructor, function
from emitters._text import NOTICE, target_of

BASE = pathlib.Path(__file__).with_name("_cpp_base.hpp")
STEP = pathlib.Path(__file__).with_name("_cpp_step.hpp")  # by hand, since a step ends with its object
POOL = pathlib.Path(__file__).with_name("_cpp_pool.hpp")  # by hand, since a plan knows its rows; @NAME is a comment
LOAD = pathlib.Path(__file__).with_name("_cpp_load.hpp")  # by hand, since several objects come out
NAMESPACE = "v1"

INTRODUCTION = """kvq.h in C++20, header-only: owning handles, exceptions, spans.

Each object of kvq.h is a class and its functions are methods: kvq_sequence_truncate is Sequence::truncate,
kvq_cache_create a constructor, kvq_policy_load a static function. A sequence knows its cache, so kvq_append and
kvq_compress are methods of Sequence. An object converts to the pointer that kvq.h takes, unless it is temporary. It may be
empty: default-constructed (but for a Context), made of nullptr, or moved from. Calls refuse empty objects with an
Error. Methods that several threads may call at once are const.

- Failures throw Error. ::checked does so for any function of kvq.h.
- Structs are those of kvq.h; initialised<kvq_cache_options>() returns the defaults.
- Sizes of spans are checked before the call. Spans of float are in the context's memory: for a CUDA context in device
  memory, which the host may not access. Overloads with pointers and a kvq_dtype take other element types.
- Objects may be destroyed in any order."""

FRAME = """// %s
#ifndef KVQ_HPP
#define KVQ_HPP

#include "kvq.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Namespace of this header; define it if `kvq` is taken.
#ifndef KVQ_NAMESPACE
#define KVQ_NAMESPACE kvq
#endif

namespace KVQ_NAMESPACE {
inline namespace %s {  // keeps these apart from the classes inside a static libkvq
"""

END = """
}  // namespace %s
}  // namespace KVQ_NAMESPACE

#endif  // KVQ_HPP
"""


# A function object gets another one as its body.
PARALLEL_FOR = comment("""Run `body(i)` once for every i in [0, n), on any threads in any order, and return when all calls have returned:
the body may not be used after that. The library then runs what is left. Called from the thread that made the call, so from
several at once if several use the context. The library runs short loops itself without this hook.""") + [
    "using ParallelForHook = std::function<void(int32_t n, const detail::ParallelBody& body)>;", ""]


def if_experimental(one, lines):
    return ["", "#ifdef KVQ_EXPERIMENTAL"] + lines + ["#endif"] if one["experimental"] else lines


def documentation(one, kept=(), indent="", note=None):
    lines = comment(one["documentation"], indent) if one["documentation"] else []
    if note:
        lines += comment(note, indent)
    for parameter in kept:
        if parameter["documentation"]:
            said = parameter["documentation"].replace("NULL: defaults.", "the defaults if omitted.")
            if parameter["type"]["kind"] == "pointer" and "length" in parameter:
                said = said.replace("NULL", "empty")
            lines += comment("\\param %s  %s" % (parameter["name"], said), indent)
    if one.get("returns", {}).get("c") == "kvq_status" and one["returns"]["documentation"]:
        said = one["returns"]["documentation"].removeprefix("KVQ_OK; ").removeprefix("KVQ_OK;")
        lines += comment("\\throws Error: " + said.strip(), indent)
    elif one.get("returns", {}).get("documentation"):
        lines += comment("\\returns " + one["returns"]["documentation"], indent)
    if one.get("threads", "any.") not in ("any.", "read-only.", "exclusive use of the handle."):
        lines += comment("\\par Threads: " + one["threads"], indent)
    return lines


def hooks(api):
    """Function object types for hooks."""
    lines = []
    for hook in api["hooks"]:
        if not hook["parameters"] or hook["parameters"][0]["name"] != "user":
            continue
        if hook["name"] == "kvq_parallel_for_hook":
            lines += PARALLEL_FOR
            continue
        parameters = ", ".join(("%s %s" % (one["c"], one["name"])) for one in hook["parameters"][1:])
        lines += documentation(hook)
        lines += ["using %s = std::function<%s(%s)>;" % (function_name(hook["name"]), hook["returns"]["c"], parameters), ""]
    return lines


def specialisations(api):
    """initialised<> for structs that have an init function."""
    lines = []
    for struct in api["structs"]:
        if struct["init"]:
            lines += if_experimental(struct, [
                "template <>", "inline %s initialised() {" % struct["name"], "  %s it;" % struct["name"],
                "  %s(&it, sizeof(it));" % struct["init"], "  return it;", "}"]) + [""]
    return lines


def layout(api):
    lines = ["// Checks that kvq.h is the header that this file was generated from, or newer: constants and struct layouts."]
    for enumeration in api["enumerations"]:
        lines += if_experimental({"experimental": enumeration.get("experimental", False)}, [
            "static_assert(%s == %d);" % (value["name"], value["value"]) for value in enumeration["values"]])
    for struct in api["structs"]:
        name = struct["name"]
        lines += if_experimental(struct, [
            "static_assert(sizeof(void*) != %d || sizeof(%s) == %d);" % (api["pointer_width"] // 8, name, struct["size"])] + [
            "static_assert(sizeof(void*) != %d || offsetof(%s, %s) == %d);" % (
                api["pointer_width"] // 8, name, field["name"], field["offset"]) for field in struct["fields"]])
    return lines


def calls_of(one, model):
    """The methods generated from a function."""
    typed = Call(one, model, True)
    found = [typed]
    if typed.typed and (typed.tensors() or typed.hook()):
        found.append(Call(one, model, False))
    if typed.cache_of_sequence and any("nullable" in p and p is typed.receiver for p in typed.inputs):
        found.append(Call(one, model, True, whole=True))
    return found


def method(found, model, indent="  "):
    """A method, or a free function if indent is empty."""
    one = found.function
    prefix, suffix = found.returned() + " " + found.name, ""
    if not indent:
        prefix = "inline " + prefix
    elif found.receiver is None:
        prefix = "static " + prefix
    elif found.is_const:
        suffix = " const"
    if found.typed or not calls_of(one, model)[0].typed:
        lines = documentation(one, found.documented, indent)
    elif found.hook():
        lines = comment("Overload with a C hook.", indent)
    else:
        lines = comment("Overload for tensors of other element types; their sizes are not checked.", indent)
    lines += function(prefix, found.parameters, suffix, found.statements(), indent)
    structs = [model.structs[target_of(p["type"])["name"]] for p in found.inputs if target_of(p["type"])["kind"] == "struct"]
    for struct in structs:
        if batches.is_batch(struct):
            lines += ["", "  /// Overload with spans."] + batches.method(struct, found)
    if found.result == ("bytes",) and found.receiver is None:
        lines += [""] + alone(found)
    return lines


def alone(found):
    """Overload for one object of a function that takes arrays of objects."""
    parameters, before, arguments = [], [], []
    for one in found.documented:
        singular = one["name"].rstrip("s") if target_of(one["type"])["kind"] == "character" else "it"
        value = "get()"
        if target_of(one["type"])["kind"] == "character":
            parameters.append("const std::string& " + singular)
            value = 'detail::c_string(%s, "%s")' % (singular, singular)
            singular = "text"
        before.append("%s %s = %s;" % (one["c"][:-1].strip(), singular, value))
        arguments.append("std::span(&%s, 1)" % singular)
    return ["  /// Overload for this object alone."] + function(found.returned() + " " + found.name, parameters, " const",
                                                    before + ["return %s(%s);" % (found.name, ", ".join(arguments))])


def hook_groups(options):
    """(hook field, its user field) of the hooks that the library calls until `released`."""
    fields = options["fields"]
    for number, field in enumerate(fields):
        if field["type"]["kind"] == "hook" and field["keeps"] == "released":
            yield field, next(one for one in fields[number:] if one["name"].endswith("_user"))


def hooks_struct(options):
    lines = comment("""Hooks of ::%s as function objects; empty ones are not installed. The context owns them: they live until `released` has
been called, after the last object made from the context is gone. A hook that throws has failed like its C hook: no memory, or
work that the library then does itself. The call that ran the hook throws its exception; if the hook ran on another thread, or
while an object was destroyed, Context::rethrow does. What `released` throws is dropped.""" % options["name"])
    lines.append("struct Hooks {")
    lines += ["  %s %s = {};" % (function_name(field["type"]["name"]), field["name"]) for field, _ in hook_groups(options)]
    return lines + ["};", ""]


def create_with_hooks(options):
    body = ["auto state = std::make_unique<detail::HookState<Hooks>>(std::move(hooks));"]
    for field, user in hook_groups(options):
        if field["name"] == "released":
            body.append("options.released = &detail::release_hooks<Hooks>;")
            body.append("options.released_user = state.get();")
            continue
        body += ["if (state->functions.%s) {" % field["name"],
                 "  options.%s = state->hook<%s, &Hooks::%s>();" % (field["name"], field["type"]["name"], field["name"]),
                 "  options.%s = state.get();" % user["name"], "}"]
    body += ["require_version();", "kvq_context* made = nullptr;",
             "const detail::Outcome outcome(kvq_context_create, &options, &made);",
             "if (made != nullptr) hooks_ = state.release();  // `released` deletes it", "reset(made);", "outcome.raise();"]
    return body


def constructor_of(one, handle, model, api):
    found = Call(one, model, True)
    cls = class_of(handle["name"])
    explicit = "explicit " if len([p for p in found.parameters if " = " not in p]) <= 1 else ""
    lines = documentation(one, found.documented, "  ")
    arguments = ", ".join([one["name"]] + found.arguments)
    if not handle["parents"]:
        options = model.structs[target_of(one["parameters"][0]["type"])["name"]]
        lines += constructor("explicit " + cls, found.parameters, ["Owned(create(options))"])
        lines += [""] + comment("Create a context with function objects as hooks; `released` is taken from `hooks`.", "  ")
        body = create_with_hooks(options)
        lines += function(cls, ["%s options" % options["name"], "Hooks hooks"], " : Owned(nullptr)", body)
        lines += [""] + comment(
            "Rethrow, once, the first exception of a hook that ran on another thread than the caller's, or outside of calls.",
            "  ")
        lines += ["  void rethrow() const {", "    if (get() != nullptr && hooks_ != nullptr) hooks_->rethrow();", "  }"]
        private = function("static %s* create" % handle["name"], ["const %s& options" % options["name"]], "",
                           ["require_version();", "return detail::made<Owned>(%s, &options).release();" % one["name"]])
        return lines, private + ["", "  detail::HookState<Hooks>* hooks_ = nullptr;"]
    kept = shape_of(handle, api)
    initialiser = "Owned(detail::made<Owned>(%s))" % arguments
    private, members = [], []
    if kept:
        structs = [(p["name"], model.structs[target_of(p["type"])["name"]]) for p in found.documented
                   if target_of(p["type"])["kind"] == "struct"]
        sources = {field: next(name for name, struct in structs if field in [f["name"] for f in struct["fields"]]) for field in kept}
        members = ["%s_(%s.%s)" % (field, sources[field], field) for field in kept]
        private = ["  int32_t %s_ = 0;" % field for field in kept]
    return lines + constructor(explicit + cls, found.parameters, [initialiser] + members), private


def shape_of(handle, api):
    """Fields of a trainer's options that the lengths of its methods name."""
    words = {word for one in api["functions"] if one["name"].startswith(handle["name"] + "_")
             for p in one["parameters"] for word in p.get("length", "").split(" * ") if word.startswith("trainer.")}
    return sorted(word.partition(".")[2] for word in words)


# The method of Cache that makes a Step.
BEGIN_STEP = (
    comment("""Begin a step that ends with the returned object: `token_counts[i]` more tokens of sequence i, one each if empty.
`step_begin` says what a step is.""", "  ") + comment("\\throws Error: as `step_begin`.", "  ")) + function("[[nodiscard]] Step begin_step", [
    "std::span<kvq_sequence* const> sequences", "std::span<const int32_t> token_counts = {}"], " const", [
        "return Step(get(), sequences, token_counts);"])


# What Cache declares and LOAD, where sequences are known, defines.
SAVE_ALL = ["  /// Overload for a container of sequences.",
            "  std::vector<std::byte> save(std::span<const Sequence> sequences) const;"]


def load_all(one):
    """The declaration of Cache::load, which returns the sequences that kvq_cache_load puts into an array."""
    kept = [p for p in one["parameters"] if p["name"] in ("buffer", "options")]
    return documentation(one, kept, "  ") + [
        "  std::vector<Sequence> load(std::span<const std::byte> buffer,",
        "                             const kvq_load_options& options = initialised<kvq_load_options>()) const;"]


def class_lines(handle, model, api):
    name, cls = handle["name"], class_of(handle["name"])
    viewed = name if name in SHARED else "const " + name
    made, private, methods = [], [], []
    for one in api["functions"]:
        if one["name"].endswith(("_init", "_destroy")):
            continue
        if one["name"] == name + "_create":
            made, private = constructor_of(one, handle, model, api)
            continue
        if one["name"] == "kvq_cache_load":
            methods += ([""] + load_all(one)) if name == "kvq_cache" else []
            continue
        for found in calls_of(one, model):
            if found.owner == name:
                if one["name"] == "kvq_step_begin":
                    methods += [""] + BEGIN_STEP
                hidden = {"experimental": one["experimental"] and not handle["experimental"]}
                methods += [""] + if_experimental(hidden, method(found, model))
                if one["name"] == "kvq_cache_save":
                    methods += [""] + SAVE_ALL
    lines = comment(handle["documentation"])
    base = ": public detail::Owned<%s, %s, %s> {" % (name, handle["destroy"], viewed)
    lines += ["class %s %s" % (cls, base)] if len(cls + base) + 7 <= WIDTH else ["class " + cls, "    " + base]
    lines.append(" public:")
    if made and handle["parents"]:  # Context() has the default options
        lines.append("  %s() noexcept = default;" % cls)
    if private and handle["parents"]:  # sizes are checked against what it was created with
        lines.append("  %s(std::nullptr_t) noexcept : Owned(nullptr) {}" % cls)
    else:
        lines.append("  using Owned::Owned;")
    lines += ([""] + made if made else []) + methods
    lines += ([""] + [" private:"] + private if private else []) + ["};"]
    return lines


def pools(api):
    """The classes of pools and their plans."""
    known = {one["name"]: one for one in api["functions"] + api["handles"]}
    lines = []
    for line in POOL.read_text(encoding="utf-8").split("\n"):
        named = re.fullmatch(r"( *)@(\w+)", line)
        lines += documentation(known[named[2]], (), named[1]) if named else [line]
    return lines


def free_functions(api, model):
    lines = []
    for one in api["functions"]:
        if one["name"].endswith(("_init", "_destroy")):
            continue
        found = Call(one, model, True)
        if found.owner is None:
            lines += if_experimental(one, method(found, model, "")) + [""]
            if found.name.endswith("_name") and one["name"].replace("_name", "_count") in model.functions:
                lines += ["/// Return all names of ::%s." % one["name"],
                          "inline std::vector<std::string> %ss() { return detail::names(%s(), %s); }" % (
                              found.name, one["name"].replace("_name", "_count"), one["name"]), ""]
    return lines


def header(api):
    model = SimpleNamespace(handles=[one["name"] for one in api["handles"]],
                            structs={one["name"]: one for one in api["structs"]},
                            functions={one["name"]: one for one in api["functions"]})
    lines = (FRAME % (NOTICE, NAMESPACE)).replace("#ifndef KVQ_HPP", "\n".join(comment("\\file kvq.hpp\n\n" + INTRODUCTION)) +
                                                  "\n#ifndef KVQ_HPP", 1).split("\n")
    lines += BASE.read_text(encoding="utf-8").split("\n")
    at = lines.index("namespace detail {", lines.index("Struct initialised() {"))
    lines[at:at] = specialisations(api)
    lines += layout(api) + [""] + free_functions(api, model) + hooks(api)
    lines += hooks_struct(next(one for one in api["structs"] if any(f["name"] == "released" for f in one["fields"])))
    for handle in api["handles"]:
        if handle["name"] == "kvq_cache":
            lines += STEP.read_text(encoding="utf-8").split("\n") + ["class Sequence;", ""]
        for struct in filter(batches.is_batch, api["structs"]):
            if handle["name"] == "kvq_cache":
                lines += batches.declaration(struct) + ["", "namespace detail {"] + batches.checked(struct) + [
                    "}  // namespace detail", ""]
        if handle["name"] == "kvq_pool":
            lines += pools(api)
        if not handle["name"].startswith("kvq_pool"):
            lines += if_experimental(handle, class_lines(handle, model, api)) + [""]
        if handle["name"] == "kvq_sequence":
            lines += LOAD.read_text(encoding="utf-8").split("\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).rstrip("\n") + "\n" + END % NAMESPACE)


def emit(api):
    return {"include/kvq.hpp": header(api)}
