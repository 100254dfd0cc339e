"""Tests of turning checkpoints of an unfinished window into segments."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pyprof.fleet.agent.process_rules import RuleVerdict
from pyprof.fleet.agent.process_table import ProcessLabels
from pyprof.fleet.agent.push_segment_to_pprof import parts
from pyprof.fleet.agent.scale_to_cpu_time import ProcessTime
from pyprof.fleet.agent.windows import WindowPart, labelled, packed, restored, segments
from pyprof.fleet.server.ingest.segment_to_rows import rows_of
from pyprof.fleet.server.ingest.stack_caches import StoredStackCache
from pyprof.importers import pprof
from pyprof.lazy_dataclasses import replace
from pyprof.model.analysis.sample_filter import selected
from pyprof.model.loss_reason_texts import Note, join_pids, make_note
from pyprof.model.marker_frames import NOT_SAMPLED
from pyprof.model.profile import Frame, FrameKind, Profile, ValueType
from pyprof.model.thread_identity import ProcessKey
from pyprof.model.unwind_result import Trust
from pyprof.session.worker import response_codec
from tests.exporters.profiles import golden

WINDOW = "a" * 32


def whole() -> Profile:
    """Return the golden profile with the pids that names() expects."""
    profile = replace(golden(), start_ns=10**18)
    first = int(profile.time_ns.min())
    threads = tuple(
        replace(thread, pid=1 + at % 2, process_started=5 * 10**9 * (at // 2))
        for at, thread in enumerate(profile.threads)
    )
    return replace(profile, time_ns=profile.time_ns - first + 10**18, threads=threads)


def of_process(pid: int, started_ns: int) -> tuple[tuple[str, str], ...]:
    return (("service", f"web-{pid}-{started_ns // 10**9}"),)


def judged(profile: Profile) -> Profile:
    return labelled(profile, lambda pid, started_ns: RuleVerdict("web", of_process(pid, started_ns)))


def part(profile: Profile, start_ns: int, end_ns: int) -> Profile:
    within = (profile.time_ns >= start_ns) & (profile.time_ns < end_ns)
    return replace(selected(profile, within), start_ns=start_ns, duration_ns=end_ns - start_ns)


def saved(
    folder: Path, *parts: Profile, times: Sequence[Sequence[ProcessTime]] = (), unsampled_ns: int = 0
) -> list[str]:
    for at, each in enumerate(parts):
        began = {thread.process_key for thread in each.threads}
        labels = [ProcessLabels(pid, began_ns + 9_999_999, of_process(pid, began_ns)) for pid, began_ns in began]
        checkpoint = WindowPart(response_codec.packed_value(each), times[at] if times else None, unsampled_ns)
        (folder / f"{at}").write_bytes(packed(checkpoint, (Note("a_note"),), labels))
    return [str(folder / f"{at}") for at in range(len(parts))]


def told(found: Profile) -> Counter[tuple[str, ...]]:
    """Return the total value of each stack, keyed by frame titles from leaf to root."""
    counts: Counter[tuple[str, ...]] = Counter()
    for node, value in zip(found.stack.tolist(), found.values[:, 0].tolist(), strict=True):
        names = []
        while node > 0:
            names.append(found.frames[int(found.frame[node])].title)
            node = int(found.parent[node])
        counts[tuple(names)] += value
    return counts


def of(data: bytes) -> Profile:
    return pprof.read_pprof(data, "window")


def test_parts_are_the_segments_of_their_window(tmp_path: Path) -> None:
    profile = whole()
    times = np.sort(profile.time_ns)
    cuts = [10**18, int(times[len(times) // 3]), int(times[2 * len(times) // 3]), int(times[-1]) + 1]
    parts = [part(profile, *span) for span in pairwise(cuts)]
    assert all(len(each.stack) for each in parts)
    paths = saved(tmp_path, *parts)
    found = restored(paths, WINDOW, pytest.fail)
    expected = segments(judged(part(profile, cuts[0], cuts[-1])), {}, WINDOW)
    assert len({each.name.service for each in found}) > 2, "two processes had one number"
    assert [each.name for each in found] == [each.name for each in expected]
    assert [told(of(each.data)) for each in found] == [told(of(each.data)) for each in expected]
    assert {each.name.end_ns for each in found} == {cuts[-1]}
    assert all(b"a_note" in gzip.decompress(each.data) for each in found)


def test_notes_stand_only_in_segments_of_the_services_that_they_are_about() -> None:
    profile = judged(whole())
    pid, other = list(dict.fromkeys(thread.pid for thread in profile.threads))[:2]
    notes = (
        make_note("by_program_because", why="CPython 3.11 runs in it"),
        make_note("by_stops_in_part", processes=2, why="it runs other code", pids=join_pids([pid, other])),
        make_note("process_left_out", why="no rights for 77", pids=join_pids([77])),
        make_note("never_stopped"),
    )
    profile = replace(profile, summary=replace(profile.summary, notes=notes))
    texts = {each.name.service: gzip.decompress(each.data) for each in segments(profile, {"idle": {77}}, WINDOW)}
    stopped = {dict(thread.labels)["service"] for thread in profile.threads if thread.pid in (pid, other)}
    assert all(b"program in the kernel" in text and b"never stopped" in text for text in texts.values())
    assert not any(b"CPython 3.11 runs" in text for text in texts.values())
    assert {service for service, text in texts.items() if b"no rights" in text} == {"idle"}
    assert {service for service, text in texts.items() if b"other code" in text} == stopped
    assert not any(b"2 processes" in text for text in texts.values())


def test_segment_without_samples_has_the_labels_of_its_service_and_the_value_zero() -> None:
    labels = (("host", "a"), ("service", "idle"))
    found = segments(judged(whole()), {"idle": {77}}, WINDOW, labels={"idle": labels})
    (data,) = (each.data for each in found if each.name.service == "idle")
    rows = rows_of("default", found[0].name, data, StoredStackCache())
    assert (rows.host, rows.values.tolist()) == ("a", [0])
    assert list(parts(data, "idle")) == []


def test_not_sampled_time_in_a_note_is_that_of_the_service() -> None:
    profile = judged(replace(whole(), value_types=(ValueType("samples", "count"), ValueType("cpu", "nanoseconds"))))
    node, frame = len(profile.parent), len(profile.frames)
    mark = Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, "too brief", NOT_SAMPLED)
    stack = profile.stack.copy()
    stack[0] = node
    notes = (
        make_note("too_short", seconds=3.0, spent_s=7.0, percent=42.9),
        make_note("times_missed", seconds=2.0, spent_s=7.0, percent=28.6),
    )
    profile = replace(
        profile,
        stack=stack,
        frames=(*profile.frames, mark),
        parent=np.append(profile.parent, np.int32(0)),
        frame=np.append(profile.frame, np.int32(frame)),
        summary=replace(profile.summary, notes=notes),
    )
    service = dict(profile.threads[profile.thread[0]].labels)["service"]
    own = [dict(profile.threads[at].labels)["service"] == service for at in profile.thread]
    row_s, sum_s = profile.values[0, -1] / 1e9, profile.values[own, -1].sum() / 1e9
    texts = {each.name.service: gzip.decompress(each.data).decode("latin-1") for each in segments(profile, {}, WINDOW)}
    assert len(texts) > 1
    assert {service for service, text in texts.items() if "Not sampled: " in text} == {service}
    assert f"Not sampled: {row_s:.2f} s of {sum_s:.2f} s of processor time" in texts[service]
    assert all("In all services of the window together, sampling times" in text for text in texts.values())


def on_cpu() -> tuple[Profile, Profile, list[ProcessKey]]:
    """Return two halves of a window of on-CPU samples, and the keys of its processes."""
    profile = replace(whole(), value_types=(ValueType("samples", "count"), ValueType("cpu", "nanoseconds")))
    half, end = int(np.median(profile.time_ns)), int(profile.time_ns.max()) + 1
    keys = list(dict.fromkeys(thread.process_key for thread in profile.threads))
    return part(profile, profile.start_ns, half), part(profile, half, end), keys


def test_recovered_window_has_the_sums_of_the_kernels_clocks(tmp_path: Path) -> None:
    """A process of which nothing was sampled is not missing."""
    first, second, keys = on_cpu()
    times = [[ProcessTime(*key, "p", 10**9 + at + nth) for at, key in enumerate(keys)] for nth in range(2)]
    times[1].append(ProcessTime(keys[0][0], keys[0][1] + 10**12, "idle", 7))
    found = restored(saved(tmp_path, first, second, times=times), WINDOW, pytest.fail)
    sums = {each.name.service: of(each.data).total for each in found}
    expected = {dict(of_process(*key))["service"]: 2 * 10**9 + 1 + 2 * at for at, key in enumerate(keys)}
    nearest = dict(of_process(*max(key for key in keys if key[0] == keys[0][0])))["service"]
    assert sums == expected | {nearest: expected[nearest] + 7}
    for each in found:
        text = gzip.decompress(each.data)
        assert b"by the kernel's clocks" in text
        assert b"was killed in this window" in text


def test_recovered_window_has_the_time_before_its_first_sample(tmp_path: Path) -> None:
    profile, first = whole(), whole().threads[0]
    cuts = [10**18, int(np.median(profile.time_ns)), int(profile.time_ns.max()) + 1]
    parts = [part(profile, *span) for span in pairwise(cuts)]
    times = [[ProcessTime(first.pid, first.process_started, "x", 4 * 10**9)], []]
    found = restored(saved(tmp_path, *parts, times=times, unsampled_ns=3 * 10**9), WINDOW, pytest.fail)
    spans = {(each.start_ns, each.start_ns + each.duration_ns) for each in (of(one.data) for one in found)}
    assert spans == {(cuts[0] - 3 * 10**9, cuts[-1])}


def test_recovered_window_without_clocks_says_that_sums_are_those_of_samples(tmp_path: Path) -> None:
    first, second, _ = on_cpu()
    for each in restored(saved(tmp_path, first, second), WINDOW, pytest.fail):
        text = gzip.decompress(each.data)
        assert b"Sums are the times that samples stand for" in text
        assert b"by the kernel's clocks" not in text


def another_class(good: bytes, head: int) -> bytes:
    """Return the checkpoint with another class name and a valid checksum."""
    changed = good[head + 1 :].replace(b"Profile", b"Proview")
    checksum = str(zlib.crc32(good[head + 1 :])).encode(), str(zlib.crc32(changed)).encode()
    return good[: head + 1].replace(*checksum) + changed


def test_part_that_is_broken_costs_itself(tmp_path: Path) -> None:
    profile = whole()
    half, end = int(np.median(profile.time_ns)), int(profile.time_ns.max()) + 1
    first, second = saved(tmp_path, part(profile, profile.start_ns, half), part(profile, half, end))
    good = Path(first).read_bytes()
    head = good.index(b"\n", 30)
    expected = [told(of(each.data)) for each in segments(judged(part(profile, half, end)), {}, WINDOW)]
    for data in (
        b"",
        b"no part",
        good[:-1],
        good[:-1] + bytes([good[-1] ^ 1]),
        good + b"x",
        good[: head + 1],
        good.replace(response_codec.layout().encode(), b"0" * 32),
        good.replace(b'"sizes": [', b'"sizes": [-1, 1, '),
        good.replace(b'"labels": [[', b'"labels": [[1], ['),
        good.replace(b'"processes": [[', b'"processes": [[1, 2, 99], ['),
        another_class(good, head),
        b"[]".join((good[:24], b"\n")),
    ):
        assert data != good
        Path(first).write_bytes(data)
        broken: list[str] = []
        found = restored([first, second], WINDOW, lambda broken=broken: broken.append("broken"))  # type: ignore[misc]
        assert broken == ["broken"], data[:60]
        assert [told(of(each.data)) for each in found] == expected
        assert restored([first], WINDOW, lambda: None) == ()


def test_parts_that_are_not_of_one_window_keep_no_agent_from_starting(tmp_path: Path) -> None:
    profile = whole()
    half, end = profile.start_ns + profile.duration_ns // 2, profile.start_ns + profile.duration_ns
    kinds = tuple(replace(each, type=f"{each.type} of others") for each in profile.value_types)
    first, second = part(profile, profile.start_ns, half), replace(part(profile, half, end), value_types=kinds)
    broken: list[str] = []
    assert restored(saved(tmp_path, first, second), WINDOW, lambda: broken.append("broken")) == ()
    assert broken == ["broken"]
