"""Tests of minidumps and microdumps written from cores: their stacks equal those of the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core import support as cores
from tests.core.making import crash
from tests.core.test_against_judges import CRASH, PARKED
from tests.minidump.from_core import PROCESSORS, as_windows, microdump, minidump, symbols
from tests.minidump.support import dump, functions, pcs, trusts

pytestmark = [pytest.mark.matrix, pytest.mark.system]

ARCHES = list(PROCESSORS)


@pytest.mark.parametrize("wide_memory", [False, True])
@pytest.mark.parametrize("arch", ARCHES)
def test_stacks_by_the_files_are_those_of_the_core(arch: str, wide_memory: bool) -> None:
    core = crash(arch, "core_threads.c")
    of_core = cores.dump(core)
    found = dump(minidump(core, wide_memory=wide_memory), *core.options)
    assert found["arch"] == arch
    assert found["pid"] == of_core["pid"]
    assert {t["tid"]: pcs(t) for t in found["threads"]} == cores.pcs(of_core)
    assert [t["end"] for t in found["threads"]] == [t["end"] for t in of_core["threads"]]
    first = found["threads"][0]
    assert first["state"] == "crashed"
    assert functions(first)[:5] == CRASH
    signal = of_core["signal"]
    assert found["crash"]["reason"] == " ".join(word for word in (signal["name"], signal["code"]) if word)
    assert found["crash"]["address"] == "0x0"
    assert set(trusts(first)[1:]) <= {"eh_frame", "debug_frame", "exidx"}


@pytest.mark.parametrize("arch", ARCHES)
def test_registers_of_each_frame_are_those_of_the_core(arch: str) -> None:
    core = crash(arch, "core_threads.c")
    of_core, found = cores.dump(core), dump(minidump(core), *core.options)
    for ours, theirs in zip(found["threads"], of_core["threads"], strict=True):
        assert ours["tid"] == theirs["tid"]
        registers = [frame.get("registers") for frame in ours["frames"]]
        assert registers == [frame.get("registers") for frame in theirs["frames"]]
        assert all(entry for entry, frame in zip(registers, ours["frames"], strict=True) if not frame["inlined"])


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("arch", ARCHES)
def test_stacks_by_written_symbol_files_alone_are_those_of_the_core(arch: str, streams: bool) -> None:
    """Take names, lines and rules from the symbol store alone, which does not mark the start of a thread."""
    core = crash(arch, "core_threads.c")
    of_core = cores.dump(core)
    found = dump(minidump(core, paths="/gone", streams=streams), "--symbols", str(symbols(core)))
    wanted = cores.pcs(of_core)
    for thread in found["threads"]:
        assert pcs(thread) == wanted[thread["tid"]][: len(pcs(thread))]
        assert set(trusts(thread)[1:]) <= {"breakpad"}
        assert len(pcs(thread)) >= len(wanted[thread["tid"]]) - 1
    first, *others = found["threads"]
    assert functions(first)[:5] == CRASH
    if streams and "_start" in functions(first):  # auxv has the entry point
        assert first["end"] == "root"
    lines = [(frame["file"], frame["line"]) for frame in first["frames"][:5]]
    assert lines == [(frame["file"], frame["line"]) for frame in of_core["threads"][0]["frames"][:5]]
    for thread in others:
        assert [name for name in functions(thread) if name in PARKED] == PARKED


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_modules_of_windows_are_unwound_by_stack_cfi_of_their_pdbs(arch: str) -> None:
    core = crash(arch, "core_threads.c")
    wanted = cores.pcs(cores.dump(core))
    path, store = as_windows(core)
    found = dump(path, "--symbols", str(store))
    assert (found["os"], found["crash"]["reason"]) == ("windows", "EXCEPTION_ACCESS_VIOLATION_WRITE")
    for thread in found["threads"]:
        assert pcs(thread) == wanted[thread["tid"]][: len(pcs(thread))]
        assert len(pcs(thread)) >= len(wanted[thread["tid"]]) - 1
    assert functions(found["threads"][0])[:5] == CRASH
    assert set(trusts(found["threads"][0])[1:]) == {"breakpad"}


@pytest.mark.parametrize("arch", ARCHES)
def test_handler_on_its_own_stack_stands_on_the_stack_that_it_interrupted(arch: str) -> None:
    core = crash(arch, "core_signal.c", arguments=("50",))
    (thread,) = dump(minidump(core), *core.options)["threads"]
    assert {thread["tid"]: pcs(thread)} == cores.pcs(cores.dump(core))
    assert len(pcs(thread)) > 50


@pytest.mark.parametrize("arch", ARCHES)
def test_microdump_has_the_stack_of_the_thread_that_crashed(arch: str, tmp_path: Path) -> None:
    core = crash(arch, "core_threads.c")
    path = tmp_path / "logcat.txt"
    path.write_text("D/dalvikvm( 1): other words\n" + microdump(core) + "D/dalvikvm( 1): more\n")
    found = dump(path, "--symbols", str(symbols(core)))
    (thread,) = found["threads"]
    assert functions(thread)[:5] == CRASH
    first = cores.pcs(cores.dump(core))[cores.dump(core)["threads"][0]["tid"]]
    assert pcs(thread) == first[: len(pcs(thread))]
    assert (found["os"], found["crash"]["reason"], found["crash"]["address"]) == ("android", "SIGSEGV", "0x45")


def test_nothing_but_an_id_is_known_without_files_and_symbols() -> None:
    """Check that the stack is truncated and that the missing files are named."""
    core = crash("x86_64", "core_threads.c")
    found = dump(minidump(core, paths="/gone"), code=3)
    assert {problem["hint"] for problem in found["problems"]}.pop().startswith("--symbols")
    assert any("neither its file nor a symbol file" in problem["text"] for problem in found["problems"])
    assert found["threads"][0]["frames"][0]["function"] is None


def test_scan_guesses_where_nothing_else_is_known() -> None:
    """Try several crashes: scanning finds a caller in half of them, because the words between frames are random."""
    for _ in range(20):
        crash.cache_clear()
        core = crash("x86_64", "core_threads.c")
        first = dump(minidump(core, paths="/gone"), "--unwind", "default,scan", code=3)["threads"][0]
        assert "scan" in trusts(first)
        if set(pcs(first)) & set(cores.pcs(cores.dump(core))[first["tid"]][1:]):
            return
    pytest.fail("no caller was found in 20 crashes")
