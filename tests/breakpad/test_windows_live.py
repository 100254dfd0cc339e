"""Tests of Windows code in live processes, as under Wine: function tables, and symbol files by PDB id."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.breakpad.windows_code import identifier, module, symbols
from tests.cli.support import has_samples, record_until
from tests.live.support.recording import LIFE, dump, record, running
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.system]

COMPILERS = {"x86_64": "gcc", "i386": "i686-linux-gnu-gcc"}
CHAIN = ["leaf", "middle", "outer", "entry", "call", "main"]
LINKED = {"sections copied": (), "sections mapped": ("/filealign:4096",)}


def host(arch: str, folder: Path) -> Path:
    """Build the program that maps Windows modules, without frame pointers: only symbol files can unwind its code."""
    path = build(
        PROGRAMS / "pe_host.c", folder / f"host-{arch}", "-O2", "-g", "-fomit-frame-pointer", compiler=COMPILERS[arch]
    )
    try:
        done = subprocess.run([str(path), "/dev/null"], capture_output=True, check=False, timeout=20)
    except OSError:
        missing("needs a kernel that runs 32-bit code (CONFIG_IA32_EMULATION)")
    assert done.returncode == 2
    return path


@pytest.mark.parametrize("linked", list(LINKED))
@pytest.mark.parametrize("arch", list(COMPILERS))
def test_stack_leads_through_windows_code_to_main(arch: str, linked: str, tmp_path: Path) -> None:
    path = module(arch, tmp_path, *LINKED[linked])
    symbols(arch, path, tmp_path / "symbols")
    with running(host(arch, tmp_path), str(path), LIFE) as program:
        (thread,) = dump(program.pid, "--symbols", str(tmp_path / "symbols"))["threads"]
    frames = thread["frames"]
    assert [frame["function"] for frame in frames][: len(CHAIN)] == CHAIN
    assert [frame["trust"] for frame in frames][1:5] == [{"x86_64": "pdata", "i386": "breakpad"}[arch]] * 4
    assert [frame["module"] for frame in frames][:4] == [str(path)] * 4
    assert thread["end"] == "root"


def test_symbol_file_unwinds_where_the_function_table_is_not_used(tmp_path: Path) -> None:
    path = module("x86_64", tmp_path)
    symbols("x86_64", path, tmp_path / "symbols")
    with running(host("x86_64", tmp_path), str(path), LIFE) as program:
        sources = ("--unwind", "eh_frame,breakpad,fp")
        (thread,) = dump(program.pid, "--symbols", str(tmp_path / "symbols"), *sources)["threads"]
    assert [frame["trust"] for frame in thread["frames"]][1:5] == ["breakpad"] * 4
    assert thread["end"] == "root"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("linked", list(LINKED))
def test_function_table_needs_no_symbol_file(linked: str, kept: bool, tmp_path: Path) -> None:
    path = module("x86_64", tmp_path, *LINKED[linked])
    with running(host("x86_64", tmp_path), str(path), LIFE) as program:
        if not kept:
            path.unlink()
        (thread,) = dump(program.pid)["threads"]
    assert [frame["trust"] for frame in thread["frames"]][1:5] == ["pdata"] * 4
    assert [frame["function"] for frame in thread["frames"]][3:6] == ["entry", "call", "main"]  # entry is exported
    assert thread["end"] == "root"


@pytest.mark.parametrize("arch", list(COMPILERS))
def test_every_sample_of_a_recording_is_whole(arch: str, tmp_path: Path) -> None:
    path = module(arch, tmp_path)
    symbols(arch, path, tmp_path / "symbols")
    with running(host(arch, tmp_path), str(path), LIFE) as program:
        recording = record(
            program.pid, tmp_path, "--symbols", str(tmp_path / "symbols"), seconds=1, until=lambda r: r.samples > 20
        )
    assert recording.samples > 20
    assert recording.whole == 1
    for stack in recording.stacks:
        assert stack[-len(CHAIN) :] == tuple(reversed(CHAIN))


def test_module_without_a_symbol_file_is_named_with_its_id(tmp_path: Path) -> None:
    path = module("i386", tmp_path)
    (tmp_path / "none").mkdir()
    with running(host("i386", tmp_path), str(path), LIFE) as program:
        to = ("-f", "collapsed", "-o", str(tmp_path / "out"), "--verbose", "--symbols", str(tmp_path / "none"))
        done = record_until(has_samples, "-p", str(program.pid), *to)
    assert f"windows module without a symbol file ({identifier(path)})" in done.stderr
