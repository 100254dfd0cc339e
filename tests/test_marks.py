"""Tests of the tests' machinery: marks, and builds that are made once."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import conftest, support, syntax
from tests.support import build

TESTS = Path(__file__).parent


def asking(path: Path) -> set[str]:
    """Return the tests of a file that have no mark and need a system tool, directly or through what they call."""
    functions = [node for node in syntax.tree(path).body if isinstance(node, ast.FunctionDef)]
    marked = {each.name for each in functions if any("pytest.mark." in text for text in kinds_of(each))}
    return {name for name in _asking(path) - marked if name.startswith("test_")}


@cache
def _asking(path: Path) -> frozenset[str]:
    """Return the functions of a file, and of the test helpers that it imports, that need a tool."""
    if path == TESTS / "support.py":
        return frozenset({"build", "need"})
    functions = [node for node in syntax.tree(path).body if isinstance(node, ast.FunctionDef)]
    names = {"open_page", "browser"}  # fixtures that need Chromium
    for node in syntax.nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            helper = TESTS.parent / f"{(node.module or '').replace('.', '/')}.py"
            names |= {each.name for each in node.names} & _asking(helper) if helper.exists() else set()
    uses = {each.name: used(each) for each in functions}
    while found := {name for name, others in uses.items() if names & others} - names:
        names |= found
    return frozenset(names)


def used(function: ast.FunctionDef) -> set[str]:
    return {each.arg for each in function.args.args} | {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def kinds_of(function: ast.FunctionDef) -> list[str]:
    """Return the decorators that give a test another kind than "unit"."""
    found = [ast.unparse(each) for each in function.decorator_list]
    return [text for text in found if text.rpartition(".")[2] in conftest.KINDS.keys() - {"unit"}]


def test_unit_tests_ask_for_no_tool(tmp_path: Path) -> None:
    files = [path for path in TESTS.rglob("test_*.py") if not conftest.has_own_kinds(path)]
    assert len(files) > 100
    assert {str(path): found for path in files if (found := asking(path))} == {}
    made = tmp_path / "test_made.py"
    made.write_text(
        "from tests.support import build\n@pytest.fixture\ndef program():\n    return build('a.c')\n"
        "def test_one(program): ...\n@pytest.mark.system\ndef test_two(program): ...\ndef test_three(): ...\n"
    )
    assert asking(made) == {"test_one"}


def test_each_file_is_read_by_the_run_of_unit_tests_or_by_that_of_the_others(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {
        "units": "def test_one(): ...\n",
        "others": "pytestmark = pytest.mark.live\ndef test_one(): ...\n",
        "both": "@pytest.mark.system\ndef test_one(): ...\ndef test_two(): ...\n",
    }
    for name, text in texts.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    read: dict[str, set[str]] = {}
    for expression in ("unit", "not unit", ""):
        monkeypatch.setattr(pytestconfig.option, "markexpr", expression)
        monkeypatch.setattr(support, "only_units", expression == "unit")
        paths = [path for path in tmp_path.iterdir() if not conftest.pytest_ignore_collect(path, pytestconfig)]
        read[expression] = {path.stem.removeprefix("test_") for path in paths}
    assert read == {"unit": {"units", "both"}, "not unit": {"others", "both"}, "": {"units", "others", "both"}}


@pytest.mark.system
def test_same_build_is_made_once_and_another_source_header_or_flag_is_another_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = tmp_path / "builds"  # separate from the builds of other tests
    builds.mkdir()
    monkeypatch.setenv("PYPROF_TEST_BUILDS", str(builds))
    source, header = tmp_path / "program.c", tmp_path / "number.h"
    source.write_text('#include "number.h"\nint main(void) { return NUMBER + MORE; }')

    def result(*flags: str) -> tuple[int, int]:
        """Return the program's exit code and the inode of the stored build."""
        program = build(source, tmp_path / "program", *flags)
        kept = {path.read_bytes(): path.stat().st_ino for path in builds.iterdir()}
        return subprocess.run([program], timeout=20, check=False).returncode, kept[program.read_bytes()]

    header.write_text("#define NUMBER 1")
    first = result("-DMORE=0")
    assert first[0] == 1
    (tmp_path / "program").write_bytes(b"what a test does to its copy")
    assert result("-DMORE=0") == first
    assert result("-DMORE=1")[0] == 2
    header.write_text("#define NUMBER 5")
    assert result("-DMORE=0")[0] == 5


def test_reruns_stand_below_all_messages_of_failures(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(
        "import pytest\npytestmark = pytest.mark.live\nruns = []\n"
        "def test_second_time():\n    runs.append(1)\n    assert len(runs) == 2, 'first try'\n"
        "def test_never():\n    assert False, 'no try'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    after = lines[max(n for n, line in enumerate(lines) if line.startswith("FAILED ")) + 1 :]
    *found, outcome = after[next(n for n, line in enumerate(after) if "3 reruns" in line) :]
    assert sorted(line.rpartition("::")[2] for line in found[1:]) == [
        "test_never: AssertionError: no try",
        "test_never: AssertionError: no try",
        "test_second_time: AssertionError: first try",
    ], done.stdout
    assert "1 failed, 1 passed, 3 rerun" in outcome
