"""What was saved of a window under way, as segments."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from pyprof.agent.rules import RuleVerdict
from pyprof.agent.so_far import packed, restored
from pyprof.agent.splitting import labelled, segments
from pyprof.importers import pprof
from pyprof.model.profile import Profile
from pyprof.model.selected import selected
from pyprof.records import replace
from tests.exporters.profiles import golden

WINDOW = "a" * 32


def whole() -> Profile:
    profile = replace(golden(), start_ns=10**18)
    first = int(profile.time_ns.min())
    threads = tuple(replace(thread, pid=1 + at % 2) for at, thread in enumerate(profile.threads))
    profile = replace(profile, time_ns=profile.time_ns - first + 10**18, threads=threads)
    return labelled(profile, lambda pid, _: RuleVerdict("web", (("service", f"web-{pid}"),)))


def part(profile: Profile, start_ns: int, end_ns: int) -> Profile:
    within = (profile.time_ns >= start_ns) & (profile.time_ns < end_ns)
    return replace(selected(profile, within), start_ns=start_ns, duration_ns=end_ns - start_ns)


def saved(folder: Path, *parts: Profile) -> list[str]:
    for at, each in enumerate(parts):
        (folder / f"{at}").write_bytes(packed(each))
    return [str(folder / f"{at}") for at in range(len(parts))]


def told(found: Profile) -> Counter[tuple[str, ...]]:
    """Of each stack how much there was of it."""
    counts: Counter[tuple[str, ...]] = Counter()
    for node, value in zip(found.stack.tolist(), found.values[:, 0].tolist(), strict=True):
        names = []
        while node > 0:
            names.append(found.frames[int(found.frame[node])].title)
            node = int(found.parent[node])
        counts[tuple(names)] += value
    return counts


def of(data: bytes) -> Profile:
    return pprof.read(data, "window")


def test_parts_are_the_segments_of_their_window(tmp_path: Path) -> None:
    """What an agent of before saved is of all so far: it counts once. One that is broken costs itself."""
    profile = whole()
    times = np.sort(profile.time_ns)
    cuts = [10**18, int(times[len(times) // 3]), int(times[2 * len(times) // 3]), int(times[-1]) + 1]
    parts = [part(profile, *span) for span in pairwise(cuts)]
    assert all(len(each.stack) for each in parts)
    expected = [told(of(each.data)) for each in segments(part(profile, cuts[0], cuts[-1]), (), WINDOW)]
    assert len(expected) > 1
    broken: list[str] = []
    paths = saved(tmp_path, part(profile, cuts[0], cuts[1] - 1), *parts)
    found = restored(paths[1:], WINDOW, lambda: broken.append("broken"))
    assert [told(of(each.data)) for each in found] == expected
    assert [told(of(each.data)) for each in restored(paths, WINDOW, lambda: None)] == expected
    assert {each.name.end_ns for each in found} == {cuts[-1]}
    (tmp_path / "1").write_bytes(b"no recording")
    left = restored(paths[1:], WINDOW, lambda: broken.append("broken"))
    assert sum((told(of(each.data)) for each in left), Counter()) == sum(
        (told(of(each.data)) for each in segments(part(profile, cuts[1], cuts[-1]), (), WINDOW)), Counter()
    )
    assert broken == ["broken"]
    assert restored(paths[1:2], WINDOW, lambda: None) == ()


def test_parts_that_are_not_of_one_window_keep_no_agent_from_starting(tmp_path: Path) -> None:
    profile = whole()
    half, end = profile.start_ns + profile.duration_ns // 2, profile.start_ns + profile.duration_ns
    kinds = tuple(replace(each, type=f"{each.type} of others") for each in profile.value_types)
    first, second = part(profile, profile.start_ns, half), replace(part(profile, half, end), value_types=kinds)
    broken: list[str] = []
    assert restored(saved(tmp_path, first, second), WINDOW, lambda: broken.append("broken")) == ()
    assert broken == ["broken"]
