"""Tests of EXIDX at calls in real code, where it must equal .debug_frame."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import build, need
from tests.unwind.exidx.call_sites import SHAPES, compare

pytestmark = [pytest.mark.matrix, pytest.mark.system]

CROSS = Path("/usr/arm-linux-gnueabihf")


@pytest.mark.parametrize("mode", ["-marm", "-mthumb"])
@pytest.mark.parametrize("flags", ["-O2", "-O0", "-Os", "-O2 -fno-omit-frame-pointer", "-O3 -fstack-protector-all"])
def test_every_call_of_a_program_has_the_frame_that_debug_frame_says(mode: str, flags: str, tmp_path: Path) -> None:
    options = [mode, *flags.split(), "-g", "-funwind-tables"]
    compared = compare(build(SHAPES, tmp_path / "shapes", *options, compiler="arm-linux-gnueabihf-g++"))
    assert compared.unlike == []
    assert compared.counts["same"] > 50
    assert compared.counts["debug_frame only"] == 0


@pytest.mark.parametrize("mode", ["-marm", "-mthumb"])
def test_every_call_of_a_program_of_clang_has_the_frame_that_debug_frame_says(mode: str, tmp_path: Path) -> None:
    folders = [CROSS / "include", *CROSS.glob("include/c++/*"), *CROSS.glob("include/c++/*/arm-linux-gnueabihf")]
    thing, program = tmp_path / "shapes.o", tmp_path / "shapes"
    options = ["--target=arm-linux-gnueabihf", "-march=armv7-a", mode, "-O2", "-g", "-funwind-tables", "-c"]
    includes = [f"-I{folder}" for folder in folders]
    subprocess.run([need("clang"), *options, *includes, str(SHAPES), "-o", str(thing)], check=True, timeout=120)
    compared = compare(build(thing, program, compiler="arm-linux-gnueabihf-g++"))
    assert compared.unlike == []
    assert compared.counts["same"] > 50
    assert compared.counts["debug_frame only"] == 0


def test_function_that_cannot_throw_is_marked_so_and_left_to_other_sources(tmp_path: Path) -> None:
    compared = compare(build(SHAPES, tmp_path / "shapes", "-O2", "-g", compiler="arm-linux-gnueabihf-g++"))
    assert compared.unlike == []
    assert compared.counts["debug_frame only"] > 20
