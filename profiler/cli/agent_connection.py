"""The connection of a command to the running agent of a spool."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyprof.agent.control_protocol import STATE, StateRequest, answers
from pyprof.agent.control_socket import NAME, REQUEST_S, address, folder_of
from pyprof.errors import AccessDenied, FormatError, PyprofError


class NoAgent(PyprofError):
    """No agent runs that uses this spool."""


@contextmanager
def connected(root: str) -> Iterator[socket.socket]:
    """Yield a connection to the running agent.

    Raises:
        PyprofError: There is no agent, or it may not be used.
    """
    try:
        folder = folder_of(root)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(address(folder))
            finally:
                os.close(folder)
            yield connection
    except PermissionError:
        hint = "as a member of record.group in its configuration, as its user, or as root"
        raise AccessDenied(f"{root}/{NAME} may not be used by this user", hint) from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise NoAgent(f"no agent answers in {root}", "pyprof agent, or --spool DIR, --config FILE") from None
    except TimeoutError:
        raise PyprofError("the agent does not answer") from None
    except OSError as error:
        raise PyprofError(f"the agent cannot be asked: {error.strerror or error}") from None


def agent_state(root: str) -> dict[str, Any]:
    """Return the state of the agent that runs on a spool, as Agent.state() makes it.

    Raises:
        NoAgent: No agent runs.
        PyprofError: The agent may not be used, or its answer is wrong.
    """
    import orjson

    with connected(root) as connection:
        connection.settimeout(REQUEST_S)
        connection.sendall(StateRequest.LINE)
        try:
            with connection.makefile("rb") as lines:
                data = [answer.data for answer in answers(lines.readline, lines.read) if answer.kind == STATE]
            found = orjson.loads(data[0]) if data else None
        except (FormatError, orjson.JSONDecodeError):
            found = None
    if not isinstance(found, dict) or not {"status", "failures", "budget"} <= found.keys():
        raise PyprofError("the agent's answer is no state", "an agent and a command of the same version")
    return found
