"""Tests of invalid options and of addresses without a stub: one error message and an exit code."""

from __future__ import annotations

import os

import pytest

from tests.cli.support import one_sentence, pyprof
from tests.remote.stubs import free_port

WRITTEN = ("-o", os.devnull, "-f", "collapsed")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("record", "-p", "1", "--gdb", ":1", *WRITTEN), "give either"),
        (("record", *WRITTEN, "--gdb", ":1", "--", "true"), "give either"),
        (("record", "-p", "1", "--exe", "x", *WRITTEN), "--exe goes with --gdb"),
        (("record", "-p", "1", "--step", "5", *WRITTEN), "--step goes with --gdb"),
        (("record", "--gdb", ":1", "-s", *WRITTEN), "one process"),
        (("record", "--gdb", "nonsense", *WRITTEN), "not an address of a stub"),
        (("dump", "--gdb", "nonsense"), "not an address of a stub"),
    ],
)
def test_impossible_options_are_wrong_usage(options: tuple[str, ...], sentence: str) -> None:
    done = pyprof(*options)
    assert done.returncode == 2
    assert sentence in one_sentence(done)


@pytest.mark.parametrize("verb", [("dump",), ("record", *WRITTEN)])
def test_address_without_a_stub_is_an_error(verb: tuple[str, ...]) -> None:
    done = pyprof(*verb, "--gdb", f"localhost:{free_port()}")
    assert done.returncode == 1
    assert "no stub answers" in one_sentence(done)
    assert "gdbserver" in done.stderr


def test_program_file_that_is_not_there_is_an_error() -> None:
    done = pyprof("dump", "--gdb", f"localhost:{free_port()}", "--exe", "/no/such/file")
    assert done.returncode == 1
    one_sentence(done)
