"""Tests of the identity of a function in all processes, mappings, formats and collectors, with and without a symbol."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pyprof.model.analysis.function_costs import costs
from pyprof.model.profile import Profile
from pyprof.objfile.elf_file import ElfFile
from tests.cli.support import pyprof
from tests.exporters.pprof_reader import read as read_pprof
from tests.exporters.support import PROCESSES, export
from tests.exporters.test_flamegraph_data import data
from tests.objfile.live import symbol
from tests.session.support import recorded
from tests.support import PROGRAMS, build, need

pytestmark = [pytest.mark.live, pytest.mark.system]


@dataclass(frozen=True)
class Library:
    """A stripped library.

    Attributes:
        first: Address of its first function, which has no name.
        second: Address of its second function, which has no name.
    """

    path: Path
    build_id: str
    first: int
    second: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    return build(PROGRAMS / "c_shards.c", folder / "shards", "-O1", "-ldl")


def stripped(folder: Path, which: int) -> Library:
    folder.mkdir()
    flags = ("-O1", "-shared", "-fPIC", "-Wl,--build-id", f"-DWHICH={which}")
    path = build(PROGRAMS / "c_shards_lib.c", folder / "libshards.so", *flags)
    starts = [symbol(path, name) for name in ("first", "second")]
    subprocess.run([need("strip"), str(path)], check=True, timeout=60)
    return Library(path, ElfFile.open(str(path)).build_id, *starts)


@pytest.fixture(scope="module")
def one(folder: Path) -> Library:
    return stripped(folder / "one", 1)


@pytest.fixture(scope="module")
def other(folder: Path) -> Library:
    """Return another build of the library with the same file name."""
    return stripped(folder / "other", 7)


@contextlib.contextmanager
def running(program: Path, *libraries: Library) -> Iterator[list[int]]:
    """Run a process with each of these libraries, and yield their pids."""
    with contextlib.ExitStack() as stack:
        pids = []
        for library in libraries:
            command = [str(program), str(library.path)]
            process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            pids.append(process.pid)
        yield pids


def costly(profile: Profile, module: str) -> list[str]:
    """Return the names of functions without a symbol that had samples, with repetitions.

    `enter`, which has a symbol, is left out because it sometimes has samples, too.
    """
    return sorted(
        cost.name for cost in costs(profile).functions if cost.module == module and cost.own and "!" in cost.name
    )


@pytest.fixture(scope="module", params=["ptrace", "perf"])
def twice(request: pytest.FixtureRequest, program: Path, one: Library) -> Profile:
    """Return a profile of two processes with the same library."""
    with running(program, one, one) as pids:
        return recorded(request.param, pids)


def test_function_without_a_symbol_is_one_in_all_processes_and_formats(twice: Profile, one: Library) -> None:
    profile = twice
    names = sorted(f"libshards.so!{start:#x}" for start in (one.first, one.second))
    assert costly(profile, "libshards.so") == names
    assert len({module.start for module in profile.modules if module.name == "libshards.so"}) == 2, "moved by ASLR"
    at = [at for at, frame in enumerate(profile.frames) if frame.title in names]
    assert len(at) > 8, "many addresses"
    of_both = {profile.threads[thread].pid for thread, leaf, _ in profile.totals() if profile.frame[leaf] in at}
    assert of_both == set(profile.processes)
    assert len(of_both) == 2

    page = data(export("flamegraph", profile))
    assert sorted(page["strings"][name] for name in page["frames"]["name"] if page["strings"][name] in names) == names
    speedscope = json.loads(export("speedscope", profile))["shared"]["frames"]
    assert sorted(frame["name"] for frame in speedscope if frame["file"] == "libshards.so") == ["enter", *names]
    pprof = read_pprof(export("pprof", profile))
    assert sorted(name for name, _, _ in pprof.functions if name.startswith("libshards")) == names
    lines = export("collapsed", profile).decode().splitlines()
    leaves = [line.rpartition(" ")[0].rpartition(";")[2] for line in lines]
    assert sorted(leaf for leaf in leaves if leaf.startswith("libshards")) == names, "one stack each"
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == len(profile.stack)
    assert b"libshards.so+0x" not in export("collapsed", profile)


def test_processes_are_roots_on_request_only(twice: Profile) -> None:
    roots = {line.split(";")[0] for line in export("collapsed", twice, PROCESSES).decode().splitlines()}
    assert roots == {f"shards (pid {pid})" for pid in twice.processes}
    assert {line.split(";")[0] for line in export("collapsed", twice).decode().splitlines()} == {"_start"}


def test_functions_of_two_builds_of_a_library_stay_apart(program: Path, one: Library, other: Library) -> None:
    assert one.build_id != other.build_id
    with running(program, one, other) as pids:
        profile = recorded("ptrace", pids)
    names = [
        f"libshards.so[{library.build_id[:8]}]!{start:#x}"
        for library in (one, other)
        for start in (library.first, library.second)
    ]
    assert costly(profile, "libshards.so") == sorted(names)


def test_dump_keeps_the_offset_into_a_function_without_a_symbol(program: Path, one: Library) -> None:
    starts = {f"libshards.so!{start:#x}": start for start in (one.first, one.second)}
    with running(program, one) as [pid]:
        for _ in range(5):
            frame = json.loads(pyprof("dump", "-p", str(pid), "--json").stdout)["threads"][0]["frames"][0]
            if frame["function"] in starts:
                break
    assert int(frame["rel"], 16) == starts[frame["function"]] + frame["offset"]
