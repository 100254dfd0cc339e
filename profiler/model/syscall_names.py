"""Names of Linux system calls by number, from the tables of python-ptrace."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path

MACHINES = ("x86_64", "i386", "aarch64")


@cache
def call_names(machine: str) -> Mapping[int, str]:
    """Return the names of Linux system calls by number, empty if the machine is not in MACHINES.

    Only the table is loaded. Its package would first build the prototypes of all calls, which takes 10 ms.
    """
    package = find_spec("ptrace")
    if machine not in MACHINES or package is None or package.origin is None:
        return {}
    name = f"pyprof_calls_of_{machine}"
    file = Path(package.origin).parent / "syscall" / "linux" / f"{machine}.py"
    spec = spec_from_loader(name, SourceFileLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    table = module_from_spec(spec)
    spec.loader.exec_module(table)
    found: dict[int, str] = table.SYSCALL_NAMES
    return found
