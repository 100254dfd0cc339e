"""The native walker's object: the file for this machine, its manifest, and whether it may be used.

`native/` has the sources. `native/build.py` compiles them with a pinned compiler and writes manifest.json, which has
the SHA-256 of each object. An object that is missing, that differs from its manifest, or that the system does not load
is not used. scalar.py then walks all stacks, which takes about fifty times as long.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "native"


class NativeCodeError(Exception):
    """The native walker cannot be used here. The message says why."""


def digest_object(data: bytes) -> str:
    """Return the SHA-256 of an object as hexadecimal digits.

    hashlib would load OpenSSL, which takes longer than all else here.
    """
    module = importlib.import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    found: str = module.sha256(data).hexdigest()
    return found


def open_library(folder: Path, machine: str) -> ctypes.CDLL:
    """Load the native walker of a machine after comparing it with the manifest.

    Args:
        folder: Folder of the objects and of their manifest.
        machine: Machine name as `uname -m` prints it.

    Raises:
        NativeCodeError: There is none, or it may not be used.
    """
    path = folder / f"walk.{machine}.so"
    try:
        expected = json.loads((folder / "manifest.json").read_bytes())["objects"].get(path.name)
        if expected is None:
            raise NativeCodeError(f"pyprof has none for {machine}")
        if digest_object(path.read_bytes()) != expected:
            raise NativeCodeError(f"{path} is not the object that its manifest describes")
        library = ctypes.CDLL(str(path))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NativeCodeError(f"{path} cannot be loaded: {error}") from None
    return prepare(library)


def prepare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the native walker's functions and return it."""
    for function, pointers in (("walk_stacks", 1), ("move_entries", 2), ("move_calls", 2)):
        found = getattr(library, function)
        found.argtypes, found.restype = (ctypes.c_void_p,) * pointers, None
    return library


@cache
def _opened() -> ctypes.CDLL | str:
    try:
        return open_library(FOLDER, os.uname().machine)
    except NativeCodeError as error:
        return str(error)


def find_library() -> ctypes.CDLL | None:
    """Return the loaded native walker, or None if it cannot be used. The first call reads files."""
    found = _opened()
    return None if isinstance(found, str) else found


def describe_problem() -> str:
    """Return why the native walker cannot be used, or "" if it can."""
    found = _opened()
    return found if isinstance(found, str) else ""
