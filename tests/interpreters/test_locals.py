"""Tests of `dump --locals`: values of variables without running the target's code, and hidden secrets."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests import warm
from tests.interpreters.pythons import HERE, KINDS, Python, running

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


def frame_of(pid: int, *options: str) -> dict[str, Any]:
    done = warm.run("dump", "-p", str(pid), "--json", "--locals", *options)
    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout or "--no-redact" in options
    frames = json.loads(done.stdout)["threads"][0]["frames"]
    found: dict[str, Any] = next(frame for frame in frames if frame["function"] == "function")
    return found


def ready(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process.pid


@KINDS
def test_values_of_each_kind_are_read(python: Python) -> None:
    with running(python, "local_values.py") as process:
        frame = frame_of(ready(process))
    found = frame["locals"]
    assert (found["number"], found["negative"], found["rest"]) == ("1", "-7", "(4, 5)")
    assert (found["one"], found["empty"], found["data"]) == ("(1,)", "()", "b'bytes'")
    assert found["big"] == "<int of many digits>"
    assert found["thing"].startswith("<Thing at 0x")
    assert found["text"].startswith("'ünïünï")
    assert len(found["text"]) < 100
    assert found["loop"].startswith("[[")
    assert found["password"] == "<redacted>"
    assert found["settings"] == "{'api_key': <redacted>, 'size': 2}"
    assert found["more"] == "{'key': 'value'}"
    assert found["long"] == "'" + "x" * 78 + "…"
    assert found["broken"] == r"'\ud800'"
    assert found["address"] == "'postgres://user:<redacted>@host:5432/db'"
    assert found["pair"] == "('password', <redacted>)"
    assert found["line"] == "b'API_TOKEN=<redacted> rest'"
    assert found["port"] == "'http://localhost:8080/a=b'"
    assert found["cell"] == "[1, 'two', 3.5, None, True]"
    assert frame["source"] == "time.sleep(1000)"


def test_secrets_are_shown_only_when_asked_for() -> None:
    with running(HERE, "local_values.py") as process:
        found = frame_of(ready(process), "--no-redact")["locals"]
    assert found["password"] == "'hunter2'"
    assert found["settings"] == "{'api_key': 'in a dict', 'size': 2}"
