"""Tests of the command that installs debug symbols, with a synthetic package database."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.objfile import io_deadline
from pyprof.objfile.debug_files import Packages


@pytest.fixture
def root(tmp_path: Path) -> str:
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (info / "libc6:amd64.list").write_text("/.\n/lib/x86_64-linux-gnu/libc.so.6\n")
    (info / "perl-base.list").write_text("/.\n/usr/bin/perl\n")
    return str(tmp_path)


def test_owned_file_names_its_debug_package(root: str) -> None:
    hint = Packages().find_hint_for_symbols("/usr/bin/perl", "ab12", root)
    assert hint.startswith("apt-get install perl-base-dbgsym")


def test_merged_usr_path_finds_the_libc_package(root: str) -> None:
    hint = Packages().find_hint_for_symbols("/usr/lib/x86_64-linux-gnu/libc.so.6", "ab12", root)
    assert hint == "apt-get install libc6-dbg"


@pytest.mark.parametrize("path", ["/opt/x", "/usr/lib/python3/dist-packages/orjson/orjson.so", "/usr/local/bin/x"])
def test_file_that_no_package_brought_is_looked_for_nowhere(root: str, path: str) -> None:
    assert Packages().find_hint_for_symbols(path, "ab12", root) == ""


@pytest.mark.parametrize(
    "path",
    ["/srv/venv/lib/python3.11/site-packages/numpy.libs/libopenblas.so", "/usr/local/lib/libx.so", "/home/me/server",
     "/usr/lib/python3.11/site-packages/orjson/orjson.cpython-311-x86_64-linux-gnu.so"],
)  # fmt: skip
def test_what_no_server_knows_is_not_fetched_where_no_package_is_known_either(tmp_path: Path, path: str) -> None:
    assert Packages().find_hint_for_symbols(path, "ab12", str(tmp_path)) == ""


def test_a_thousand_lists_are_searched_in_few_calls(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search lists of which the last one has the file. Each call switches to another thread."""
    for number in range(999):
        (tmp_path / f"var/lib/dpkg/info/a{number}.list").write_text(f"/.\n/usr/share/{number}\n")
    (tmp_path / "var/lib/dpkg/info/a-package-of-a-long-name.list").write_text("/.\n/usr/bin/zzz\n")
    calls: list[None] = []
    run = io_deadline._Call.run

    def counted(call: io_deadline._Call) -> bool:
        calls.append(None)
        return run(call)

    monkeypatch.setattr(io_deadline._Call, "run", counted)
    assert Packages().find_hint_for_symbols("/usr/bin/zzz", "ab12", root).startswith("apt-get install a-package-of-")
    assert 20 < len(calls) < 60


def test_root_without_dpkg_knows_only_build_ids(tmp_path: Path) -> None:
    assert Packages().find_hint_for_symbols("/usr/bin/perl", "ab12", str(tmp_path)) == "debuginfod-find debuginfo ab12"
