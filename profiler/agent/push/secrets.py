"""Tokens and passwords, from files only. A file that other users may read or change is not used. A changed file is read
again, so that a token can be renewed while the agent runs.
"""

from __future__ import annotations

import base64
import os
import stat

from pyprof.agent.push.responses import NotSent
from pyprof.errors import FormatError
from pyprof.objfile.byte_source import open_regular
from pyprof.records import dataclass

_MAX_BYTES = 1 << 16
_OTHERS = stat.S_IRWXO | stat.S_IWGRP


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files with the credentials for a receiver: a bearer token, or the password of a user; "" for none."""

    token_file: str = ""
    user: str = ""
    password_file: str = ""

    def header(self) -> str:
        """Return the value of the Authorization header, "" for none.

        Raises:
            NotSent: A file cannot be used; the text has no secret.
        """
        if self.token_file:
            return f"Bearer {secret(self.token_file)}"
        if self.password_file:
            pair = f"{self.user}:{secret(self.password_file)}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return ""


def secret(path: str) -> str:
    """Return the token or password in the first line of a file.

    Raises:
        NotSent: The file cannot be used.
    """
    try:
        with open(open_regular(path), "rb") as file:
            mode = os.fstat(file.fileno())
            if mode.st_uid not in (0, os.geteuid()):
                raise NotSent("credentials", f"{path} is another user's file")
            if mode.st_mode & _OTHERS:
                raise NotSent("credentials", f"others may read or change {path}: chmod 600 {path}")
            text = file.read(_MAX_BYTES).split(b"\n", 1)[0].strip()
    except (OSError, FormatError) as error:
        raise NotSent("credentials", f"{path} cannot be read: {getattr(error, 'strerror', '') or error}") from None
    if not text or not text.isascii() or not text.decode().isprintable():
        raise NotSent("credentials", f"{path}: its first line is no token or password of printable letters")
    return text.decode()
