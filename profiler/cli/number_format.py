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
    equal.
    """
    short = [shorten(text, width) for text in texts]
    seen: dict[str, set[str]] = {}
    for text, cut in zip(texts, short, strict=True):
        seen.setdefault(cut, set()).add(text)
    return [shorten_middle(text, width) if len(seen[cut]) > 1 else cut for text, cut in zip(texts, short, strict=True)]
