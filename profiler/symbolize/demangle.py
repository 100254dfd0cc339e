"""Demangled names: C++ (Itanium) and Rust (legacy and v0), by LLVM's demanglers (the package pycxxfilt).

Names come from the target and may be hostile: with back references, a name of 200 letters can expand to gigabytes, and
nesting can overflow the C stack. A name whose result is certainly small is demangled in this process. The others (1 in
1,000) are demangled in a child process with little memory and time, see demangle_isolated(). If that fails, the mangled
name stays.

Names of functions that Cython or V8 generated from source code are also converted to the names in that source.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence

MAX_LENGTH = 1 << 16
MAX_RESULT = 1 << 15
DIRECT_LENGTH = 2048
DIRECT_RESULT = 1 << 22
BACK_REFERENCE = re.compile(r"[ST][0-9A-Z]*_|B[0-9a-zA-Z]*_")
PREFIXES = ("_Z", "_R", "__Z", "___Z", "____Z")

RUST_HASH = re.compile(r"::h[0-9a-f]{16}$")
LLVM_SUFFIX = re.compile(r" \(\.llvm\.[0-9A-F]+\)$")
RUST_ESCAPE = re.compile(r"(?:(?<![^:])_(?=\$))?\$(?:([A-Z]{1,2})|u([0-9a-f]{1,6}))\$|\.\.|\.")
RUST_LETTERS = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}

WORKER = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.path.insert(0, sys.argv[1])
import pycxxfilt
for line in sys.stdin:
    name = line.rstrip("\\n")
    try:
        text = pycxxfilt.demangle(name) or name
    except ValueError:
        text = name
    print(text if len(text) <= int(sys.argv[2]) and text.isprintable() else name, flush=True)
"""


GENERATED = ("__pyx_", "JS:", "LazyCompile:", "Function:", "Script:", "Eval:", "Module:")
"""Prefixes of the names of functions that Cython or V8 generated, which decode_generated_name() changes."""
MAX_GENERATED_LENGTH = 4096
_V8 = re.compile(r"(?:JS|LazyCompile|Function|Script|Eval|Module):[~*^+']?(?=[^:])")
"""Pattern of V8's prefix of function names: the kind of code, and the tier of its compiler: ~ is interpreted, ^
baseline, + mid-tier, * optimized.
"""
_CYTHON = re.compile(r"__pyx_(pw|pf|f|gb|getprop|setprop)_(?=\d)(.+)", re.DOTALL)
_CLONE = re.compile(r"(?:\.(?:isra|constprop|part|cold|lto_priv)(?:\.\d+)*)+$")
_SCOPE = re.compile(r"([1-9]\d{0,3})(?=\D)")
_FUSED = re.compile(r"__pyx_fuse_\d+(?:_\d+)*")


def demangle(names: Iterable[str], most_s: float | None = None) -> dict[str, str]:
    """Return the text to show for each distinct symbol name. Never raises; time and memory are limited.

    Args:
        names: The symbol names.
        most_s: Time limit in seconds. Names that are not reached in time stay mangled, and so do names that need a
            child process.
    """
    until = time.monotonic() + (most_s if most_s is not None else math.inf)
    shown: dict[str, str] = {}
    doubtful = []
    for name in names:
        if name in shown:
            continue
        bare = strip_version(name)
        shown[name] = decode_generated_name(bare) if bare.startswith(GENERATED) else bare
        if not bare.startswith(PREFIXES) or len(bare) > MAX_LENGTH or not bare.isprintable():
            continue
        function, member = _split_member(bare)
        if is_harmless(function):
            if time.monotonic() < until:
                shown[name] = _tidy(function, _demangled(function)) + member
        elif most_s is None:
            doubtful.append(name)
    if doubtful:
        split = [_split_member(strip_version(name)) for name in doubtful]
        texts = _isolate([function for function, _ in split])
        for name, (function, member), text in zip(doubtful, split, texts, strict=True):
            shown[name] = _tidy(function, text) + member
    return shown


