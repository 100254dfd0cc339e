"""Tests of the server's configuration: the lines of its errors, and tokens of its tenants."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.fleet.server.config import parse
from pyprof.fleet.toml_config_files import BadConfig


def token(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_error_of_a_tenant_has_the_line_of_its_table(tmp_path: Path) -> None:
    good = token(tmp_path, "good", "0123456789abcdef")
    text = "".join(
        f'[[tenant]]\nname = "{name}"\nread_token_file = "{path}"\n\n'
        for name, path in (("one", good), ("two", f"{tmp_path}/none"))
    )
    with pytest.raises(BadConfig) as caught:
        parse(text, "server.toml")
    assert [error.line for error in caught.value.errors] == [5]


def test_token_that_writes_and_reads_is_refused(tmp_path: Path) -> None:
    same = token(tmp_path, "same", "0123456789abcdef")
    other = token(tmp_path, "other", "fedcba9876543210")
    text = '[[tenant]]\nname = "one"\nread_token_file = "{}"\nwrite_token_file = "{}"\n'
    assert len(parse(text.format(same, other), "server.toml").tenants[0].tokens) == 2
    with pytest.raises(BadConfig, match="the same token"):
        parse(text.format(same, same), "server.toml")
