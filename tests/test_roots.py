"""Tests of private roots: an incomplete one is not reused, and an error names the command that repairs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.roots import TOOLS, root
from tests.support import PACKAGES

pytestmark = pytest.mark.system

CI = Path(__file__).parent.parent / ".ci" / "install"


def there(tools: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tools / "roots", "--there", "sid"],
        env={**os.environ, "PYPROF_TEST_ROOTS": str(folder)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.mark.parametrize("changed", [("roots", "gcc libc6-dev", "libc6-dev"), ("debroot", "ldconfig", "ldconfig -X")])
def test_root_of_another_list_or_of_another_debroot_is_not_reused(
    changed: tuple[str, str, str], tmp_path: Path
) -> None:
    tools, made = tmp_path / "tools", tmp_path / "made"
    shutil.copytree(TOOLS, tools)
    (made / "sid").mkdir(parents=True)
    missing = there(tools, made)
    assert (missing.returncode, missing.stdout) == (1, "")
    said = re.fullmatch(rf"roots: no root of Debian sid in (\S+) yet: {tools}/roots sid\n", missing.stderr)
    assert said
    Path(said[1]).mkdir()
    assert there(tools, made).stdout.strip() == said[1]
    file, before, after = changed
    text = (tools / file).read_text()
    assert before in text
    (tools / file).write_text(text.replace(before, after))
    assert there(tools, made).returncode == 1


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_root_has_the_library_that_wheels_of_cxx_want_and_says_what_was_unpacked(suite: str) -> None:
    versions = dict(line.split("\t") for line in (root(suite) / ".debroot" / "versions").read_text().splitlines())
    assert versions["libstdc++6"] > "14"
    assert versions["binutils"] > "2.4"
    assert (root(suite) / "usr/lib/x86_64-linux-gnu/libstdc++.so.6").exists()


def test_ci_installs_each_package_that_a_test_names() -> None:
    listed = re.search(r"^packages=\(\n(.*?)^\)", CI.read_text(), re.MULTILINE | re.DOTALL)
    assert listed
    named = {package for packages in PACKAGES.values() for package in packages.split()}
    assert len(named) > 40
    assert named <= set(listed[1].split())
