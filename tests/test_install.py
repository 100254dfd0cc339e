"""Tests of the installation: contents of the wheel, `make install`, and a foreign package named `pyprof`."""

from __future__ import annotations

import email
import fcntl
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

import pyprof
from tests.support import BUILDS

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parent.parent
STRANGER = {
    "pyprof/__init__.py": "from .proxy import *\n",
    "pyprof/proxy.py": "profile = print\n",
    "pyprof-1.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pyprof\nVersion: 1.0.0\n",
    "pyprof-1.0.0.dist-info/RECORD": "pyprof/__init__.py,,\npyprof/proxy.py,,\npyprof-1.0.0.dist-info/RECORD,,\n",
}
"""The files of another distribution with the name of pyprof's package."""
IN_THE_WAY = "pyprof: another project, pyprof 1.0.0 in {}, is in the way. `pip uninstall pyprof`, then "


def built(machine: str) -> Path:
    """Return the wheel for a machine, which a run of the tests builds once."""
    folder = Path(os.environ[BUILDS]) / f"wheel-{machine}"
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", f"{folder}.part", str(ROOT)]
            env = {**os.environ, "PYPROF_MACHINE": machine}
            done = subprocess.run(command, check=True, timeout=280, capture_output=True, text=True, env=env)
            assert "SetuptoolsWarning" not in done.stderr + done.stdout
            os.rename(f"{folder}.part", folder)
    (found,) = folder.glob("pyprof_live-*.whl")
    return found


