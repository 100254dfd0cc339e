"""Tests of perf.data files, written and printed by this machine's perf."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pyprof.errors import RecordingError
from pyprof.importers.registry import load
from pyprof.model.loss_reason_texts import make_note
from tests.importers.test_perf_script import ALONE
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

BUSY = "my $x = 0; for (1..4_000_000) { $x += $_ }"


def perf(folder: Path, *arguments: str) -> str:
    done = subprocess.run([need("perf"), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_perf_data_is_what_perf_says_of_it(tmp_path: Path) -> None:
    command = ["-e", "cpu-clock:u", "-F", "499", "-g", "-o", "x.data", "--", need("perl"), "-e", BUSY]
    perf(tmp_path, "record", "-q", *command)
    found = load(tmp_path / "x.data")
    shown = perf(tmp_path, "report", "-i", "x.data", "--no-children", "--stdio", "-g", "none", "-F", "overhead,sym")
    shares = {name: share for share, name in re.findall(r"^ +([\d.]+)% +\[\.\] (\S+) *$", shown, re.MULTILINE)}
    ours = {cost.name: f"{100 * cost.own / found.total:.2f}" for cost in found.top(1000)}
    assert {name: share for name, share in shares.items() if not name.startswith("0x")}.items() <= ours.items()
    assert any(name.startswith("Perl_") for name in shares)
    (tmp_path / "x.txt").write_text(perf(tmp_path, "script", "--no-inline", "-i", "x.data"))
    printed = load(tmp_path / "x.txt")
    assert printed.total == found.total
    assert {thread.pid for thread in found.threads} == {thread.tid for thread in printed.threads}
    (tmp_path / "x.data").write_bytes((tmp_path / "x.data").read_bytes()[:200])
    with pytest.raises(RecordingError, match="perf script finds nothing in"):
        load(tmp_path / "x.data")


def test_without_perf_a_sentence_says_so_and_what_perf_did_not_read_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, program = tmp_path / "x.data", tmp_path / "perf"
    file.write_bytes(b"PERFILE2 and so on")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RecordingError, match="read through perf, which is not installed"):
        load(file)
    (tmp_path / "printed").write_bytes(ALONE)
    program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/printed\necho 0x17: bad >&2\nexit 3\n")
    program.chmod(0o755)
    assert load(file).summary.notes[-1] == make_note("perf_failed", why="0x17: bad")
