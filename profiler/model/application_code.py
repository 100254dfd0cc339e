"""Predicates that tell application code from libraries and runtimes, by the path of a file."""

from __future__ import annotations

import re

_SYSTEM_LIBRARY = re.compile(r"/(?:usr/)?lib(?:32|64|x32)?/.*\.so(?:\.[\d.]*)?(?: \(deleted\))?", re.DOTALL)
_C_LIBRARY = re.compile(
    r"(?:lib(?:c|m|dl|rt|pthread|gcc_s|stdc\+\+|c\+\+|c\+\+abi)|ld-(?:linux|musl)[-\w]*)[-.\d]*\.so.*"
)
"""File names of C and C++ runtime libraries.

Files of other profilers contain no folders, so the name must be enough.
"""
_RUNTIME = re.compile(
    r"(?:lib)?(?:python|pypy|perl|php|node|lua|luajit|java|jvm|dotnet|coreclr|beam)"
    r"(?:-?(?:fpm|cgi|jit))?[-.\d]*t?d?m?(?:\.smp)?(?:\.so.*)?"
)
"""File names of language runtimes: programs and libraries that run other code."""
_PACKAGE = re.compile(
    r"^/usr/(?:local/)?lib(?:64)?/|(?:^|/)(?:site-packages|dist-packages|node_modules|gems|\.cargo/registry|go/pkg/mod"
    r"|usr/local/go/src|usr/include|rust/deps|include/python\d[\d.]*t?|rustc/[0-9a-f]+/library|lib(?:64)?/(?:python|pypy|perl)\d[\d.]*t?"
    r"|lib(?:64)?/\w{1,64}/\d+\.\d[\d.]*|lib_pypy|lib-python|python\d+\.zip|share/(?:perl|php|lua)[\d.]*)/"
)
"""Folders of installed packages and of standard libraries, as part of a path."""
_OF_EACH_PACKAGE = frozenset({"__init__.py", "__main__.py", "index.js", "index.ts", "mod.rs"})
"""Names of source files that say nothing without their folders, such as __init__.py."""
SCRIPT = "JS:"
"""Prefix of the names of script functions that V8 compiled."""
_SCRIPT = re.compile(r"JS:[^\n]* (?:file://)?([^ \n]+?):\d+(?::\d+)?")
"""Pattern of a script's function in V8's notation: name and place."""
_CLASS_LIBRARY = ("java.", "javax.", "jdk.", "sun.", "com.sun.")
"""Packages of Java's class library and of the JDK's tools."""
_TYPED_IN = ("<stdin>", "<ipython-input", "<console>")
"""Names of files that stand for code which a user typed in.

"<string>" is not among them, because libraries generate most of such code (named tuples, data classes).
"""
_LONGEST = 4096


def is_application_file(path: str) -> bool:
    """Return True if a source file belongs neither to a standard library nor to an installed package."""
    if not path or path.startswith(("node:", "internal/")):
        return False
    if path.startswith("<"):
        return path.startswith(_TYPED_IN)
    return not _PACKAGE.search(path[:_LONGEST])


def is_of_class_library(file: str, name: str) -> bool:
    """Return True for a function of Java's class library, whose source files have no folders."""
    return file.endswith(".java") and "/" not in file and name.startswith(_CLASS_LIBRARY)


def script_of(name: str) -> str:
    """Return the source file in V8's name of a script function, "" for other names."""
    found = _SCRIPT.fullmatch(name) if name.startswith(SCRIPT) and len(name) <= _LONGEST else None
    return found[1] if found else ""


def script_title(path: str) -> str:
    """Return the title of a source file: its name, with its folder's if each package has a file of that name."""
    folder, _, name = path.rpartition("/")
    return f"{folder.rpartition('/')[2]}/{name}" if folder and name in _OF_EACH_PACKAGE else name


def is_application_module(path: str) -> bool:
    """Return True if an object file is neither a system library, an installed package, a runtime nor the kernel."""
    if not path or path.startswith("["):
        return False
    path = path[:_LONGEST]
    name = path.rsplit("/", 1)[-1]
    if _SYSTEM_LIBRARY.fullmatch(path) or _C_LIBRARY.fullmatch(name) or _RUNTIME.fullmatch(name):
        return False
    return not _PACKAGE.search(path.removeprefix("/usr"))  # programs also lie in /usr/lib
