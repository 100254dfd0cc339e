"""The command that brings symbols, from a package database made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.objfile.packages import Packages


@pytest.fixture
def root(tmp_path: Path) -> str:
    info = tmp_path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (info / "libc6:amd64.list").write_text("/.\n/lib/x86_64-linux-gnu/libc.so.6\n")
    (info / "perl-base.list").write_text("/.\n/usr/bin/perl\n")
    return str(tmp_path)


def test_owned_file_names_its_debug_package(root: str) -> None:
    remedy = Packages().symbols_remedy("/usr/bin/perl", "ab12", root)
    assert remedy.startswith("apt-get install perl-base-dbgsym")


def test_merged_usr_path_finds_the_libc_package(root: str) -> None:
    remedy = Packages().symbols_remedy("/usr/lib/x86_64-linux-gnu/libc.so.6", "ab12", root)
    assert remedy == "apt-get install libc6-dbg"


def test_file_of_no_package_is_fetched_by_build_id(root: str) -> None:
    assert Packages().symbols_remedy("/opt/x", "ab12", root) == "debuginfod-find debuginfo ab12"
    assert Packages().symbols_remedy("/opt/x", "", root) == ""


def test_root_without_dpkg_knows_only_build_ids(tmp_path: Path) -> None:
    assert Packages().symbols_remedy("/usr/bin/perl", "ab12", str(tmp_path)) == "debuginfod-find debuginfo ab12"
