"""Derives a method of kvq.hpp (parameters, checks, arguments) from a function of kvq.h."""
import re

from emitters._text import depth_of, target_of

# Any number of threads may use these; methods that need exclusive use are not `const`.
SHARED = ("kvq_context", "kvq_cache")
NAMES = {"kvq_append_sequences": "append", "kvq_pool_layout": "block_layout", "kvq_snapshot_describe": "describe_snapshot"}


def class_of(handle):
    return "".join(word.capitalize() for word in handle.split("_")[1:])


def prefix_of(function, handles):
    """The handle after which a function is named, or None."""
    found = [handle for handle in handles if function["name"].startswith(handle + "_")]
    return max(found, key=len) if found else None


def handle_in(parameter):
    """The handle that a parameter is, not an array of them."""
    target = target_of(parameter["type"])
    return target["name"] if target["kind"] == "handle" and depth_of(parameter["type"]) == 1 else None


def words_of(length):
    return re.findall(r"[a-z]\w*(?:\.\w+)?", length)


class Call:
    """One method: its parameters, statements before the call, and the call's arguments.

    typed: tensors are spans of float; otherwise pointers and their element type are passed on as they are.
    whole: the receiver is the cache, and an optional sequence is left out.
    """

    def __init__(self, function, model, typed, whole=False):
        by_address = any(target_of(one["type"])["kind"] == "void" and depth_of(one["type"]) == 2
                         for one in function["parameters"])  # tensors behind pointers to pointers have no spans
        self.function, self.model, self.typed = function, model, typed and not by_address
        self.parameters, self.before, self.arguments, self.documented = [], [], [], []
        self.described = {}
        self.result = None  # ("handle", name), ("struct", name), ("number", type), ("bytes",) or ("text",)
        self.also = []      # optional numbers that the call returns through pointers
        self.told = None    # the hook that is called during the call
        self.inputs = [one for one in function["parameters"] if one["name"] not in ("result", "error")]
        self.receiver = self.receiver_of(whole)
        self.cache_of_sequence = self.receiver is not None and handle_in(self.receiver) == "kvq_sequence"
        self.late_hook = None  # a field of a struct, which becomes the last parameter
        for one in function["parameters"]:
            self.take(one, whole)
        if self.late_hook:
            self.parameters.append("%s %s = {}" % (function_name(self.told), self.late_hook["name"]))

    def receiver_of(self, whole):
        """The object that the function is named after; else a sequence that follows its cache, or the first handle."""
        handles = [one for one in self.inputs if handle_in(one)]
        named = prefix_of(self.function, self.model.handles)
        if any(one["name"] == "result" for one in self.function["parameters"]) and named not in map(handle_in, handles):
            return None  # a constructor, or a function of the class
        if not named and not any("*" in one["c"] for one in handles):
            return None
        if whole:
            return handles[0]
        for one in handles:
            if handle_in(one) == "kvq_sequence" and named in (None, "kvq_sequence", "kvq_cache"):
                return one
        for one in handles:
            if handle_in(one) == named or named is None and self.function["name"] != "qp_quantize":
                return one
        return handles[0] if handles and named == "kvq_pool" else None  # its plan, or its cache

    @property
    def owner(self):
        """The class it belongs to, or None."""
        if self.receiver:
            return handle_in(self.receiver)
        named = prefix_of(self.function, self.model.handles)
        results = [target_of(one["type"])["name"] for one in self.function["parameters"] if one["name"] == "result"]
        arrays = [target_of(one["type"])["name"] for one in self.inputs
                  if target_of(one["type"])["kind"] == "handle" and not handle_in(one)]
        return (results or arrays or [named])[0]

    @property
    def name(self):
        name = self.function["name"]
        named = prefix_of(self.function, self.model.handles)
        return NAMES.get(name, name[len(named) + 1:] if named else name.partition("_")[2])

    @property
    def is_const(self):
        handle = handle_in(self.receiver)
        alone = "exclusive use of `%s`" % self.receiver["name"] in self.function["threads"]
        return bool(self.receiver["type"]["to"].get("const")) or handle in SHARED and not alone

    def lengths(self):
        return [one["length"] for one in self.inputs if "length" in one]

    def counts(self, name):
        """Whether a parameter is only the length of an array."""
        return (any(one["name"] == name for one in self.inputs) and name in self.lengths() and
                not any(name in words_of(one) for one in self.lengths() if one != name))

    def take(self, one, whole):
        name, kind, depth = one["name"], one["type"], depth_of(one["type"])
        target = target_of(kind)
        constant = bool(kind.get("to", {}).get("const"))
        if name == "error":
            return
        if name == "result":
            self.result = ("handle", target["name"])
        elif one is self.receiver:
            self.arguments.append("get()")
        elif self.cache_of_sequence and handle_in(one) == "kvq_cache":
            self.arguments.append("cache()")
        elif whole and "nullable" in one:
            self.arguments.append("nullptr")
        elif target["kind"] == "struct" and not constant:
            self.result = ("struct", target["name"])
        elif one.get("length") == "1" and self.result and "nullable" in one:
            self.parameters.append("%s %s = nullptr" % (one["c"], name))
            self.also.append(name)
            self.documented.append(one)
        elif one.get("length") == "1":
            text = any(other.get("length") == "capacity" and target_of(other["type"])["kind"] == "character"
                       for other in self.inputs)
            self.result = ("text",) if name == "size" and text else ("bytes",) if name == "size" else ("number", target["name"])
        elif one.get("length") == "capacity" or name == "capacity":
            pass
        elif target["kind"] == "hook" or name == "user" and self.hook():
            self.take_hook(one)
        elif self.counts(name):
            array = next(other["name"] for other in self.inputs if other.get("length") == name)
            self.arguments.append(array + ".size()" if one["c"] == "size_t" else 'detail::count("%s", %s.size())' % (array, array))
        elif one["c"] == "kvq_dtype" and self.typed:
            self.arguments.append("KVQ_F32")
        elif target["kind"] == "struct":
            self.take_struct(one, target["name"])
        elif target["kind"] == "character" and depth == 1:
            self.take_text(one)
        elif "length" in one:
            self.take_array(one, target, depth)
        elif handle_in(one):
            default = " = nullptr" if "nullable" in one else ""
            self.add(one, "detail::Borrowed<%s> %s%s" % (one["c"][:-1].strip(), name, default), name)
        else:
            self.add(one, "%s %s" % (one["c"], name), name)

    def add(self, one, declaration, argument):
        self.parameters.append(declaration)
        self.arguments.append(argument)
        self.documented.append(one)

    def hook(self):
        return next((one for one in self.inputs if target_of(one["type"])["kind"] == "hook"), None)

    def take_hook(self, one):
        name, hook = one["name"], target_of(one["type"])
        if not self.typed:
            self.add(one, "%s %s" % (one["c"], name), name)
        elif hook["kind"] == "hook":
            self.told = hook["name"]
            self.add(one, "%s %s = {}" % (function_name(self.told), name), "told.hook()")
            self.before.append("detail::CallHook<%s, %s> told(std::move(%s));" % (self.told, function_name(self.told), name))
        else:
            self.arguments.append("told.user()")

    def take_text(self, one):
        name = one["name"]
        if one["length"] != "string":
            self.add(one, "std::string_view " + name, name + ".data()")
        elif "nullable" in one:
            self.add(one, "const std::string& %s = {}" % name, 'detail::c_string_or_null(%s, "%s")' % (name, name))
        else:
            self.add(one, "const std::string& " + name, 'detail::c_string(%s, "%s")' % (name, name))

    def take_struct(self, one, struct):
        name, fields = one["name"], self.model.structs[struct]["fields"]
        default = " = initialised<%s>()" % struct if "nullable" in one else ""
        self.add(one, "const %s& %s%s" % (struct, name, default), "&" + name)
        hooks = [field for field in fields if field["type"]["kind"] == "hook" and field["keeps"] == "call"]
        is_tensor = any(field["c"] == "kvq_dtype" for field in fields) and self.tensors()
        if not self.typed or not (hooks or is_tensor):
            return
        self.before.append("%s with = %s;" % (struct, name))
        self.arguments[-1] = "&with"
        if is_tensor:
            self.before.append("with.dtype = KVQ_F32;")
        for field in hooks:
            self.told = field["type"]["name"]
            self.late_hook = field
            self.before += ["detail::CallHook<%s, %s> told(std::move(%s));" % (self.told, function_name(self.told), field["name"]),
                            "if (told.hook() != nullptr) {", "  with.%s = told.hook();" % field["name"],
                            "  with.%s_user = told.user();" % field["name"], "}"]

    def tensors(self):
        """Parameters whose element type is another parameter or field."""
        if not any(one["c"] == "kvq_dtype" for one in self.inputs) and not any(
                field["c"] == "kvq_dtype" for one in self.inputs if target_of(one["type"])["kind"] == "struct"
                for field in self.model.structs[target_of(one["type"])["name"]]["fields"]):
            return []
        return [one for one in self.inputs if target_of(one["type"])["kind"] == "void" and "length" in one and depth_of(one["type"]) == 1]

    def take_array(self, one, target, depth):
        name, length = one["name"], one["length"]
        is_tensor = any(one is tensor for tensor in self.tensors())
        if is_tensor and not self.typed:
            self.add(one, "%s %s" % (one["c"], name), name)
            return
        element = one["c"][:-1].strip()
        if target["kind"] == "void" and depth == 1:
            element = element.replace("void", "float" if is_tensor else "std::byte")
        default = " = {}" if "nullable" in one and self.all_optional_after(one) else ""
        self.add(one, "std::span<%s> %s%s" % (element, name, default),
                 "detail::optional(%s)" % name if "nullable" in one else name + ".data()")
        if not self.counts(length):
            self.before.append('detail::require_size%s("%s", %s.size(), %s, "%s");' % (
                "_or_none" if "nullable" in one else "", name, name, self.product(length), length))
            return
        first = next(other["name"] for other in self.inputs if other.get("length") == length)
        if first != name:
            self.before.append('detail::require_size("%s", %s.size(), static_cast<int64_t>(%s.size()), "as many as %s");' %
                               (name, name, first, first))

    def all_optional_after(self, one):
        after = self.inputs[self.inputs.index(one):]
        return all("nullable" in other for other in after if not (other["c"] == "kvq_dtype" and self.typed))

    def product(self, length):
        words = length.split(" * ")
        factors = [self.factor(word) for word in words]
        return factors[0] if len(factors) == 1 else "detail::product({%s})" % ", ".join(factors)

    def factor(self, word):
        """`n`, or a field of an info: `cache.n_layers`, `layer.kv_heads`."""
        noun, _, field = word.partition(".")
        if not field:
            return noun
        if noun == "layer":
            self.described[noun] = "const kvq_layer_info layer_info = detail::described<kvq_layer_info>(%s, %s, layer);" % (
                "kvq_cache_describe_layer", "cache()" if self.cache_of_sequence else "get()")
            return "layer_info." + field
        if noun == "trainer":
            self.described[noun] = 'detail::require_object(get(), "trainer");'
            return field + "_"
        handle = next(one for one in self.model.handles if one.endswith("_" + noun))
        if noun not in self.described:
            self.described[noun] = "const %s %s_info = detail::described<%s>(%s_describe, %s);" % (
                handle + "_info", noun, handle + "_info", handle, "cache()" if self.cache_of_sequence else "get()")
        return "%s_info.%s" % (noun, field)

    def statements(self):
        """The body."""
        before = list(self.described.values()) + self.before
        name = self.function["name"]
        if self.function["returns"]["c"] != "kvq_status":
            return before + ["return %s(%s);" % (name, ", ".join(self.arguments))]
        arguments = ", ".join([name] + self.arguments)
        if self.result is None:
            last = "checked(%s);" % arguments
        elif self.result[0] == "handle":
            last = "return detail::made<%s>(%s);" % (class_of(self.result[1]), arguments)
        elif self.result[0] == "bytes":
            last = "return detail::saved(%s);" % arguments
        elif self.result[0] == "text":
            last = "return detail::saved<std::string>(%s);" % arguments
        elif self.also:
            return before + ["%s found = 0;" % self.result[1],
                             "checked(%s);" % ", ".join([arguments, "&found"] + self.also), "return found;"]
        else:
            last = "return detail::%s<%s>(%s);" % ({"struct": "described", "number": "counted"}[self.result[0]], self.result[1], arguments)
        return before + [last]

    def returned(self):
        if self.function["returns"]["c"] != "kvq_status":
            return self.function["returns"]["c"]
        if self.result is None:
            return "void"
        return {"handle": lambda: class_of(self.result[1]), "bytes": lambda: "std::vector<std::byte>",
                "text": lambda: "std::string"}.get(
            self.result[0], lambda: self.result[1])()


def function_name(hook):
    return "".join(word.capitalize() for word in hook.split("_")[1:])

