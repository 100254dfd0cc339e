"""Tests of recursion deeper than a stop's copy, which keeps the leaf functions and a marker.

The marker names the number of missing functions and the option that includes them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pyprof.interpreters.cpython.object_reader import Memory
from pyprof.interpreters.cpython.thread_snapshot import MAX_SCATTERED, ChunkSizes
from pyprof.model.marker_frames import long_chain_mark
from tests.collapsed import Stacks
from tests.interpreters.pythons import OF_LAYOUTS, Python, running
from tests.interpreters.runs import PIECES_S, functions, record, stacks

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

WITH_DATA_STACK = pytest.mark.parametrize(
    "python", [python for python in OF_LAYOUTS if python.minor >= 11], ids=lambda python: python.name
)
UNNAMED = "[function freed or swapped out before its name was read]"
MARKER = r"\[truncated: about ([\d,]+) functions, --stack-size (\d+M) copies them\]"


def recorded(
    python: Python, depth: int, folder: Path, *options: str, whole: bool = False
) -> tuple[list[list[str]], dict[str, Any]]:
    """Return the stacks and the summary. With whole=True, record until one stack is complete and has all names."""
    with running(python, "deep.py", str(depth)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        output, is_enough = folder / "out.collapsed", whole_named if whole else some_named
        for seconds in PIECES_S:  # one recording: the first samples of each are less than the others
            summary = record(process.pid, output, "--collector", "ptrace", "-d", str(seconds), *options)
            if is_enough(stacks(output)):
                break
    return [frames for frames, _ in stacks(output)], summary


def some_named(found: Stacks) -> bool:
    return any(UNNAMED not in frames for frames, _ in found)


def whole_named(found: Stacks) -> bool:
    return any(UNNAMED not in frames and not frames[0].startswith("[") for frames, _ in found)


@WITH_DATA_STACK
def test_marker_says_how_many_functions_are_missing_and_what_copies_them(python: Python, tmp_path: Path) -> None:
    found, summary = recorded(python, 50_000, tmp_path)
    named = [frames for frames in found if UNNAMED not in frames]
    assert named
    assert len(named) >= len(found) - 1  # the first stop has no time for names because it copies the whole stack
    for frames in named:
        said = re.fullmatch(MARKER, frames[0])
        assert said, frames[:3]
        names = functions(frames, "deep.py")
        assert names.count("leaf") == 1
        assert set(names) == {"down", "leaf"}
        assert names[-1] == "leaf"
        assert 1000 < len(names) < 10_000
        assert 0.7 * 50_000 < len(names) + int(said[1].replace(",", "")) < 1.3 * 50_000
        assert said[2] in ("8M", "16M", "32M")
    assert summary["shown"]["ends"]["partly_interpreted"] > 0
    assert "root" not in summary["shown"]["ends"]
    if python.minor < 14:  # Debian's 3.14 has no evaluator symbol
        assert not [name for name in summary["errors"] if "mark" in name or "evaluator" in name]


@WITH_DATA_STACK
def test_option_that_the_marker_names_brings_all_of_them(python: Python, tmp_path: Path) -> None:
    found, _ = recorded(python, 20_000, tmp_path, "--stack-size", "16M", whole=True)
    whole = [frames for frames in found if not frames[0].startswith("[")]
    assert {len(functions(frames, "deep.py")) + frames.count(UNNAMED) for frames in whole} == {20_004}
    named = {tuple(functions(frames, "deep.py")) for frames in whole if UNNAMED not in frames}
    assert named == {("<module>", "main", *["down"] * 20_001, "leaf")}


@WITH_DATA_STACK
def test_outermost_functions_of_a_stack_that_is_followed_after_the_stop_have_names(
    python: Python, tmp_path: Path
) -> None:
    found, _ = recorded(python, 3_000, tmp_path)
    named = [frames for frames in found if functions(frames, "deep.py")[:3] == ["<module>", "main", "down"]]
    assert len(named) >= len(found) - 1  # the first sample finds the size of the stack


@pytest.mark.parametrize("python", [each for each in OF_LAYOUTS if each.minor < 11], ids=lambda python: python.name)
def test_of_frames_that_lie_apart_the_innermost_are_read_and_the_marker_says_so(python: Python, tmp_path: Path) -> None:
    found, summary = recorded(python, 3_000, tmp_path)
    for frames in found:
        assert frames[0] in {f"[truncated: more than {n},000 functions, too many to read one by one]" for n in (1, 3)}
        assert functions(frames, "deep.py") in ([*["down"] * (MAX_SCATTERED - 1), "leaf"], [])
    assert any(functions(frames, "deep.py") for frames in found)
    assert summary["errors"]["python_frame_chain_too_long"] >= len(found)
    assert "python_frame_chain_broken" not in summary["errors"]
    assert "evaluator_without_frames" not in summary["errors"]


def test_chunks_of_a_data_stack_are_summed_up_once() -> None:
    words = {0x1000: (0x2000, 16384, 500), 0x2000: (0x3000, 16384, 2045), 0x3000: (0, 16384, 10)}
    reads: list[int] = []

    def read(avma: int, size: int) -> bytes:
        reads.append(avma)
        return b"".join(word.to_bytes(8, "little") for word in words.get(avma, ()))

    sizes = ChunkSizes(Memory(read))
    assert sizes.count_bytes_from(0x2000) == 16384 + 8 * 13
    assert sizes.count_bytes_from(0x1000) == 8 * 503 + 16384 + 8 * 13
    assert reads == [0x2000, 0x3000, 0x1000]
    assert sizes.count_bytes_from(0x9000) == 0


def test_chunks_in_a_circle_end() -> None:
    words = {0x1000: (0x2000, 4096, 1), 0x2000: (0x1000, 4096, 1)}
    sizes = ChunkSizes(Memory(lambda avma, size: b"".join(w.to_bytes(8, "little") for w in words[avma])))
    assert sizes.count_bytes_from(0x1000) == 64


@pytest.mark.parametrize(
    ("lacking", "enough", "title"),
    [
        (1, 5000, "about 1 functions, --stack-size 8K"),
        (195_342, 48 << 20, "about 200,000 functions, --stack-size 64M"),
        (8_400, 1 << 20, "about 8,000 functions, --stack-size 1M"),
    ],
)
def test_many_depths_have_one_marker(lacking: int, enough: int, title: str) -> None:
    assert long_chain_mark(lacking, enough).title == f"[truncated: {title} copies them]"
