"""Tests of the project as a whole: quick start-up, and statements of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_help_does_not_load_what_only_recording_needs() -> None:
    code = (
        "import sys\nfrom pyprof.cli.main import run\n"
        "try: run(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'rich', 'elftools', 'psutil', 'orjson', 'ptrace', 'ctypes'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["record", "dump", "doctor", "completion"])
def test_each_subcommand_has_a_manual_page(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyprof", command, "--help"], capture_output=True, text=True, check=True, timeout=30
    )
    assert len(done.stdout.splitlines()) > 8


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_script_knows_the_subcommands(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pyprof", "completion", shell], capture_output=True, text=True, check=True, timeout=30
    )
    assert "doctor" in done.stdout
    assert "--max-overhead" in done.stdout


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench/README.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(((?!https?:)[^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_marks_of_a_merge(page: Path) -> None:
    assert not re.search(r"^(<{7} |={7}$|>{7} )", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("folder", ["docs", "docs/decisions"])
def test_index_leads_to_every_page(folder: str) -> None:
    index = ROOT / folder / "index.md"
    linked = {(ROOT / folder / link).resolve() for link in re.findall(r"\]\(([^):#]+\.md)\)", index.read_text())}
    assert set((ROOT / folder).glob("*.md")) - linked == {index}


def test_change_log_is_one_page() -> None:
    """Limit the change log: before the first release it describes what that can do, not the changes on the way."""
    assert len((ROOT / "CHANGELOG.md").read_text().split()) < 1200


def test_readme_names_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile, target


def test_readme_has_an_install_line_a_picture_and_as_many_commands_as_it_says() -> None:
    text = (ROOT / "README.md").read_text()
    before, commands = text[: text.index("## Read on")].split("## Six commands")
    assert before.count("`pip install .`") == 1
    assert len(re.findall(r"^!\[", text, re.MULTILINE)) == 1
    lines = re.findall(r"^    pyprof (\w+)", commands, re.MULTILINE)
    assert len(lines) == 6
    assert set(lines) == {"record", "top", "dump", "diff", "doctor"}
