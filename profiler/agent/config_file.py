"""A file of settings, of the agent or the server: TOML that only its owner may write, and errors with their lines."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any

from pyprof.errors import UsageError
from pyprof.objfile.byte_source import open_regular
from pyprof.records import dataclass

_MAX_BYTES = 1 << 20
_MAX_DOTS = 1000
"""Maximum number of dots in a line of a configuration file: tomllib's time grows with the square of a key's parts."""
_TOML_TABLE = re.compile(r"Cannot declare \((.*)\) twice")
_TOML_KEY = r"'([^']*)'"
_TOML_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, order=True)
class ConfigError:
    """An error in a line of a configuration file, counted from 1."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


class BadConfig(UsageError):
    """A configuration with errors, which are sorted by line."""

    def __init__(self, name: str, errors: list[ConfigError]) -> None:
        self.errors = sorted(errors)
        more = f" ({len(errors)} errors)" if len(errors) > 1 else ""
        super().__init__(f"{name}, {self.errors[0]}{more}", "--check --config FILE lists all of them")


def read(path: str) -> str:
    """Read a configuration file of the agent or the server.

    Raises:
        UsageError: The file cannot be read, or root would read a file that other users may write.
    """
    try:
        with open(open_regular(path), "rb") as file:
            found = os.fstat(file.fileno())
            if os.geteuid() == 0 and (found.st_uid or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
                raise UsageError(f"users other than root may write {path}", f"chown root {path}; chmod go-w {path}")
            return file.read(_MAX_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        raise UsageError(f"{path} cannot be read: {reason}") from None


def document(text: str, name: str) -> dict[str, Any]:
    """Parse the TOML text of a configuration file.

    Args:
        name: Name of the file.

    Raises:
        BadConfig: The text is not TOML.
    """
    for number, each in enumerate(text.split("\n"), 1):
        if each.count(".") > _MAX_DOTS:
            raise BadConfig(name, [ConfigError(number, f"there are more than {_MAX_DOTS:,} dots in it")])
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number with thousands of digits
        match = _TOML_LINE.search(str(error))
        line = int(match[1]) if match else text.count("\n") + 1
        raise BadConfig(name, [ConfigError(line, _toml_problem(_TOML_LINE.sub("", str(error))))]) from None


def _toml_problem(text: str) -> str:
    """Convert a message of tomllib to one that names the table of the configuration file."""
    table = _TOML_TABLE.fullmatch(text)
    if table:
        return f"the table [{'.'.join(re.findall(_TOML_KEY, table[1]))}] is declared twice"
    return "a key is set twice" if text == "Cannot overwrite a value" else text
