"""Tests of the generated systemd unit: systemd accepts it, it runs the requested command, and foreign files stay."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyprof.errors import UsageError
from pyprof.fleet import systemd
from pyprof.fleet.agent.config import parse
from pyprof.fleet.cli.agent_administration import install

CONFIG = parse('[spool]\npath = "/srv/a spool"\n[[rule]]\nname = "*"', "x")


def test_unit_of_the_one_file_runs_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter is in a cache, which the administrator may empty."""
    monkeypatch.setitem(sys._xoptions, "one_file", "/opt/pyprof-x86_64")
    list(install(CONFIG, "/etc/a.toml", str(tmp_path), lambda path: None))
    assert "ExecStart=/opt/pyprof-x86_64 agent --config" in (tmp_path / systemd.AGENT_UNIT_NAME).read_text()


def test_unit_runs_the_agent_as_it_was_asked_for_with_no_more_rights_than_are_named(tmp_path: Path) -> None:
    config = tmp_path / 'a "b" %h $c.toml'
    said = list(install(CONFIG, str(config), str(tmp_path), lambda path: None))
    lines = (tmp_path / systemd.AGENT_UNIT_NAME).read_text().splitlines()
    (command,) = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(command)]
    assert words[1:] == ["-m", "pyprof", "agent", "--config", str(config), "--log", "json", "--spool", "/srv/a spool"]
    assert 'ReadWritePaths="/srv/a spool"' in lines
    assert f"CapabilityBoundingSet={' '.join(systemd.AGENT_CAPABILITIES)}" in lines
    assert [line for line in said if "/srv/a spool only" in line]
    assert not [line for line in lines if line.startswith("SupplementaryGroups=")]
    asked = list(install(parse('[record]\ngroup = "dev"\n[[rule]]\nname = "*"', "x"), "x", str(tmp_path)))
    assert "SupplementaryGroups=dev" in (tmp_path / systemd.AGENT_UNIT_NAME).read_text().splitlines()
    assert [line for line in asked if "members of dev may ask" in line]
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", tmp_path / systemd.AGENT_UNIT_NAME], capture_output=True, text=True
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_unit_is_written_over_its_own_kind_only(tmp_path: Path) -> None:
    made: list[str] = []
    for _ in range(2):
        list(install(CONFIG, "agent.toml", str(tmp_path), made.append))
    assert made == ["/srv/a spool"] * 2
    there = tmp_path / systemd.AGENT_UNIT_NAME
    whole = there.read_text()
    there.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(UsageError, match="not written by pyprof"):
        list(install(CONFIG, "agent.toml", str(tmp_path), made.append))
    assert there.read_text().endswith("/bin/true\n")
    there.unlink()
    (tmp_path / "other").write_text(whole)
    there.symlink_to(tmp_path / "other")
    list(install(CONFIG, "other.toml", str(tmp_path), made.append))
    assert not there.is_symlink(), "a link is replaced, not followed"
    assert (tmp_path / "other").read_text() == whole
    assert whole.startswith(systemd.AGENT_UNIT_MARK)


def test_service_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a configuration"):
        list(install(CONFIG, None, str(tmp_path), lambda path: None))


@pytest.mark.parametrize("word", ["a\nExecStartPre=/bin/rm", "\x1b[0m"])
def test_word_that_no_unit_can_hold_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="cannot be written in a systemd unit"):
        systemd.quoted(word)


def test_unit_reaches_other_hosts_and_folders_only_where_a_sink_is_one(tmp_path: Path) -> None:
    folder = '[[push]]\nname = "a"\ntype = "folder"\npath = "/mnt/nas"\n'
    host = '[[push]]\nname = "b"\ntype = "otlp"\nurl = "https://far:4318"\n'
    rule = '[[rule]]\nname = "*"\n'
    found = {}
    for name, text in {"neither": "", "folder": folder, "both": folder + host}.items():
        said = list(install(parse(rule + text, "x"), "agent.toml", str(tmp_path)))
        found[name] = (tmp_path / systemd.AGENT_UNIT_NAME).read_text().splitlines()
        assert any("reaches no other host" in line for line in said) == (name != "both")
    assert ["IPAddressDeny=any" in lines for lines in found.values()] == [True, True, False]
    assert ["ReadWritePaths=/mnt/nas" in lines for lines in found.values()] == [False, True, True]
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6" in found["both"]