@pytest.fixture(scope="module")
def wheel() -> Path:
    return built(platform.machine())


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """Return a folder of packages that contains pyprof."""
    folder = tmp_path / "site-packages"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def add_stranger(folder: Path) -> None:
    for name, text in STRANGER.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def version(*folders: Path) -> subprocess.CompletedProcess[str]:
    """Run `pyprof --version` with these folders first in sys.path."""
    return subprocess.run(
        [sys.executable, "-c", "from pyprof_start import main\nmain()", "--version"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_wheel_contains_the_import_package_and_what_starts_it_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pyprof", "pyprof_start"}
    for needed in ("pyprof/py.typed", "pyprof/unwind/rules.py", "pyprof/collectors/base.py"):
        assert needed in names
    assert any(name.startswith("pyprof/exporters/assets/") and name.endswith(".js") for name in names)


def test_wheel_says_who_and_for_which_versions_and_has_the_version_of_the_package(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    said = email.message_from_bytes(archive.read(path))
    assert (said["Name"], said["Version"]) == ("pyprof-live", pyprof.__version__)
    assert said["Author"]
    assert not said.get_all("Project-URL", []), "none of them exists yet"
    oldest = said["Requires-Python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in said.get_all("Classifier", [])
    assert pyprof.__version__ not in (ROOT / "pyproject.toml").read_text()


def objects(wheel: Path, machine: str) -> set[str]:
    """Return the names of the native objects in a wheel, and check its tags and what they promise."""
    archive = zipfile.ZipFile(wheel)
    (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
    said = email.message_from_bytes(archive.read(path))
    platforms = ("manylinux_2_17", "manylinux2014", "musllinux_1_1")
    assert said.get_all("Tag") == [f"py3-none-{platform}_{machine}" for platform in platforms]
    assert said["Root-Is-Purelib"] == "false"
    found = {name for name in archive.namelist() if name.endswith((".so", ".o"))}
    for name in found:
        dynamic = ELFFile(io.BytesIO(archive.read(name))).get_section_by_name(".dynamic")
        if name.endswith(".so"):
            assert isinstance(dynamic, DynamicSection)
            assert not [*dynamic.iter_tags("DT_NEEDED")], "it needs a library"
    return {name.rpartition("/")[2] for name in found}


OF_A_MACHINE = ("sampler.{}.o", "rounds.{}.so", "walk.{}.so")
"""Native objects of a machine."""


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_wheel_of_a_machine_has_its_objects_only_and_says_so(machine: str) -> None:
    """Build for both machines in one checkout: files of the earlier build must not get into the later wheel."""
    assert objects(built(machine), machine) == {name.format(machine) for name in OF_A_MACHINE} | {"process_ends.o"}


def test_wheel_states_the_licences_of_all_its_parts_and_has_their_texts(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    said = email.message_from_bytes(archive.read(path))
    assert said["License-Expression"] == "MIT AND ISC AND BSD-3-Clause AND (MIT OR GPL-2.0-only)"
    texts = {name.rpartition("/")[2] for name in archive.namelist() if ".dist-info/licenses/" in name}
    assert {"LICENSE", "MIT.txt", "GPL-2.0-only.txt", "README.md", "uPlot.LICENSE"} <= texts
    listed = re.findall(r"^\| (d3-[a-z]+) \|", (ROOT / "exporters/assets/VENDORED.md").read_text(), re.MULTILINE)
    assert listed
    assert {f"{name}.LICENSE" for name in listed} <= texts


def test_every_c_file_states_a_licence_that_is_there() -> None:
    texts = {path.stem for path in (ROOT / "LICENSES").glob("*.txt")}
    files = [path for folder in ("native", "collectors") for path in (ROOT / folder).rglob("*.[ch]")]
    assert files
    for path in files:
        stated = re.match(r"/\* SPDX-License-Identifier: (.+) \*/\n", path.read_text())
        assert stated, path
        assert set(stated[1].split(" OR ")) <= texts, path


def test_our_package_alone_starts_without_a_word(installed: Path) -> None:
    done = version(installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pyprof {pyprof.__version__}\n", "")


def test_stranger_installed_before_ours_is_named_and_ours_runs(installed: Path, wheel: Path) -> None:
    add_stranger(installed)
    zipfile.ZipFile(wheel).extractall(installed)
    done = version(installed)
    assert (done.returncode, done.stdout) == (0, f"pyprof {pyprof.__version__}\n")
    assert done.stderr.startswith(IN_THE_WAY.format(installed))


def test_stranger_over_or_before_ours_is_named_and_nothing_else_is_said(installed: Path, tmp_path: Path) -> None:
    add_stranger(tmp_path / "user")
    over = version(tmp_path / "user", installed)
    assert (over.returncode, over.stdout, over.stderr.count("\n")) == (1, "", 1)
    assert over.stderr.startswith(IN_THE_WAY.format(tmp_path / "user"))
    add_stranger(installed)
    over = version(installed)
    assert (over.returncode, over.stdout, over.stderr.count("\n")) == (1, "", 1)
    assert over.stderr.startswith(IN_THE_WAY.format(installed))


def test_package_that_nobody_installed_is_refused_and_named(installed: Path, tmp_path: Path) -> None:
    """Put a foreign folder on PYTHONPATH. A bug printed its version, and in a checkout ran its __init__ with pyprof's
    modules.
    """
    stranger = tmp_path / "user" / "pyprof"
    stranger.mkdir(parents=True)
    (stranger / "__init__.py").write_text("__version__ = '1.0.0'\n")
    (stranger / "__main__.py").write_text("def main(): print('theirs')\n")
    done = version(tmp_path / "user", installed)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pyprof: another package `pyprof`, {stranger}, is in the way: on PYTHONPATH?\n"


def test_stranger_that_was_removed_with_a_file_of_ours_is_explained(installed: Path) -> None:
    (installed / "pyprof" / "__init__.py").unlink()
    done = version(installed)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the package is not whole, or another's is in the way. `pip uninstall pyprof`, then " in done.stderr


def test_demo_installs_what_recording_needs_and_the_tests_what_they_need(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)

    def commands(target: str) -> str:
        return subprocess.run(
            ["make", "-n", "-C", str(tmp_path), target], capture_output=True, text=True, check=True, timeout=20
        ).stdout

    installs = [line for line in commands("demo").splitlines() if "pip" in line]
    assert len(installs) == 1
    assert installs[0].endswith(" install --quiet --editable .")
    assert ".[dev]" in commands("test")


def test_no_page_says_to_install_the_stranger() -> None:
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "bench").glob("*.md"),
    ]
    assert len(pages) > 15
    for page in pages:
        assert not re.search(r"(pip|pipx|uv)\b[^\n`]* (install|add|run) [^\n`]*\bpyprof(?![\w-])", page.read_text()), (
            page
        )
