"""Code for the native analysis of functions: of libraries, made and hostile, each compared with the analysis in Python.

`python -m tests.unwind.hostile_code LIBRARY SECONDS` runs another build of the native code for so much processor time,
such as one with sanitizers, which ends the process at the first access out of bounds.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

from pyprof.model.arch import X86_64
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.unwind import native_unwinder
from pyprof.unwind.code_analysis import code_rules
from pyprof.unwind.code_analysis.analysed_code import AnalysedCode
from pyprof.unwind.code_analysis.code_rules import CodeRules
from tests.unwind.made_stacks import little_elf

PIECES = [bytes.fromhex(text) for text in (
    "55", "53", "4154", "5d", "5b", "415c", "c3", "c9", "4889e5", "4889e0", "4c8d542408", "4883ec20", "4883c420",
    "4883e4c0", "4889442418", "488b742418", "488d26", "488d66f8", "4c894de8", "4a8944cc08", "4a8b74cc08", "41ff72f8",
    "488b5ef8", "4889ec", "e800000000", "e810000000", "ff15f0000000", "ff25f0000000", "7405", "75f0", "ebf5", "eb08",
    "0f8420000000", "e9e0ffffff", "e2f0", "c7f800000000", "83f805", "7710", "488d0510000000", "ffe0", "ff24c510100000",
    "f00fb10a", "0f05", "31ed", "f4", "0f0b", "90", "660f1f440000", "c5f877", "62f17c4810c0", "c4e2fbf6c3", "99",
    "f30f7ecc", "6a00", "9c", "9d", "8f00", "87e5", "54", "5c", "4829c4", "488b2c24", "488b6424f8",
    "480fb1e1")]  # fmt: skip
"""Instructions that change the state of a frame, end paths, or are rare."""


FRAMES = [tuple(bytes.fromhex(text) for text in frame) for frame in (
    ("53", "5b c3"),
    ("55 4889e5 4154", "415c c9 c3"),
    ("4883ec20", "4883c420 c3"),
    ("4889e0 53 4883ec40 4883e4c0 4889442418", "488b742418 488b5ef8 488d26 c3"),
    ("4c8d542408 4883e4e0 41ff72f8 55 4889e5 4154 4152", "415a 415c 5d 498d62f8 c3"),
)]  # fmt: skip
"""Beginnings and ends of functions."""

BODIES = [
    bytes.fromhex(text)
    for text in (
        "90",
        "7400",
        "7401 90",
        "85c0 75fc",
        "e800100000",
        "4889c1",
        "488d7c2408",
        "f00fb111",
        "5a 52",
        "6a00 58",
        "0f0b",
    )
]
"""Code between them, most of which leaves the depth as it is."""


def made_code(chance: random.Random) -> bytes:
    """Return functions, or instructions in any order, some of them damaged."""
    if chance.random() < 0.5:
        code = bytearray(b"".join(chance.choice(PIECES) for _ in range(chance.randrange(4, 120))))
    else:
        code = bytearray()
        for _ in range(chance.randrange(1, 6)):
            begin, end = chance.choice(FRAMES)
            code += begin + b"".join(chance.choice(BODIES) for _ in range(chance.randrange(12))) + end
            code += b"\xcc" * (-len(code) % 16)
    for _ in range(chance.choice((0, 0, 1, 4))):
        code[chance.randrange(len(code))] = chance.randrange(256)
    return bytes(code)


def pieces(library: ctypes.CDLL | None, file: ObjectFile, asked: Iterable[int]) -> list[AnalysedCode | None]:
    """Return what the native analysis, or that in Python, says of some addresses of a file with hidden tables."""
    with patch.object(code_rules, "find_library", lambda: library):
        rules = CodeRules(file, None, X86_64, [])
        return [rules.piece_at(at) for at in asked]


def compare_made(library: ctypes.CDLL, seed: int, is_compared: bool = True) -> int:
    """Analyse made code, compare both analyses unless not wanted, and return the number of addresses with a rule."""
    chance = random.Random(seed)
    code = made_code(chance)
    entry = chance.choice((0, 16, chance.randrange(len(code))))
    given = 0
    for asked in (range(0, len(code), 3), sorted(chance.choices(range(len(code)), k=8))):
        native = pieces(library, little_elf(X86_64, code, entry), asked)
        if is_compared:
            assert native == pieces(None, little_elf(X86_64, code, entry), asked), (seed, code.hex())
        given += sum(piece is not None for piece in native)
    return given


def compare_file(library: ctypes.CDLL, path: Path, stride: int) -> int:
    """Compare both analyses of each stride-th address of a file, and return the number of addresses with a rule."""
    file = open_object_file(str(path))
    text = file.sections[".text"]
    asked = range(text.addr, text.addr + text.size, stride)
    native, python = (pieces(each, file, asked) for each in (library, None))
    assert native == python
    return sum(piece is not None for piece in native)


def main(library: ctypes.CDLL, seconds: float) -> None:
    seed, given, end = 0, 0, time.process_time() + seconds
    while time.process_time() < end:
        given += compare_made(library, seed, is_compared=False)
        seed += 1
    assert given > seed
    print(f"{seed} rounds, {given} rules")


if __name__ == "__main__":
    main(native_unwinder.prepare(ctypes.CDLL(sys.argv[1])), float(sys.argv[2]))
