"""Extension modules for the interpreters that tests run on: built here once, for Python's stable ABI, so that one file
serves them all; for this interpreter, of Cython, also as its own headers have it. numpy comes from PyPI.
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
"""Minor version from which on Cython's modules run."""


def headers() -> str:
    """The folder of Python.h of this interpreter."""
    found = Path(sysconfig.get_path("include"))
    if not (found / "Python.h").exists():
        missing("needs Python.h: apt-get install python3-dev")
    return str(found)


@cache
def extensions(cython: str = "stable") -> Path:
    """A folder with c_rungs, cc_rungs, rust_rungs and cython_rungs. cython: stable, own (for this interpreter's minor
    version only, with its headers) or none.
    """
    folder = Path(mkdtemp(prefix="pyprof-extensions-"))  # in /tmp: private roots have the host's
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
    """A folder to import numpy from; this interpreter's own, or PyPI's for that version."""
    if minor == sys.version_info[1]:
        return Path(np.__file__).parent.parent
    return from_pypi(minor, "numpy", options=("--no-deps", "--ignore-requires-python"))


def import_path(python: Python, numbers: bool = True) -> list[str]:
    """PYTHONPATH for a program that wants all that can be had."""
    own = python.minor == sys.version_info[1]
    kind = "own" if own else "stable" if python.minor >= OLDEST_CYTHON else "none"
    return [str(extensions(kind)), *([str(numpy(python.minor))] if numbers else [])]
