"""The tests' own machinery: marks, reruns of live tests only, builds made once."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests import marks, schedule, syntax
from tests.support import build

TESTS = Path(__file__).parent
FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once():
    tried = Path(__file__).with_suffix(".tried")
    first = not tried.exists()
    tried.touch()
    assert not first, "the first try"
"""


def test_every_mark_is_known_and_every_pattern_fits_a_file() -> None:
    files = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]
    used = set()
    for file in files:
        kinds = marks.of(file)
        assert kinds
        assert kinds <= marks.KINDS.keys()
        assert kinds == {"unit"} or "unit" not in kinds
        used |= {next((pattern for pattern in marks.TABLE if fnmatch(file, pattern)), "")}
    assert used - {""} == marks.TABLE.keys()


def asking(path: Path) -> set[str]:
    """Tests of a file that have no mark of their own and ask for a tool of the system, by themselves or by what they
    use.
    """
    functions = [node for node in syntax.tree(path).body if isinstance(node, ast.FunctionDef)]
    marked = {each.name for each in functions if any("pytest.mark." in text for text in kinds_of(each))}
    return {name for name in _asking(path) - marked if name.startswith("test_")}


@cache
def _asking(path: Path) -> frozenset[str]:
    """Functions of a file, and of those of the tests' helpers that it imports, that ask for a tool."""
    if path == TESTS / "support.py":
        return frozenset({"build", "need"})
    functions = [node for node in syntax.tree(path).body if isinstance(node, ast.FunctionDef)]
    names = {"open_page", "browser"}  # fixtures of the page's tests
    for node in syntax.nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            helper = TESTS.parent / f"{(node.module or '').replace('.', '/')}.py"
            names |= {each.name for each in node.names} & _asking(helper) if helper.exists() else set()
    for _ in functions:
        names |= {each.name for each in functions if names & used(each)}
    return frozenset(names)


def used(function: ast.FunctionDef) -> set[str]:
    return {each.arg for each in function.args.args} | {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def kinds_of(function: ast.FunctionDef) -> list[str]:
    """Decorators that mark a test as of a kind other than "unit"."""
    found = [ast.unparse(each) for each in function.decorator_list]
    return [text for text in found if text.rpartition(".")[2] in marks.KINDS.keys() - {"unit"}]


def test_unit_tests_ask_for_no_tool(tmp_path: Path) -> None:
    files = [path for path in TESTS.rglob("test_*.py") if marks.of(path.relative_to(TESTS).as_posix()) == {"unit"}]
    assert len(files) > 100
    assert {str(path): found for path in files if (found := asking(path))} == {}
    made = tmp_path / "test_made.py"
    made.write_text(
        "from tests.support import build\n@pytest.fixture\ndef program():\n    return build('a.c')\n"
        "def test_one(program): ...\n@pytest.mark.system\ndef test_two(program): ...\ndef test_three(): ...\n"
    )
    assert asking(made) == {"test_one"}


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")])
def test_live_tests_alone_are_run_again_and_each_rerun_is_reported_with_its_reason(
    workers: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("__init__.py", "conftest.py", "marks.py", "schedule.py", "support.py"):
        (tmp_path / "tests").mkdir(exist_ok=True)
        shutil.copy(TESTS / name, tmp_path / "tests")
    for folder in ("live", "model"):
        (tmp_path / "tests" / folder).mkdir()
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(FAILS_ONCE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", ".", "-p", "no:cacheprovider", *workers, "tests"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "1 failed, 1 passed, 1 rerun" in done.stdout, done.stdout
    assert "FAILED tests/model/test_model.py" in done.stdout
    assert "tests/live/test_live.py::test_that_fails_once: AssertionError: the first try" in done.stdout


@pytest.mark.system
def test_same_build_is_made_once_and_another_source_header_or_flag_is_another_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builds = tmp_path / "builds"  # nobody else's are made there meanwhile
    builds.mkdir()
    monkeypatch.setenv("PYPROF_TEST_BUILDS", str(builds))
    source, header = tmp_path / "program.c", tmp_path / "number.h"
    source.write_text('#include "number.h"\nint main(void) { return NUMBER + MORE; }')

    def result(*flags: str) -> tuple[int, int]:
        """What the program returns, and the inode of where the build was kept."""
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


def test_long_files_are_files_that_there_are_and_go_first_in_their_order() -> None:
    assert all((TESTS / path).is_file() for path in schedule.LONG)
    assert sorted(["test_layers.py", *reversed(schedule.LONG)], key=schedule.rank) == [*schedule.LONG, "test_layers.py"]
