"""What is said on the agent's socket: one line that asks, then lines that answer, some of which announce a file.

    asker   {"service": "checkout", "seconds": 30, "rate": 499, "mode": ""}
    agent   {"refused": "ask_busy", "text": "..."}               and no more, or
            {"recording": 3, "mode": "cpu", "last_s": 600}       of so many processes; then, when it has ended,
            {"kept": BYTES}                                      a recording file of a window of before, any number
            {"asked": BYTES}                                     the one that was asked for
            {"done": 1}

Lines are JSON objects. An asker that closes its half of the connection wants no more samples and gets what there is.
Each side takes the other for hostile: lines and files have limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from pyprof.errors import FormatError, PyprofError
from pyprof.model.reason_requests import ASKS
from pyprof.options import MOST_RATE_HZ, SIMPLE_MODES
from pyprof.records import dataclass

MOST_LINE = 4096
MOST_S = 300.0
MOST_TIMES = 150_000
"""Sampling times of one recording that is asked for: 300 s at 499 Hz."""
MOST_FILES, MOST_BYTES = 4096, 1 << 30
"""Of one answer."""
REFUSED, RECORDING, KEPT, ASKED, DONE = "refused", "recording", "kept", "asked", "done"
OUTCOMES = ("answered", "gone", *(reason.name for reason in ASKS))
"""What comes of those who ask."""
_SENTENCES = {reason.name: reason for reason in ASKS}


class AskRefused(PyprofError):
    """The agent does not do what it is asked for. reason: a row of reason_requests.ASKS."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(text or _SENTENCES[reason].sentence, _SENTENCES[reason].retry)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AskRequest:
    """mode: "" for the first one of the rule."""

    service: str
    seconds: float
    rate: float
    mode: str = ""

    def line(self) -> bytes:
        asked = {"service": self.service, "seconds": self.seconds, "rate": self.rate, "mode": self.mode}
        return json.dumps(asked).encode() + b"\n"


def parse(line: bytes) -> AskRequest:
    """Raises AskRefused."""
    found = _object(line)
    if found is None or not found.keys() <= {"service", "seconds", "rate", "mode"}:
        raise AskRefused("ask_malformed")
    service, mode = found.get("service"), found.get("mode", "")
    if not isinstance(service, str) or not service or mode not in ("", *SIMPLE_MODES):
        raise AskRefused("ask_malformed")
    seconds, rate = _number(found.get("seconds")), _number(found.get("rate"))
    if not 0 < seconds <= MOST_S:
        raise AskRefused("ask_too_much", f"a recording that is asked for lasts at most {MOST_S:.0f} s")
    if not 0 < rate <= MOST_RATE_HZ or seconds * rate > MOST_TIMES:
        raise AskRefused("ask_too_much", f"more than {MOST_TIMES:,} sampling times are too many for one recording")
    return AskRequest(service, seconds, rate, mode)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line) if len(line) <= MOST_LINE else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float:
    """0 of what is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9 else 0.0


@dataclass(frozen=True, slots=True)
class AskAnswer:
    """kind: REFUSED, RECORDING, KEPT, ASKED or DONE. number: of its line. fields: the line. data: of KEPT and ASKED."""

    kind: str
    number: int
    fields: dict[str, Any]
    data: bytes = b""


def answers(line: Callable[[int], bytes], read: Callable[[int], bytes]) -> Iterator[AskAnswer]:
    """Until DONE. line: the next one, of at most so many bytes, with its end; read: so many bytes. Raises AskRefused,
    FormatError.
    """
    files = total = 0
    while True:
        text = line(MOST_LINE)
        found = _object(text)
        if found is None or not text.endswith(b"\n"):
            raise FormatError("answer", total, "the agent ended the connection" if not text else "no answer")
        if REFUSED in found:
            raise _refusal(found)
        kind = next((kind for kind in (RECORDING, KEPT, ASKED, DONE) if kind in found), "")
        number = found.get(kind)
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise FormatError("answer", total, "no answer")
        data = b""
        if kind in (KEPT, ASKED):
            files, total = files + 1, total + number
            if files > MOST_FILES or total > MOST_BYTES:
                raise FormatError("answer", total, "the answer is too long")
            data = read(number)
            if len(data) < number:
                raise FormatError("answer", total, "the agent ended the connection")
        yield AskAnswer(kind, number, found, data)
        if kind == DONE:
            return


def _refusal(found: dict[str, Any]) -> AskRefused:
    """Of an agent that may be newer: its words are text, whatever they are."""
    word = found[REFUSED]
    reason = word if isinstance(word, str) and word in _SENTENCES else "ask_failed"
    return AskRefused(reason, str(found.get("text", ""))[:MOST_LINE])
