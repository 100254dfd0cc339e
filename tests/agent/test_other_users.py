"""Tests of requests by processes of other users: the socket's mode and the peer's credentials decide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.fleet.agent.control_socket import NAME, ControlRequest, ControlSocket

NOBODY, GROUP = 65534, 4711
ASK = """
import os, socket, sys
user, *groups = map(int, sys.argv[3:])
os.setgroups(groups)
os.setresgid(user, user, user)
os.setresuid(user, user, user)
asker = socket.socket(socket.AF_UNIX)
try:
    asker.connect(sys.argv[1])
except PermissionError:
    print('{"refused": "by the kernel"}')
else:
    try:
        asker.sendall(sys.argv[2].encode())
    except BrokenPipeError:  # it has its answer already
        pass
    print(asker.makefile().readline())
"""

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0, reason="other users are wanted")]


@pytest.fixture
def spool() -> Iterator[Path]:
    """Yield a spool folder whose control socket answers members of the group."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        listening = ControlSocket(lambda request, asker: asker.say(done=1), lambda peer, outcome: None)
        listening.begin(str(root), str(GROUP))
        yield root
        listening.close()


def asked(spool: Path, user: int, groups: list[int]) -> dict[str, object]:
    """Send a request as a process of this user and these groups, and return the agent's response."""
    line = ControlRequest("checkout", 1, 99).line().decode()
    command = [sys.executable, "-ISc", ASK, str(spool / NAME), line, *map(str, (user, *groups))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_members_of_the_group_and_root_are_answered(spool: Path) -> None:
    assert asked(spool, NOBODY, [GROUP]) == {"done": 1}
    assert asked(spool, 0, []) == {"done": 1}


def test_others_do_not_get_to_the_socket(spool: Path) -> None:
    assert asked(spool, NOBODY, []) == {"refused": "by the kernel"}


def test_others_are_refused_by_their_credentials_where_the_mode_lets_them_through(spool: Path) -> None:
    spool.chmod(0o755)
    (spool / NAME).chmod(0o666)
    assert asked(spool, NOBODY, [])["refused"] == "ask_not_allowed"
    assert asked(spool, NOBODY, [GROUP]) == {"done": 1}
