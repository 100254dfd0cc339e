"""Extension modules for the interpreters of the tests.

Modules for Python's stable ABI are built once and serve all interpreters. This interpreter also has Cython modules with
its own headers. numpy comes from PyPI.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import PROGRAMS, Python
from tests.support import build, missing

SOURCES = PROGRAMS / "native"
OLDEST_CYTHON = 9
"""Minor version of the oldest CPython that can import modules of the current Cython."""


def headers() -> str:
    """Return the folder of this interpreter's Python.h."""
    found = Path(sysconfig.get_path("include"))
    if not (found / "Python.h").exists():
        missing("needs Python.h: apt-get install python3-dev")
    return str(found)


@cache
def extensions(cython: str = "stable") -> Path:
    """Return a folder with the modules c_rungs, cc_rungs, rust_rungs and cython_rungs.

    Args:
        cython: "stable" for the stable ABI, "own" for this interpreter's headers and version, or "none".
    """
    folder = Path(mkdtemp(prefix="pyprof-extensions-"))  # private roots share the host's /tmp
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shared = ("-shared", "-fPIC", "-O2", "-g", f"-I{headers()}")
    stable = (*shared, "-DPy_LIMITED_API=0x03080000")
    build(SOURCES / "c_rungs.c", folder / "c_rungs.so", *stable)
    build(SOURCES / "cc_rungs.cc", folder / "cc_rungs.so", *stable, compiler="g++")
    flags = ("--edition", "2021", "--crate-type", "cdylib", "-O", "-g")
    build(SOURCES / "rust_rungs.rs", folder / "rust_rungs.so", *flags, compiler="rustc")
    if cython != "none":
        written = folder / "cython_rungs.c"
        command = [sys.executable, "-m", "cython", "-3", str(SOURCES / "cython_rungs.pyx"), "-o", str(written)]
        subprocess.run(command, check=True, timeout=120)
        limited = ("-DCYTHON_LIMITED_API=1", "-DPy_LIMITED_API=0x03090000", "-w") if cython == "stable" else ()
        build(written, folder / "cython_rungs.so", *shared, *limited)
    return folder


@cache
def numpy(minor: int) -> Path:
    """Return a folder with numpy: that of this interpreter, or PyPI's for another version."""
    if minor == sys.version_info[1]:
        return Path(np.__file__).parent.parent
    return from_pypi(minor, "numpy", options=("--no-deps", "--ignore-requires-python"))


def import_path(python: Python, numbers: bool = True) -> list[str]:
    """Return the PYTHONPATH entries of all extension modules that the interpreter supports."""
    own = python.minor == sys.version_info[1]
    kind = "own" if own else "stable" if python.minor >= OLDEST_CYTHON else "none"
    return [str(extensions(kind)), *([str(numpy(python.minor))] if numbers else [])]
