"""Tests of OTLP profiles, read with the published messages: stacks, sums and attributes equal those of the profile."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given

from pyprof.exporters.display_names import frame_levels
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile
from pyprof.model.untrusted_text import clean_text
from tests.exporters.profiles import LABELS, LIBC, Builder, code, golden, profiles
from tests.exporters.support import PLAIN, export
from tests.support import missing

messages: Any = None
with suppress(ImportError):
    messages = import_module("opentelemetry.proto.profiles.v1development.profiles_pb2")


def read(profile: Profile) -> Any:
    """Parse the profile with the classes of opentelemetry-proto, and assert that it has no unknown fields."""
    if messages is None:
        missing("needs opentelemetry-proto: pip install -e .[dev]")
    data = export("otlp", profile)
    found = messages.ProfilesData.FromString(data)
    assert found.SerializeToString(deterministic=True) == again(data)
    for table in ("mapping", "location", "function", "link", "attribute", "stack"):
        first = getattr(found.dictionary, f"{table}_table")[0]
        assert first == type(first)(), table
    assert found.dictionary.string_table[0] == ""
    return found


def again(data: bytes) -> bytes:
    """Return the message with its fields in numeric order and without unknown fields."""
    found = messages.ProfilesData.FromString(data)
    found.DiscardUnknownFields()
    return bytes(found.SerializeToString(deterministic=True))


def stacks(found: Any, kind: str) -> Counter[tuple[int, str, tuple[str, ...]]]:
    """Return values by (pid, thread name, functions from root to leaf), and raise an error for an invalid index."""
    tables, sums = found.dictionary, Counter[tuple[int, str, tuple[str, ...]]]()
    text = tables.string_table
    for resource in found.resource_profiles:
        (pid,) = (each.value.int_value for each in resource.resource.attributes if each.key == "process.pid")
        for profile in resource.scope_profiles[0].profiles:
            if text[profile.sample_type.type_strindex] != kind:
                continue
            for sample in profile.samples:
                assert len(sample.values) == 1
                names = []
                for at in tables.stack_table[sample.stack_index].location_indices:
                    location = tables.location_table[at]
                    assert location.mapping_index < len(tables.mapping_table)
                    functions = [tables.function_table[line.function_index] for line in location.lines]
                    names += [text[each.name_strindex] for each in functions] or [f"{location.address:#x}"]
                about = attributes(tables, sample.attribute_indices)
                sums[pid, about.get("thread.name", ""), tuple(names[::-1])] += sample.values[0]
    return sums


def attributes(tables: Any, indices: Any) -> dict[str, Any]:
    rows = [tables.attribute_table[at] for at in indices]
    return {
        tables.string_table[row.key_strindex]: getattr(row.value, str(row.value.WhichOneof("value"))) for row in rows
    }


def expected(profile: Profile, column: int) -> Counter[tuple[int, str, tuple[str, ...]]]:
    sums = Counter[tuple[int, str, tuple[str, ...]]]()
    for thread, leaf, values in profile.totals():
        names = []
        for frame in profile.path(leaf):
            named = [level.name for level in frame_levels(profile, frame, PLAIN)]
            names += named if frame.lines or frame.title.startswith("[") or not frame.pc else [f"{frame.lookup:#x}"]
        info = profile.threads[thread]
        plain = tuple(map(clean_text, names))
        sums[info.pid, clean_text(info.name), plain] += int(values[column])
    return Counter({key: value for key, value in sums.items() if value})


@pytest.mark.parametrize(("column", "kind"), [(0, "samples"), (1, "cpu")])
def test_stacks_have_the_sums_of_the_profile(column: int, kind: str) -> None:
    found = stacks(read(golden()), kind)
    wanted = expected(golden(), column)
    kernel = {key for key in wanted if "do_sys" in key[2] or "0xffffffff81000000" in key[2]}
    assert {key: value for key, value in found.items() if "do_sys" not in key[2]} == {
        key: value for key, value in wanted.items() if key not in kernel
    }
    assert sum(found.values()) == sum(wanted.values()) > 0


@given(profiles())
def test_any_profile_is_read_with_all_of_its_value(profile: Profile) -> None:
    found = read(profile)
    total = sum(stacks(found, profile.value_types[-1].type).values())
    assert total == int(profile.values[:, -1].sum())


def test_facts_of_process_thread_and_file_are_attributes() -> None:
    found = read(golden())
    tables = found.dictionary
    first = found.resource_profiles[0]
    about = {each.key: each.value for each in first.resource.attributes}
    assert about["service.name"].string_value == "unknown_service:server"
    assert about["process.executable.name"].string_value == "server"
    profile = first.scope_profiles[0].profiles[0]
    sample = attributes(tables, profile.samples[0].attribute_indices)
    assert sample == {"thread.id": 100, "thread.name": "main", **dict(LABELS)}
    assert (profile.time_unix_nano, profile.duration_nano) == (golden().start_ns, golden().duration_ns)
    assert profile.period == golden().period_ns
    ids = [attributes(tables, row.attribute_indices) for row in tables.mapping_table]
    assert {"process.executable.build_id.gnu": LIBC.build_id} in ids
    kinds = [attributes(tables, row.attribute_indices).get("profile.frame.type") for row in tables.location_table]
    assert {"native", "kernel", None} == set(kinds)
    every = [each for entry in found.resource_profiles for each in entry.scope_profiles[0].profiles]
    assert len({each.profile_id for each in every}) == len(every) == 4
    assert all(len(each.profile_id) == 16 for each in every)


def test_service_is_what_a_label_says() -> None:
    builder = Builder([replace(golden().threads[0], labels=(("service.name", "shop"),))])
    builder.sample(builder.node([code("f")]))
    (resource,) = read(builder.build()).resource_profiles
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "shop"
