"""The protocol of the control socket: a request line, then response lines, some of which announce a file.

    client  {"service": "checkout", "seconds": 30, "rate": 499, "mode": ""}
    agent   {"refused": "ask_busy", "text": "..."}               and nothing more, or
            {"recording": 3, "mode": "cpu", "last_s": 600}       number of processes; then, after the recording,
            {"kept": BYTES}                                      a recording file of a stored window, any number
            {"asked": BYTES}                                     the requested recording
            {"done": 1}

    client  {"state": 1}
    agent   {"state": BYTES}                                     the state of the agent as JSON: Agent.state()
            {"done": 1}

Lines are JSON objects. A client that closes its sending direction ends the recording and gets what there is. Each side
treats the other as hostile: lines and files have limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pyprof.errors import FormatError, PyprofError
from pyprof.model.fleet_reasons import ASKS
from pyprof.options import MAX_RATE_HZ, SIMPLE_MODES
from pyprof.records import dataclass

MAX_LINE = 4096
MAX_S = 300.0
MAX_TIMES = 150_000
"""Maximum number of sampling times of a requested recording: 300 s at 499 Hz."""
MAX_FILES, MAX_BYTES = 4096, 1 << 30
"""Maximum number of files, and of their bytes, in one response of the agent."""
REFUSED, RECORDING, KEPT, ASKED, STATE, DONE = "refused", "recording", "kept", "asked", "state", "done"
OUTCOMES = ("answered", "gone", *(reason.name for reason in ASKS))
"""Outcomes of requests at the agent's control socket."""
_SENTENCES = {reason.name: reason for reason in ASKS}


class ControlRefused(PyprofError):
    """The agent refuses a request; reason is a row of fleet_reasons.ASKS."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or _SENTENCES[reason].sentence, _SENTENCES[reason].retry)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """A client's request for a recording of a service.

    Attributes:
        service: Name of the service.
        seconds: Length of the recording.
        rate: Samples per second.
        mode: Mode of the recording, "" for the first one in the rule of the agent's configuration.
    """

    service: str
    seconds: float
    rate: float
    mode: str = ""

    def line(self) -> bytes:
        asked = {"service": self.service, "seconds": self.seconds, "rate": self.rate, "mode": self.mode}
        return json.dumps(asked).encode() + b"\n"


class StateRequest:
    """A client's request for the state of the agent."""

    LINE = b'{"state": 1}\n'


def parse(line: bytes) -> ControlRequest | StateRequest:
    """Parse a request line of the agent's control socket.

    Raises:
        ControlRefused: The request is malformed, or asks for too much.
    """
    found = _object(line)
    if found == {STATE: 1}:
        return StateRequest()
    if found is None or not found.keys() <= {"service", "seconds", "rate", "mode"}:
        raise ControlRefused("ask_malformed")
    service, mode = found.get("service"), found.get("mode", "")
    if not isinstance(service, str) or not service or mode not in ("", *SIMPLE_MODES):
        raise ControlRefused("ask_malformed")
    seconds, rate = _number(found.get("seconds")), _number(found.get("rate"))
    if not 0 < seconds <= MAX_S:
        raise ControlRefused("ask_too_much", f"a recording that is asked for lasts at most {MAX_S:.0f} s")
    if not 0 < rate <= MAX_RATE_HZ or seconds * rate > MAX_TIMES:
        raise ControlRefused("ask_too_much", f"more than {MAX_TIMES:,} sampling times are too many for one recording")
    return ControlRequest(service, seconds, rate, mode)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line) if len(line) <= MAX_LINE else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float:
    """Return a number of a request, and 0 for anything that is no number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9 else 0.0


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """A response line of the agent's control socket.

    Attributes:
        kind: REFUSED, RECORDING, KEPT, ASKED, STATE or DONE.
        number: Number in the line.
        fields: All fields of the line.
        data: The file that follows a KEPT, ASKED or STATE line.
    """

    kind: str
    number: int
    fields: dict[str, Any]
    data: bytes = b""


def answers(line: Callable[[int], bytes], read: Callable[[int], bytes]) -> Iterator[ControlResponse]:
    """Yield the lines of the agent's response until DONE.

    Args:
        line: Reads a line of at most that many bytes, including its end.
        read: Reads that many bytes.

    Raises:
        ControlRefused: The agent refused the request.
        FormatError: The response is malformed or ends early.
    """
    files = total = 0
    while True:
        text = line(MAX_LINE)
        found = _object(text)
        if found is None or not text.endswith(b"\n"):
            raise FormatError("answer", total, "the agent ended the connection" if not text else "no answer")
        if REFUSED in found:
            raise _refusal(found)
        kind = next((kind for kind in (RECORDING, KEPT, ASKED, STATE, DONE) if kind in found), "")
        number = found.get(kind)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise FormatError("answer", total, "no answer")
        data = b""
        if kind in (KEPT, ASKED, STATE):
            files, total = files + 1, total + number
            if files > MAX_FILES or total > MAX_BYTES:
                raise FormatError("answer", total, "the answer is too long")
            data = read(number)
            if len(data) < number:
                raise FormatError("answer", total, "the agent ended the connection")
        yield ControlResponse(kind, number, found, data)
        if kind == DONE:
            return


def _refusal(found: dict[str, Any]) -> ControlRefused:
    """Return the refusal of the agent in a response. The agent may be newer, so its reason may be unknown."""
    word = found[REFUSED]
    reason = word if isinstance(word, str) and word in _SENTENCES else "ask_failed"
    return ControlRefused(reason, str(found.get("text", ""))[:MAX_LINE])
