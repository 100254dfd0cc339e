"""Tests of the names of system calls, which come from python-ptrace's tables without an import of its packages."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from pyprof.model.arch.syscalls import MACHINES, call_names


@pytest.mark.parametrize("machine", MACHINES)
def test_names_are_those_of_python_ptrace(machine: str) -> None:
    assert len(call_names(machine)) > 250
    assert call_names(machine) == import_module(f"ptrace.syscall.linux.{machine}").SYSCALL_NAMES


def test_others_have_none() -> None:
    assert call_names("../x86_64") == {}
    assert call_names("riscv64") == {}


def test_packages_of_python_ptrace_are_not_loaded() -> None:
    code = """if True:
        import sys
        from pyprof.model.arch.syscalls import call_names
        print(call_names("x86_64")[0], "ptrace" in sys.modules)
    """
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["read", "False"]