def _split_member(name: str) -> tuple[str, str]:
    """Split a name in debug information into the linkage name of a function and the rest, which is local to the
    function: "_Z1fv" and "::{lambda}::operator()".
    """
    function, separator, member = name.partition("::")
    return function, separator + member


def strip_version(name: str) -> str:
    """Return a symbol name without its version: "memcpy@@GLIBC_2.14" is memcpy. "memcpy@plt" has no version."""
    base, at, version = name.partition("@")
    return name if not at or not base or version == "plt" else base


def is_harmless(name: str) -> bool:
    """Return True if the demangled form of a name is certainly small, so that the name may be demangled in this
    process.

    A mangled name with n back references, to parts that contain k references each, grows at most by the factor
    k**(n/k).
    """
    if len(name) > DIRECT_LENGTH:
        return False
    references = len(BACK_REFERENCE.findall(name))
    return bool(len(name) * 3.0 ** (references / 3) <= DIRECT_RESULT)


def demangle_isolated(names: Sequence[str]) -> list[str]:
    """Demangle names in a child process, which may crash, and return the results.

    The name that crashed it stays mangled. At most two children run.
    """
    import subprocess

    import pycxxfilt

    results: list[str] = []
    folder = os.path.dirname(os.path.dirname(pycxxfilt.__file__))
    for _ in range(2):
        rest = names[len(results) :]
        if not rest or not sys.executable:
            break
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", WORKER, folder, str(MAX_RESULT)],
                input="\n".join(rest) + "\n",
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            break
        results += done.stdout.split("\n")[:-1][: len(rest)]
        if len(results) < len(names):
            results.append(names[len(results)])  # the name that crashed it
    return [*results, *names[len(results) :]]


_isolate: Callable[[Sequence[str]], list[str]] = demangle_isolated


def use_isolation(isolate: Callable[[Sequence[str]], list[str]]) -> None:
    """Replace demangle_isolated() by another function that demangles names in isolation. It serves a process that may
    not start child processes.
    """
    global _isolate
    _isolate = isolate


def _demangled(name: str) -> str:
    import pycxxfilt

    try:
        text = pycxxfilt.demangle(name) or name
    except ValueError:
        return name
    return text if len(text) <= MAX_RESULT and text.isprintable() else name


def _tidy(name: str, text: str) -> str:
    """Remove the parts of a demangled name that differ between builds: Rust's hash, LLVM's module number."""
    text = LLVM_SUFFIX.sub("", text)
    if name.startswith("_ZN") and RUST_HASH.search(text):
        return RUST_ESCAPE.sub(_unescape, RUST_HASH.sub("", text))
    return text


def _unescape(match: re.Match[str]) -> str:
    """Decode an escape of Rust's legacy mangling (rustc-demangle, legacy.rs).

    "$LT$" is "<", "$u20$" a space, ".." is "::".
    """
    letters, code = match.group(1), match.group(2)
    if letters:
        return RUST_LETTERS.get(letters, match.group(0))
    if code:
        char = int(code, 16)
        return chr(char) if char < 0x110000 and chr(char).isprintable() else match.group(0)
    return "::" if match.group(0) == ".." else match.group(0)


def decode_generated_name(name: str) -> str:
    """Return the name that a function which Cython or V8 generated has in its source code. Any other name is returned
    unchanged.
    """
    if len(name) > MAX_GENERATED_LENGTH:
        return name
    if script := _V8.match(name):
        return "JS:" + name[script.end() :]
    found = _CYTHON.fullmatch(_CLONE.sub("", name))
    return _cython_name(found[1], found[2]) if found else name


def _cython_name(kind: str, text: str) -> str:
    """Decode a Cython name. It has its scopes as LENGTH NAME _, and a unique number before its last part.

    In the name of a wrapper function (kind pw) that number always follows the last scope. There, a part counts as a
    scope only if a digit follows it.
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
