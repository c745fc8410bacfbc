"""Generated methods of the Python package, and classes that have no other methods."""
from emitters import _methods


def statements(it):
    name = "_native." + it.function["name"]
    inputs = "".join(", " + one["name"] for one in it.inputs)
    if it.gives == "description":
        return ["function, struct = %s, _native.%s" % (name, it.struct),
                "return self._described(function, struct, %s._of%s)" % (it.result, inputs)]
    if it.gives == "number":
        return ["number = c_int32()", "self._read(%s%s, byref(number))" % (name, inputs), "return number.value"]
    entered, given = "self._%s() as it" % ("alone" if it.alone else "shared"), "it"
    if it.of_cache:
        entered, given = "self.cache._shared() as cache, " + entered, "cache, it"
    call = {"nothing": "self._call(%s, %s%s)", "file": "return self._saved(%s, %s%s)",
            "text": 'return self._saved(%s, %s%s).decode("utf-8")'}[it.gives] % (name, given, inputs)
    return ["with %s:" % entered, "    " + call]


def objects(api, notice, docstring, body_of, class_name):
    """Generate _objects.py; `docstring`, `body_of` and `class_name` are functions of python.py."""
    infos, lines = set(), []
    for handle, load, methods in _methods.objects(api):
        name = class_name(handle)
        lines += ["", "class %s(%s):" % ((name, "Trained") if load else (name + "Methods", "Handle"))]
        if load:
            lines += docstring(body_of(handle["documentation"], 4), 4) + [
                "", "    _new = _native." + handle["name"], "    _destroy = _native." + handle["destroy"],
                "    _load = _native.%s_load" % handle["name"], "    _save = _native.%s_save" % handle["name"]]
        else:
            lines += docstring([["Generated methods of %s." % name]], 4)
            lines += ["", "    cache: Handle"] if any(it.of_cache for it in methods) else []
        for it in methods:
            if load and it.gives == "file":
                continue  # inherited from Trained
            it.result = it.struct and class_name({"name": it.struct})
            infos |= {it.result} if it.struct else set()
            returns = {"file": "bytes", "text": "str", "number": "int", "nothing": "None", "description": it.result}[it.gives]
            said = [":param %s: %s" % (one["name"], one["documentation"]) for one in it.inputs if one["documentation"]]
            blocks = list(body_of(it.function["documentation"], 8)) + [line for one in said for line in body_of(one, 8)]
            lines += ["", "    def %s(%s) -> %s:" % (
                it.name, ", ".join(["self"] + [one["name"] + ": int" for one in it.inputs]), returns)]
            lines += docstring(blocks, 8) + ["        " + line for line in statements(it)]
        lines.append("")
    head = docstring([["Generated methods of objects, and classes that have no other methods."], [notice]], 0)
    return "\n".join(head + ["", "from __future__ import annotations", "", "from ctypes import byref, c_int32", "",
                             "from . import _native", "from ._handle import Handle, Trained", "from ._infos import ("] +
                     ["    %s," % one for one in sorted(infos)] + [")", ""] + lines)
