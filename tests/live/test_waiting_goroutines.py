"""Dumps of goroutines that no thread runs: equal to the stacks that Go's runtime prints itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.live.support.recording import dump, running
from tests.support import PROGRAMS, go_cache, need

pytestmark = [pytest.mark.live, pytest.mark.system]

_HEAD = re.compile(r"goroutine (\d+) \[(.*)\]:")
_PLACE = re.compile(r"\t(.*:\d+)")

Stacks = dict[int, tuple[str, list[tuple[str, str]]]]


def build(folder: Path, *flags: str) -> Path:
    command = [need("go"), "build", *flags, "-o", str(folder / "waits"), "."]
    environment = {**os.environ, "GOCACHE": go_cache(), "CGO_ENABLED": "0"}
    subprocess.run(command, check=True, env=environment, cwd=PROGRAMS / "go_waits", timeout=600)
    return folder / "waits"


def printed(text: str) -> Stacks:
    """Return state and (function, file:line) of each goroutine that a program printed, without functions of the
    runtime and the first goroutine, which printed them.
    """
    found: Stacks = {}
    for block in text.strip().split("\n\n"):
        head, *rest = block.splitlines()
        match = _HEAD.match(head)
        assert match is not None, head
        frames = [
            (function.rpartition("(")[0], place[1])
            for function, line in zip(rest[::2], rest[1::2], strict=True)
            if not function.startswith("created by ") and (place := _PLACE.match(line))
        ]
        found[int(match[1])] = match[2], [frame for frame in frames if not frame[0].startswith("runtime.")]
    del found[1]
    return found


def shown(document: dict[str, Any]) -> Stacks:
    """Return the same of the goroutines in a dump."""
    assert all(each["end"] == "root" for each in document["goroutines"])
    return {
        each["id"]: (
            each["state"],
            [
                (frame["function"], f"{frame['file']}:{frame['line']}")
                for frame in each["frames"]
                if not frame["function"].startswith("runtime.")
            ],
        )
        for each in document["goroutines"]
        if each["id"] != 1
    }


@pytest.mark.parametrize("flags", [["-ldflags=-w"], ["-buildmode=pie"]], ids=["no-dwarf", "pie"])
def test_waiting_goroutines_equal_those_of_gos_own_traceback(flags: list[str], tmp_path: Path) -> None:
    with open(tmp_path / "printed", "w+") as output, running(build(tmp_path, *flags), stderr=output) as process:
        expected = printed((tmp_path / "printed").read_text())
        found = dump(process.pid, "--goroutines", "--native", "extensions", codes=(0, 3))
        text = warm.run("dump", "-p", str(process.pid), "--goroutines").stdout
        command = [need("gcore"), "-o", str(tmp_path / "core"), str(process.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    states = sorted(state for state, _ in expected.values())
    assert states == ["IO wait", *["chan receive"] * 3, "select", "semacquire", "sleep"]
    assert sum(name == "main.(*box).locked" for _, frames in expected.values() for name, _ in frames) == 6
    assert shown(found) == expected
    assert f"\ngoroutine {min(expected)} [" in text
    done = warm.run("dump", "--core", str(tmp_path / f"core.{process.pid}"), "--goroutines", "--json")
    assert done.returncode in (0, 3), done.stderr
    assert shown(json.loads(done.stdout)) == expected


def test_goroutines_of_a_program_without_symbols_are_refused(tmp_path: Path) -> None:
    with running(build(tmp_path, "-ldflags=-s -w"), stderr=subprocess.DEVNULL) as process:
        done = warm.run("dump", "-p", str(process.pid), "--goroutines")
    assert done.returncode == 1
    assert "cannot find goroutines: the program does not have the symbol runtime.allgs" in done.stderr
