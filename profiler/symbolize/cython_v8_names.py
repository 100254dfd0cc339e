"""Names of generated functions in the form that users write: functions of Cython modules and of V8's scripts."""

from __future__ import annotations

import re

PREFIXES = ("__pyx_", "JS:", "LazyCompile:", "Function:", "Script:", "Eval:", "Module:")
"""Prefixes of the names of generated functions that decode_generated_name() changes."""
MAX_LENGTH = 4096

_V8 = re.compile(r"(?:JS|LazyCompile|Function|Script|Eval|Module):[~*^+']?(?=[^:])")
"""Pattern of V8's prefix of function names: the kind of code, and the tier of its compiler: ~ is interpreted, ^
baseline, + mid-tier, * optimized.
"""
_CYTHON = re.compile(r"__pyx_(pw|pf|f|gb|getprop|setprop)_(?=\d)(.+)", re.DOTALL)
_CLONE = re.compile(r"(?:\.(?:isra|constprop|part|cold|lto_priv)(?:\.\d+)*)+$")
_SCOPE = re.compile(r"([1-9]\d{0,3})(?=\D)")
_FUSED = re.compile(r"__pyx_fuse_\d+(?:_\d+)*")


def decode_generated_name(name: str) -> str:
    """Return the name of a generated function as its user writes it, and any other name unchanged."""
    if len(name) > MAX_LENGTH:
        return name
    if script := _V8.match(name):
        return "JS:" + name[script.end() :]
    found = _CYTHON.fullmatch(_CLONE.sub("", name))
    return _cython_name(found[1], found[2]) if found else name


def _cython_name(kind: str, text: str) -> str:
    """Decode a Cython name, which has its scopes as LENGTH NAME _, and a unique number before its last part.

    Wrappers (pw) always have that number, so that a part of a wrapper's name is a scope only if a number follows it.
    """
    scopes = []
    while (number := _SCOPE.match(text)) is not None:
        end = number.end() + int(number[1])
        rest = text[end + 1 :]
        if text[end : end + 1] != "_" or not rest or (kind == "pw" and not rest[0].isdigit()):
            break
        scopes.append(text[number.end() : end])
        text = rest
    last = _FUSED.sub("", text.lstrip("0123456789")) or text
    if kind == "gb":  # the body of a generator, which lacks the generator's name
        last = "<generator>"
    if last in ("__get__", "__set__") and scopes:
        return ".".join(scopes)
    return ".".join([*scopes, last])
