"""Tests of the Debian package: what it holds, and a recording with the programs in it.

`make test-release` installs, uses and removes the packages in new roots of their suites.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import missing, need
from tests.test_install import ROOT, built
from tooling.release.debian_package import SUITES, build

pytestmark = [pytest.mark.live, pytest.mark.system]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package of the suite whose Python this machine has."""
    need("dpkg-deb")
    found = [suite for suite, version in SUITES.items() if os.path.exists(f"/usr/bin/python{version}")]
    if not found:
        missing("no Python of a Debian release in /usr/bin: python3")
    folder = tmp_path_factory.mktemp("package")
    return build(built("x86_64"), found[0], "x86_64", folder, "none")


@pytest.fixture(scope="module")
def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    subprocess.run(["dpkg-deb", "--extract", str(package), str(folder)], check=True)
    return folder


def test_package_puts_one_command_on_the_path_and_nothing_into_shared_folders(unpacked: Path) -> None:
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if not path.is_dir()}
    outside = {path for path in files if not path.startswith(("usr/lib/pyprof/", "usr/share/doc/pyprof/"))}
    assert outside == {"usr/bin/pyprof", "usr/lib/systemd/system/pyprof-agent.service"}


def test_unit_starts_the_command_of_the_package(unpacked: Path) -> None:
    unit = (unpacked / "usr/lib/systemd/system/pyprof-agent.service").read_text()
    assert "ExecStart=/usr/bin/pyprof agent --config /etc/pyprof/agent.toml" in unit
    assert "SupplementaryGroups=pyprof" in unit


def test_bill_of_materials_has_each_bundled_distribution(unpacked: Path) -> None:
    (text,) = (unpacked / "usr/share/doc/pyprof").glob("sbom.cdx.json")
    parts = json.loads(text.read_text())["components"]
    listed = {f"{each['name']}-{each['version']}".replace("_", "-").lower() for each in parts}
    (site,) = (unpacked / "usr/lib/pyprof/lib").glob("python*/site-packages")
    bundled = {path.name.removesuffix(".dist-info").replace("_", "-").lower() for path in site.glob("*.dist-info")}
    assert listed == bundled
    assert {"numpy", "pyprof-live"} <= {each["name"] for each in parts}


def test_program_in_the_package_records(unpacked: Path, tmp_path: Path) -> None:
    python, command = unpacked / "usr/lib/pyprof/bin/python3", unpacked / "usr/bin/pyprof"
    page = tmp_path / "a.collapsed"
    program = [sys.executable, str(ROOT / "examples/workload.py"), "2"]
    arguments = [str(python), "-I", str(command), "record", "-d", "1", "-o", str(page), "--", *program]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "workload.py" in page.read_text()
