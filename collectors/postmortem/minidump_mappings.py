"""The mappings of a crash dump's process: its modules, other mappings that the dump states, and regions of stacks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from pyprof.model.modules import Mapping
from pyprof.objfile.minidump.crash_dump import CrashDump, DumpModule, DumpRegion

DEVICE = "dump"
UNKNOWN_PERMS = "r-xp"
"""Permissions of a module of which a crash dump states no mappings."""

AT_SYSINFO_EHDR = 33


def read_mappings(dump: CrashDump) -> tuple[Mapping, ...]:
    """Return the mappings of a crash dump's process, ascending and without overlaps. The file offset of a module's
    mapping is its distance from the base.
    """
    regions = _ascending(dump.regions)
    starts = [region.start for region in regions]
    found: list[Mapping] = []
    end = 0
    modules = sorted(dump.modules, key=lambda module: (module.base, -module.size))
    for number, module in enumerate(modules, 1):
        if module.base < end:
            dump.oddities["module_overlap"] += 1
            continue
        following = modules[number].base if number < len(modules) else module.base + module.size
        end = min(module.base + module.size, following) if following > module.base else module.base + module.size
        found += _of_module(module, end, number, regions, starts)
    stacks = [
        DumpRegion(start, start + size, "rw-p") for start, size in (thread.stack for thread in dump.threads) if size
    ]
    for others in (regions, _ascending(stacks)):
        found = sorted([*found, *_between(others, found, dump)], key=lambda mapping: mapping.start)
    return tuple(found)


def _ascending(regions: Iterable[DumpRegion]) -> list[DumpRegion]:
    """Return the memory regions of a crash dump in ascending order, without those that overlap an earlier one."""
    kept: list[DumpRegion] = []
    for region in sorted(regions, key=lambda region: (region.start, -region.end)):
        if region.end <= 1 << 64 and (not kept or region.start >= kept[-1].end):
            kept.append(region)
    return kept


def _of_module(
    module: DumpModule, end: int, number: int, regions: Sequence[DumpRegion], starts: Sequence[int]
) -> Iterator[Mapping]:
    first = max(bisect_right(starts, module.base) - 1, 0)
    inside = [
        region
        for region in regions[first : bisect_left(starts, end)]
        if region.end > module.base and region.start < end
    ]
    if not any("x" in region.perms for region in inside):
        inside = [DumpRegion(module.base, end, UNKNOWN_PERMS)]
    path = module.path or "[module]"
    for region in inside:
        low, high = max(region.start, module.base), min(region.end, end)
        yield Mapping(low, high, region.perms, low - module.base, DEVICE, number, path)


def _between(regions: Sequence[DumpRegion], taken: Sequence[Mapping], dump: CrashDump) -> Iterator[Mapping]:
    """Yield the parts of a crash dump's regions that no other mapping covers."""
    vdso = dump.auxv.get(AT_SYSINFO_EHDR, 0)
    at = 0
    for region in regions:
        start = region.start
        while at < len(taken) and taken[at].end <= start:
            at += 1
        place = at
        while start < region.end:
            end = min(region.end, taken[place].start) if place < len(taken) else region.end
            if start < end:
                name = "[vdso]" if start <= vdso < end else region.path if region.path.startswith("[") else ""
                yield Mapping(start, end, region.perms, 0, "00:00", 0, name)
            if place >= len(taken) or taken[place].end >= region.end:
                break
            start = taken[place].end
            place += 1
