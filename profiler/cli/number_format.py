"""Numbers and texts as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def percent(part: float, total: float) -> str:
    """Format a share with one decimal. Only a complete share is "100 %", and only an empty one is "0 %"."""
    if total <= 0 or part <= 0:
        return "0 %"
    if part >= total:
        return "100 %"
    share = 100 * (part / total)
    return "<0.1 %" if share < 0.1 else f"{min(share, 99.9):.1f} %"


def many(count: int, what: str, plural: str = "") -> str:
    """Format a number with its noun: "1 sample", "1,234 samples"."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def duration(ns: float) -> str:
    """Format nanoseconds with at most four digits: "9.8 s", "312 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= 0.9995 * size:  # 999.7 ms are 1.0 s, not 1,000 ms
            return f"{ns / size:,.0f} {unit}" if ns >= 100 * size else f"{ns / size:.1f} {unit}"
    return f"{ns:.0f} ns"


def shorten(text: str, width: int) -> str:
    """Cut a text to at most width characters."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def shorten_middle(text: str, width: int) -> str:
    """Cut the middle of a text to at most width characters. The end, which usually says more, keeps twice as much."""
    if len(text) <= width:
        return text
    head = max(width - 1, 0) // 3
    tail = max(width - 1 - head, 0)
    return f"{text[:head]}…{text[len(text) - tail :]}"[: max(width, 0)]


def shorten_apart(texts: Sequence[str], width: int) -> list[str]:
    """Cut texts to at most width characters: only their beginnings remain, or both ends of texts whose beginnings are
    equal. Texts that differ only in the middle keep the middle.
    """
    short = [shorten(text, width) for text in texts]
    for at in list_equal(texts, short):
        short[at] = shorten_middle(texts[at], width)
    return keep_apart(texts, short, width)


def keep_apart(texts: Sequence[str], short: Sequence[str], width: int) -> list[str]:
    """Replace shortened texts that are equal, though the texts differ, by the part in which they differ."""
    found = list(short)
    for at, alike in list_equal(texts, short).items():
        found[at] = _shorten_around(texts[at], max(_first_difference(texts[at], other) for other in alike), width)
    return found


def list_equal(texts: Sequence[str], short: Sequence[str]) -> dict[int, list[str]]:
    """Return the other texts with the same short form, by the index of each text that has any."""
    seen: dict[str, dict[str, None]] = {}
    for text, cut in zip(texts, short, strict=True):
        seen.setdefault(cut, {})[text] = None
    rows = enumerate(zip(texts, short, strict=True))
    return {at: [each for each in seen[cut] if each != text] for at, (text, cut) in rows if len(seen[cut]) > 1}


def _first_difference(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _shorten_around(text: str, at: int, width: int) -> str:
    """Cut a text to at most width characters around the one at an index."""
    room = max(width - 2, 1)
    start = max(min(at - room // 3, len(text) - room), 0)
    end = start + room
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"[: max(width, 0)]
