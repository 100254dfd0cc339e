"""A strict reader of the Firefox processed profile format, version 60, which accepts only what its types allow."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

FRAME_COLUMNS = {
    *("address", "inlineDepth", "category", "subcategory", "func", "nativeSymbol", "innerWindowID", "line", "column"),
}
TABLES = {
    "sources": {"id", "filename"},
    "stackTable": {"frame", "prefix"},
    "frameTable": FRAME_COLUMNS,
    "funcTable": {"name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber"},
    "resourceTable": {"lib", "name", "host", "type"},
    "nativeSymbols": {"libIndex", "address", "name", "functionSize"},
}
LIB = {"arch", "name", "path", "debugName", "debugPath", "breakpadId", "codeId"}


@dataclass(frozen=True)
class Marker:
    """A marker of a track.

    Attributes:
        begin: Start in nanoseconds since the start of the profile.
        end: End in nanoseconds since the start of the profile.
        stack: Function names from root to leaf.
    """

    name: str
    begin: int
    end: int
    data: dict[str, Any]
    stack: tuple[str, ...]


@dataclass
class Track:
    """A thread of the profile.

    Attributes:
        times: Time of each sample in nanoseconds.
        weights: Weight of each sample in nanoseconds, or a count.
        rows: Row in the stack table of each sample.
        cpu: Processor time of each sample in nanoseconds, if the profile has it.
    """

    name: str
    process: str
    pid: str
    tid: int | str
    main: bool
    times: list[int]
    weights: list[int]
    kind: str
    rows: list[int]
    cpu: list[int] | None
    markers: list[Marker] = field(default_factory=list)


@dataclass
class FirefoxProfile:
    document: dict[str, Any]
    tracks: list[Track]

    @property
    def shared(self) -> dict[str, Any]:
        found: dict[str, Any] = self.document["shared"]
        return found

    def frames(self, row: int) -> list[dict[str, Any]]:
        """Return the frames of a stack from root to leaf with all indices resolved."""
        found: list[dict[str, Any]] = []
        at: int | None = row
        while at is not None:
            found.append(self._frame(self.shared["stackTable"]["frame"][at]))
            at = self.shared["stackTable"]["prefix"][at]
        return found[::-1]

    def names(self, row: int) -> tuple[str, ...]:
        return tuple(frame["name"] for frame in self.frames(row))

    def stacks(self, track: Track) -> Counter[tuple[str, ...]]:
        """Return the weight of each stack of one track."""
        found: Counter[tuple[str, ...]] = Counter()
        for row, weight in zip(track.rows, track.weights, strict=True):
            found[self.names(row)] += weight
        return found

    def _frame(self, at: int) -> dict[str, Any]:
        shared = self.shared
        frame = {key: shared["frameTable"][key][at] for key in FRAME_COLUMNS}
        func, source = frame["func"], shared["funcTable"]["source"][frame["func"]]
        category = self.document["meta"]["categories"][frame["category"]]
        strings, resource = shared["stringArray"], shared["funcTable"]["resource"][func]
        return frame | {
            "name": strings[shared["funcTable"]["name"][func]],
            "file": None if source is None else strings[shared["sources"]["filename"][source]],
            "lib": None if resource < 0 else self.document["libs"][shared["resourceTable"]["lib"][resource]],
            "category": category["name"],
            "subcategory": category["subcategories"][frame["subcategory"]],
        }


def read(data: bytes) -> FirefoxProfile:
    document = json.loads(gzip.decompress(data))
    assert document.keys() == {"meta", "libs", "threads", "shared"}
    meta, shared = document["meta"], document["shared"]
    assert (meta["preprocessedProfileVersion"], meta["interval"] > 0) == (60, True)
    assert meta["categories"][0]["color"] == "grey"
    assert all(category["subcategories"][0] == "Other" for category in meta["categories"])
    assert all(lib.keys() == LIB for lib in document["libs"])
    assert shared.keys() == {"stringArray", *TABLES}
    for name, columns in TABLES.items():
        _check_table(shared[name], columns)
    _check_indices(document)
    found = FirefoxProfile(document, [])
    assert document["threads"]
    found.tracks = [_track(found, thread) for thread in document["threads"]]
    identities = [(track.pid, track.tid) for track in found.tracks]
    assert len(set(identities)) == len(identities)
    return found


def _check_table(table: dict[str, Any], columns: set[str]) -> None:
    assert table.keys() == {"length", *columns}
    assert all(len(table[column]) == table["length"] for column in columns)


def _check_indices(document: dict[str, Any]) -> None:
    shared, categories = document["shared"], document["meta"]["categories"]
    strings, libs = len(shared["stringArray"]), len(document["libs"])
    assert all(isinstance(text, str) for text in shared["stringArray"])
    stacks, frames, funcs = shared["stackTable"], shared["frameTable"], shared["funcTable"]
    assert all(parent is None or 0 <= parent < at for at, parent in enumerate(stacks["prefix"]))
    within(stacks["frame"], frames["length"])
    within(frames["func"], funcs["length"])
    within(frames["nativeSymbol"], shared["nativeSymbols"]["length"], None)
    assert all(-1 <= address < 1 << 32 for address in frames["address"] + shared["nativeSymbols"]["address"])
    assert all(depth >= 0 for depth in frames["inlineDepth"])
    for category, subcategory in zip(frames["category"], frames["subcategory"], strict=True):
        within([category], len(categories))
        within([subcategory], len(categories[category]["subcategories"]))
    within(funcs["name"], strings)
    within(funcs["resource"], shared["resourceTable"]["length"], -1)
    within(funcs["source"], shared["sources"]["length"], None)
    within(shared["sources"]["filename"], strings)
    within(shared["resourceTable"]["name"], strings)
    within(shared["resourceTable"]["lib"], libs)
    within(shared["nativeSymbols"]["libIndex"], libs)
    within(shared["nativeSymbols"]["name"], strings)


def within(indices: list[Any], length: int, *nothing: int | None) -> None:
    """Assert that all indices are within the length or one of the values that stand for no index."""
    assert all(index in nothing or 0 <= index < length for index in indices)


def _track(profile: FirefoxProfile, thread: dict[str, Any]) -> Track:
    samples, markers = thread["samples"], thread["markers"]
    cpu = samples.get("threadCPUDelta")
    kind = samples.pop("weightType")
    _check_table(samples, {"stack", "time", "weight", *(["threadCPUDelta"] if cpu is not None else [])})
    _check_table(markers, {"name", "startTime", "endTime", "phase", "category", "data"})
    within(samples["stack"], profile.shared["stackTable"]["length"])
    assert samples["time"] == sorted(samples["time"])
    assert kind in ("samples", "tracing-ms", "bytes")
    assert isinstance(thread["pid"], str)
    scale = 1_000_000 if kind == "tracing-ms" else 1
    return Track(
        thread["name"],
        thread["processName"],
        thread["pid"],
        thread["tid"],
        thread["isMainThread"],
        [nanoseconds(time) for time in samples["time"]],
        [round(weight * scale) for weight in samples["weight"]],
        kind,
        samples["stack"],
        cpu,
        [_marker(profile, markers, at) for at in range(markers["length"])],
    )


def _marker(profile: FirefoxProfile, markers: dict[str, Any], at: int) -> Marker:
    data, categories = markers["data"][at], profile.document["meta"]["categories"]
    assert markers["phase"][at] == 1
    assert data["type"] in {schema["name"] for schema in profile.document["meta"]["markerSchema"]}
    within([markers["category"][at]], len(categories))
    within([data["cause"]["stack"]], profile.shared["stackTable"]["length"])
    begin, end = nanoseconds(markers["startTime"][at]), nanoseconds(markers["endTime"][at])
    assert begin <= end
    name = profile.shared["stringArray"][markers["name"][at]]
    return Marker(name, begin, end, data, profile.names(data["cause"]["stack"]))


def nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1_000_000)
