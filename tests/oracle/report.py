"""The oracle's result as text or JSON, with the symbol and instructions of each mismatch if gdb is available."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator

from elftools.elf.elffile import ELFFile

from tests.oracle.judge import Judge, Mismatch, Place
from tests.oracle.run import Result

MAX_SHOWN = 40


def lines(result: Result, most: int = MAX_SHOWN) -> Iterator[str]:
    """Yield the lines of the report."""
    rate = result.stepped / result.seconds if result.seconds else 0
    yield " ".join(result.command)
    yield (
        f"  {result.stepped} instructions in {result.seconds:.1f} s ({rate:.0f}/s), "
        f"{'to the end' if result.ended else 'stopped early'}, deepest stack {result.deepest + 1} frames"
    )
    yield f"  compared {result.compared} instructions in {len(result.visits)} states, {result.judge.frames} frames"
    yield f"  exact {_share(result.exact, result.compared)}"
    for path, (compared, exact) in result.by_module().items():
        yield f"    {_share(exact, compared)} of {compared:9d} in {path}"
    trust = ", ".join(f"{name} {count}" for name, count in result.judge.trust.most_common())
    yield f"  frames found by: {trust}"
    if result.judge.walkers_differ:
        yield f"  THE WALKERS DIFFER ({len(result.judge.walkers_differ)})"
        for text in result.judge.walkers_differ[:most]:
            yield f"    {text}"
    describe_all(m.place for m in result.mismatches)
    groups = _by_function(result.mismatches)
    for group in groups[:most]:
        yield from _group(result, group)
    if len(groups) > most:
        yield f"  and {len(groups) - most} more functions"
    counts = result.judge.diagnostics.counts
    if counts:
        yield "  counted: " + ", ".join(f"{key} {count}" for key, count in sorted(counts.items()))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 100:9.5f} %"


def _by_function(mismatches: list[Mismatch]) -> list[list[Mismatch]]:
    """Group mismatches of one kind in one function, sorted by address."""
    groups: dict[tuple[str, str, str], list[Mismatch]] = {}
    for mismatch in mismatches:
        function = describe(mismatch.place)[0].rpartition("+")[0] or describe(mismatch.place)[0]
        groups.setdefault((mismatch.place[0], function, mismatch.what), []).append(mismatch)
    return [sorted(group, key=lambda m: m.place) for group in groups.values()]


def _group(result: Result, group: list[Mismatch]) -> Iterator[str]:
    states = sum(len(m.keys) for m in group)
    instructions = sum(result.visits[key] for m in group for key in m.keys)
    trust: Counter[str] = sum((m.trust for m in group), Counter())
    by = ", ".join(f"{name} {count}" for name, count in trust.most_common())
    first = group[0]
    symbol, code = describe(first.place)
    yield (
        f"  {Judge.name(first.place)} {symbol}: {first.what}, {states} states, {instructions} instructions, by {by}"
        + (f", at {len(group)} places up to {group[-1].place[1]:#x}" if len(group) > 1 else "")
    )
    for text in code:
        yield f"      {text}"
    yield f"      expected {' '.join(first.expected)}"
    yield f"      found    {' '.join(first.found)}"
    others = [place for place, _ in first.innermost.most_common(3) if place != first.place]
    if others:
        yield "      innermost " + ", ".join(f"{Judge.name(p)} {describe(p)[0]}" for p in others)


def as_json(result: Result) -> dict[str, object]:
    """Return the report as JSON, with places as {"module", "svma"}."""

    def place(at: Place) -> dict[str, object]:
        return {"module": at[0], "svma": hex(at[1])}

    describe_all(m.place for m in result.mismatches)
    return {
        "command": list(result.command),
        "stepped": result.stepped,
        "ended": result.ended,
        "seconds": round(result.seconds, 3),
        "deepest": result.deepest + 1,
        "compared": result.compared,
        "states": len(result.visits),
        "exact": result.exact,
        "modules": {path: {"compared": c, "exact": e} for path, (c, e) in result.by_module().items()},
        "trust": dict(sorted(result.judge.trust.items())),
        "walkers_differ": result.judge.walkers_differ,
        "mismatches": [
            {
                **place(m.place),
                "symbol": describe(m.place)[0],
                "what": m.what,
                "states": len(m.keys),
                "instructions": sum(result.visits[key] for key in m.keys),
                "trust": dict(m.trust),
                "expected": m.expected,
                "found": m.found,
            }
            for m in result.mismatches
        ],
    }


_described: dict[Place, tuple[str, list[str]]] = {}


def describe(place: Place) -> tuple[str, list[str]]:
    """Return symbol+offset, [section]+offset or "", and the instructions at a place."""
    if place not in _described:
        describe_all([place])
    return _described[place]


def describe_all(places: Iterable[Place]) -> None:
    """Look up many places at once in gdb, which finds debug files by build ID."""
    by_path: dict[str, set[int]] = {}
    for path, svma in places:
        if (path, svma) not in _described:
            by_path.setdefault(path, set()).add(svma)
    for path, svmas in by_path.items():
        _described.update({(path, svma): ("", []) for svma in svmas})
        gdb = shutil.which("gdb")
        if gdb is not None and path.startswith("/"):
            _ask_gdb(gdb, path, sorted(svmas))


def _ask_gdb(gdb: str, path: str, svmas: list[int]) -> None:
    asked = []
    for svma in svmas:
        asked += ["-ex", f"echo {_MARK}\\n", "-ex", f"info symbol {svma:#x}", "-ex", f"x/3i {svma:#x}"]
    done = subprocess.run(
        [gdb, "-nx", "-batch", *asked, path], capture_output=True, text=True, timeout=120, check=False
    )
    answers = done.stdout.split(f"{_MARK}\n")[1:]
    for svma, answer in zip(svmas, answers, strict=False):
        first, *code = answer.splitlines() or [""]
        symbol = _section(path, svma) if "No symbol" in first else first.split(" in section")[0].replace(" + ", "+")
        _described[path, svma] = symbol, [line.strip() for line in code[:3]]


_MARK = "--- place"


def _section(path: str, svma: int) -> str:
    """Return a section with offset, such as "[.init]+4", for code without a symbol."""
    with open(path, "rb") as file:
        for section in ELFFile(file).iter_sections():
            start = section.header.sh_addr
            if start and start <= svma < start + section.header.sh_size:
                return f"[{section.name}]+{svma - start}"
    return ""
