"""A test of a C program that embeds libpython: its native frames stand around and between the Python frames."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.interpreters.extensions import SOURCES
from tests.interpreters.pythons import PROGRAMS, pythons
from tests.interpreters.runs import dump
from tests.support import build, missing

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


def libraries() -> list[Path]:
    """Return the libpython of all interpreters that have one."""
    found = sorted(Path("/usr/lib/x86_64-linux-gnu").glob("libpython3.*.so.1.0"))
    for python in (python for python in pythons() if not python.suite):
        found += sorted((Path(python.path).parent.parent / "lib").glob("libpython3.*.so.1.0"))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("library", libraries() or [None], ids=str)
def test_python_of_an_embedding_program_stands_between_its_functions(library: Path | None, tmp_path: Path) -> None:
    if library is None:
        missing("needs libpython3: apt-get install python3-dev")
    program = build(SOURCES / "embeds.c", tmp_path / "embeds", "-O2", "-g", "-rdynamic", "-ldl", "-lpthread")
    command = [str(program), str(library), str(PROGRAMS / "embedded.py")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            truth = json.loads(process.stdout.readline())
            main, own = dump(process.pid, "--native", "all")["threads"]
        finally:
            process.kill()
    assert "python" not in {frame["kind"] for frame in main["frames"]}
    names = [frame["function"] for frame in own["frames"]]
    kinds = [frame["kind"] for frame in own["frames"]]
    found = [[f["function"], f["line"]] for f in own["frames"] if f["kind"] == "python"]
    assert found == truth
    assert (own["end"], own["interpreter"]["merge"]) == ("root", None)
    order = [
        names.index(name) for name in ("called", "embedder_calls_back", "in_thread", "<module>", "embedder_thread")
    ]
    assert order == sorted(order)
    assert "python" not in kinds[order[0] + 1 : order[2]]
    assert "python" not in kinds[order[3] + 1 :]
