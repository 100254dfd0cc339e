"""The project itself: what starts fast, what README says."""

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


def test_readme_names_files_and_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (ROOT / link).exists(), link
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile, target
