"""From a segment to rows of the database (tables.sql)."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Mapping

import numpy as np

from pyprof.agent.segments import SegmentName
from pyprof.errors import FormatError
from pyprof.importers import pprof
from pyprof.model.labels import Labels
from pyprof.model.profile import FrameKind, Profile
from pyprof.records import dataclass
from pyprof.server.frames import text_of

StoreRow = Mapping[str, object]
HOST = "host"
"""The label that names the machine."""
_MOST_FRAMES = 2000
"""Of a stack; the innermost ones of a deeper one are left out."""
_HALF = 8
_BARE = re.compile(r"!0x[0-9a-f]+$")
"""How a function is named of which only the beginning is known."""
_MOST_VALUE = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """By table. windows: the row that makes the others count; it is inserted last."""

    name: SegmentName
    windows: StoreRow
    samples: list[StoreRow]
    stacks: list[StoreRow]
    series: list[StoreRow]
    builds: list[StoreRow]


def rows_of(tenant: str, name: SegmentName, data: bytes) -> SegmentRows:
    """Raises FormatError."""
    try:
        profile = pprof.read(data, name.service)
    except OverflowError as error:
        raise FormatError("pprof", 0, str(error)) from None
    if len(profile.values) and (
        profile.values.min() < 0 or int(profile.values.max()) > _MOST_VALUE // len(profile.values)
    ):
        raise FormatError("pprof", 0, "values below 0, or too large")
    return _Rows(tenant, name, profile).rows()


class _Rows:
    def __init__(self, tenant: str, name: SegmentName, profile: Profile) -> None:
        self._name, self._profile = name, profile
        day = time.strftime("%Y-%m-%d", time.gmtime(name.end_ns // 10**9))
        self._stack_key = {"day": day, "tenant": tenant}
        self._key = {**self._stack_key, "type": profile.value_types[-1].type, "service": name.service}
        self._timed = {**self._key, "end_ns": name.end_ns, "batch": secrets.randbits(63)}

    def rows(self) -> SegmentRows:
        profile = self._profile
        texts = [text_of(frame, profile.modules) for frame in profile.frames]
        labels = [thread.labels for thread in profile.threads]
        numbers = [number_of(each) for each in labels]
        stacks, samples = self._samples(texts, numbers)
        series: list[StoreRow] = [
            {
                **self._key,
                "series": number,
                "names": [_utf8(name) for name, _ in each],
                "label_values": [_utf8(value) for _, value in each],
            }
            for number, each in dict(zip(numbers, labels, strict=True)).items()
        ]
        hosts = {dict(each).get(HOST, "") for each in labels}
        windows = {
            **self._timed,
            "unit": profile.value_types[-1].unit,
            "host": _utf8(min(hosts, default="")),
            "segment": self._name.path,
            "length_ns": profile.duration_ns,
            "amount": int(profile.total),
            "samples": len(samples),
        }
        return SegmentRows(self._name, windows, samples, stacks, series, self._builds())

    def _samples(self, texts: list[str], numbers: list[int]) -> tuple[list[StoreRow], list[StoreRow]]:
        """The stacks, and one row of each stack and label set."""
        profile = self._profile
        parent, frame = profile.parent.tolist(), profile.frame.tolist()
        halves: dict[int, tuple[int, int]] = {}
        stacks: list[StoreRow] = []
        sums: dict[tuple[int, int], list[int]] = {}
        columns = profile.stack.tolist(), profile.thread.tolist(), profile.values[:, -1].tolist()
        counts = profile.values[:, 0].tolist()
        for node, thread, value, count in zip(*columns, counts, strict=True):
            found = sums.setdefault((node, numbers[thread]), [0, 0])
            found[0] += value
            found[1] += count
        for node in dict.fromkeys(node for node, _ in sums):
            up, frames = node, []
            while up:
                frames.append(texts[frame[up]])
                up = parent[up]
            frames = frames[::-1][:_MOST_FRAMES]
            halves[node] = hash_of(frames)
            stacks.append({**self._stack_key, "stack": halves[node][0], "stack2": halves[node][1], "frames": frames})
        samples: list[StoreRow] = [
            {
                **self._timed,
                "series": series,
                "stack": halves[node][0],
                "stack2": halves[node][1],
                "value": value,
                "count": n,
            }
            for (node, series), (value, n) in sums.items()
        ]
        return stacks, samples

    def _builds(self) -> list[StoreRow]:
        """Of each file in which time was spent: how much, and what of it has no names or was cut off there."""
        profile = self._profile
        amounts: dict[int, list[int]] = {}
        by_leaf = np.bincount(profile.stack, profile.values[:, -1], len(profile.parent)).tolist()
        frame, parent = profile.frame.tolist(), profile.parent.tolist()
        for node, amount in enumerate(by_leaf):
            if not amount:
                continue
            leaf = profile.frames[frame[node]] if node else None
            if leaf is not None and leaf.module >= 0:
                found = amounts.setdefault(leaf.module, [0, 0, 0])
                found[0] += int(amount)
                found[1] += 0 if leaf.lines and not _BARE.search(leaf.title) else int(amount)
            cut_in = self._cut_in(node, frame, parent)
            if cut_in >= 0:
                amounts.setdefault(cut_in, [0, 0, 0])[2] += int(amount)
        keys = ("amount", "unnamed", "cut")
        return [
            {
                **self._timed,
                "path": _utf8(profile.modules[module].path),
                "build_id": _utf8(profile.modules[module].build_id),
                **dict(zip(keys, found, strict=True)),
            }
            for module, found in amounts.items()
        ]

    def _cut_in(self, node: int, frame: list[int], parent: list[int]) -> int:
        """The module of the outermost frame of code below a marker that says that the stack was cut; -1 if none."""
        before = -1
        while node:
            found = self._profile.frames[frame[node]]
            if parent[node] == 0 and found.kind == FrameKind.MARKER and found.mark is not None:
                return before
            before = found.module if found.kind != FrameKind.MARKER else before
            node = parent[node]
        return -1


def number_of(labels: Labels) -> int:
    """Of a set of labels."""
    return hash_of([part for pair in labels for part in pair])[0]


def hash_of(texts: list[str]) -> tuple[int, int]:
    """The two halves of 128 bits over length-prefixed texts: no two lists are alike by where one text ends."""
    digest = hashlib.blake2b(digest_size=2 * _HALF)
    for text in texts:
        data = text.encode("utf-8", "replace")
        digest.update(len(data).to_bytes(4, "little"))
        digest.update(data)
    found = digest.digest()
    return int.from_bytes(found[:_HALF], "little"), int.from_bytes(found[_HALF:], "little")


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
