"""Tests of malicious configurations: the agent refuses them quickly with a line number."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from pyprof.errors import UsageError
from pyprof.fleet.agent.config import parse
from pyprof.fleet.cli import agent
from pyprof.fleet.toml_config_files import BadConfig

RULE = '[[rule]]\nname = "*"\n'
LIES = {
    "a number of 5,000 digits": (f"[spool]\nmax_files = {'9' * 5000}\n{RULE}", "digits"),
    "a number of 400,000 digits by sixteen": (f"[spool]\nmax_files = 0x{'f' * 400_000}\n{RULE}", "thousands of digits"),
    "brackets in brackets": (f"[[rule]]\ncmdline = '{'(' * 5000}{')' * 5000}'\n", "is not a regular expression"),
    "a repetition of billions": ("[[rule]]\ncmdline = 'a{99999999999}'\n", "is not a regular expression"),
    "a key of 300,000 parts": (f"{RULE}a{'.a' * 300_000} = 1\n", "dots"),
    "a table of 150,000 parts": (f"[{'a.' * 150_000}a]\n{RULE}", "dots"),
}


@pytest.mark.parametrize("lie", LIES)
def test_configuration_that_lies_is_refused_with_its_line(lie: str) -> None:
    text, said = LIES[lie]
    with pytest.raises(BadConfig, match=said):
        parse(text, "x")


@pytest.mark.parametrize(
    "text",
    [
        '[[push]]\nname = "a"\ntype = "otlp"\nurl = "https://h"\nheaders = { Authorization = "Bearer hunter2" }\n',
        '[[push]]\nname = "a"\ntype = "otlp"\nurl = "https://user:hunter2@h"\n',
        '[[push]]\nname = "a"\ntype = "bucket"\nurl = "s3://key:hunter2@bucket"\n',
    ],
)
def test_error_of_a_setting_never_shows_a_secret(text: str) -> None:
    with pytest.raises(BadConfig) as found:
        parse(RULE + text, "x")
    assert "hunter2" not in "".join(map(str, found.value.errors)) + str(found.value)


def test_table_that_is_declared_twice_is_named() -> None:
    with pytest.raises(BadConfig, match=r"the table \[windows\] is declared twice"):
        parse(f"[windows]\n[windows]\n{RULE}", "x")


def test_of_very_many_errors_the_first_hundred_are_told() -> None:
    with pytest.raises(BadConfig) as found:
        parse(RULE + "".join(f"k{number} = 1\n" for number in range(80_000)), "x")
    assert len(found.value.errors) == 100


def test_configuration_that_others_may_write_is_refused_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(RULE)
    path.chmod(0o644)
    arguments = argparse.Namespace(config=str(path), spool=None, cpu_budget=None)
    assert len(agent._load(arguments).rules) == 1
    path.chmod(0o664)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UsageError, match="users other than root may write"):
        agent._load(arguments)
