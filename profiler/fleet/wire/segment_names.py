"""Names of segments: DAY/SERVICE/END_NS-UUID.pb.gz. A name holds all that is known of a segment without reading its
file.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from functools import lru_cache
from urllib.parse import quote, unquote

from pyprof.lazy_dataclasses import dataclass

SUFFIX = ".pb.gz"
PART = ".part"
"""Suffix of the name of an unfinished segment file; such a name begins with a dot."""
_NAME = re.compile(r"(\d{1,19})-([0-9a-f]{32})\.pb\.gz")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
OTHER = "other"
"""Name of the service to which an agent assigns processes beyond the maximum number of services in a window."""
_LONGEST = 200
"""Maximum number of characters in the name of a folder of segments."""
_DIGEST = 16
_KEY = 16
_DAY_S, _DAYS = 86_400, 1000


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The name of a segment: its day, service, end and id.

    Attributes:
        day: Day of the window's end, UTC.
        folder: Name of the service, encoded as the name of a folder.
        end_ns: End of the window since the epoch.
        key: Unique key of the segment.
    """

    day: str
    folder: str
    end_ns: int
    key: str

    @classmethod
    def new(cls, service: str, end_ns: int, window: str = "") -> SegmentName:
        """Create a segment's name. Segments of a service with the same window key get the same segment key; without a
        window key the segment key is random.
        """
        day = day_of(end_ns)
        key = uuid.uuid4().hex
        if window:
            of = f"{window} {service}".encode("utf-8", "replace")
            key = hashlib.blake2b(of, digest_size=_KEY).hexdigest()
        return cls(day, folder_of(service), end_ns, key)

    @classmethod
    def parse(cls, day: str, folder: str, name: str) -> SegmentName | None:
        """Parse the parts of a segment's path. Return None if they are not the name of a segment."""
        match = _NAME.fullmatch(name)
        if match is None or not _DAY.fullmatch(day) or not folder or folder.startswith("."):
            return None
        return cls(day, folder, int(match[1]), match[2])

    @property
    def name(self) -> str:
        return f"{self.end_ns}-{self.key}{SUFFIX}"

    @property
    def path(self) -> str:
        """The path of a segment, relative to the spool's folder or to a queue's folder."""
        return f"{self.day}/{self.folder}/{self.name}"

    @property
    def service(self) -> str:
        return unquote(self.folder)


def folder_of(service: str) -> str:
    """Return the name of the folder for the segments of a service. Special characters become %XX, and a long name is
    cut and ends with its digest.
    """
    found = quote(service or "unknown", safe="", errors="replace").replace("~", "%7E")
    found = f"%2E{found[1:]}" if found.startswith(".") else found
    if len(found) > _LONGEST:
        digest = hashlib.blake2b(service.encode("utf-8", "replace"), digest_size=_DIGEST // 2).hexdigest()
        cut = found[: _LONGEST - _DIGEST - 1]
        found = f"{cut[: cut.rindex('%')] if '%' in cut[-2:] else cut}-{digest}"
    return found


@lru_cache(_DAYS)
def _day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * _DAY_S))


def day_of(end_ns: int) -> str:
    """Return the UTC day of a time as text, which is the name of a folder of segments."""
    return _day(end_ns // (_DAY_S * 1_000_000_000))


def is_day(name: str) -> bool:
    return bool(_DAY.fullmatch(name))


def is_part(name: str) -> bool:
    return name.startswith(".") and name.endswith(PART)


def default_spool() -> str:
    """Return the default folder of the agent's spool: one in /var/lib for root, and one in the user's state directory
    for other users.
    """
    if os.geteuid() == 0:
        return "/var/lib/pyprof/spool"
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "pyprof", "spool")
