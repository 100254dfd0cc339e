"""Tests of live programs whose only unwind table is SFrame, one for each version, with a shared library."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from pyprof.collectors.linux.procfs import read_address_space
from pyprof.model.arch import X86_64
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_memory_image import rebuild_image
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.sframe_source import open_sframe
from tests.cli.support import has_samples, record_until
from tests.oracle.run import Oracle, Plan
from tests.roots import root

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

BUILD = Path(__file__).parent / "live" / "build.sh"
VERSIONS = ("v1", "v2", "v3", "llvm")
LADDER = [
    "_start",
    "run",
    "rung1",
    "lib_rung",
    "rung2",
    "lib_rung",
    "rung3",
    "lib_fixed",
    "rung4",
    *["deep"] * 21,
    "work",
]


def build(version: str, folder: Path, *options: str) -> Path:
    for suite in ("bookworm", "trixie", "sid"):
        root(suite)
    done = subprocess.run([BUILD, version, folder, *options], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "program"


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_stacks_are_the_whole_ladder_by_sframe_alone(version: str, tmp_path: Path) -> None:
    program = build(version, tmp_path)
    stacks, summary = tmp_path / "stacks.txt", tmp_path / "summary.json"
    to = ("-f", "collapsed", "-o", str(stacks), "--summary", str(summary))
    with subprocess.Popen([program]) as target:
        try:
            options = ("-q", "-p", str(target.pid), "-r", "499", "--unwind", "sframe,fp")
            done = record_until(has_samples, *options, *to)
            assert done.returncode == 0, done.stderr
            assert target.poll() is None
        finally:
            target.kill()
    seen = without = 0
    for line in stacks.read_text().splitlines():
        names, _, count = line.rpartition(" ")
        frames = names.split(";")
        if version == "llvm" and "plt" in frames[-1]:  # gold writes no SFrame for its PLT
            without += int(count)
            continue
        assert frames[: len(LADDER)] == LADDER
        assert frames[len(LADDER) :] in ([], ["lib_leaf"], ["lib_leaf@plt"])
        seen += int(count)
    found = json.loads(summary.read_text())
    assert seen > 0
    assert seen >= 0.9 * (found["samples"] - without)
    if version != "llvm":
        assert found["ends"] == {"root": found["samples"]}
        assert set(found["trust"]) == {"context", "sframe"}


@pytest.mark.parametrize("version", VERSIONS)
def test_sframe_is_right_at_every_instruction_of_what_it_covers(version: str, tmp_path: Path) -> None:
    program = build(version, tmp_path, "-DROUNDS=3")
    result = Oracle([str(program)], Plan(sources=("sframe", "fp"), only=str(tmp_path))).run()
    assert result.ended
    assert result.deepest >= len(LADDER)
    assert result.compared > 300
    wrong = [mismatch.place for mismatch in result.mismatches]
    if version == "llvm":  # gold writes no SFrame for its PLT
        wrong = [place for place in wrong if not in_plt(place)]
    assert wrong == []


def in_plt(place: tuple[str, int]) -> bool:
    path, rel = place
    plt = ElfFile.open(path).sections[".plt"]
    return plt.addr <= rel < plt.addr + plt.size


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_table_in_the_memory_of_a_process_is_that_of_its_file(version: str, tmp_path: Path) -> None:
    program = build(version, tmp_path)
    with subprocess.Popen([program]) as target:
        try:
            found = wait_for_library(target.pid)
        finally:
            target.kill()
    assert set(found) == {"program", "library.so"}
    for name, image in found.items():
        assert image.section_list == ()
        here, there = (open_sframe(elf, X86_64, Diagnostics()) for elf in (image, ElfFile.open(str(tmp_path / name))))
        assert here is not None
        assert there is not None
        assert list(here.functions()) == list(there.functions()) != []


def wait_for_library(pid: int) -> dict[str, ElfFile]:
    """Return the images of the program and its library, rebuilt from memory alone."""
    deadline = time.monotonic() + 20
    while True:
        space = read_address_space(pid, 1, 0)
        modules = {m.name: m for m in space.modules if m.name in ("program", "library.so")}
        if len(modules) == 2 or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    images = {name: rebuild_image(space, module, module.start) for name, module in modules.items()}
    return {name: image[0] for name, image in images.items() if image is not None}
