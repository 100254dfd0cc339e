"""Text forms of numbers for people, and of function names that are shortened to the width of the terminal.

exporters/assets/page.names.js shortens names in the same way for the HTML page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence


def percent(part: float, total: float) -> str:
    """Format a share as a percentage with one decimal. Only a complete share is "100 %", and only an empty one is "0
    %".
    """
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
    """Cut the middle out of a text, to at most `width` characters. The end usually says more, so it keeps twice as much
    as the beginning.
    """
    if len(text) <= width:
        return text
    head = max(width - 1, 0) // 3
    tail = max(width - 1 - head, 0)
    return f"{text[:head]}…{text[len(text) - tail :]}"[: max(width, 0)]


def shorten_apart(texts: Sequence[str], width: int) -> list[str]:
    """Cut texts to at most `width` characters each, so that different texts stay different. If their beginnings are
    equal, a text keeps both ends; if these are equal too, it keeps the part in which it differs.
    """
    short = [shorten(text, width) for text in texts]
    for at in list_equal(texts, short):
        short[at] = shorten_middle(texts[at], width)
    return keep_apart(texts, short, width)


def keep_apart(texts: Sequence[str], short: Sequence[str], width: int) -> list[str]:
    """Return shortened texts that differ. Where different texts have the same short form, each gets the part in which
    they differ instead.
    """
    found = list(short)
    for at, alike in list_equal(texts, short).items():
        found[at] = _shorten_around(texts[at], max(_first_difference(texts[at], other) for other in alike), width)
    return found


def list_equal(texts: Sequence[str], short: Sequence[str]) -> dict[int, list[str]]:
    """Return for each text, by its index, the other texts that have the same short form. Texts with a unique short form
    are left out.
    """
    seen: dict[str, dict[str, None]] = {}
    for text, cut in zip(texts, short, strict=True):
        seen.setdefault(cut, {})[text] = None
    rows = enumerate(zip(texts, short, strict=True))
    return {at: [each for each in seen[cut] if each != text] for at, (text, cut) in rows if len(seen[cut]) > 1}


def _first_difference(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _shorten_around(text: str, at: int, width: int) -> str:
    """Cut a text to at most `width` characters around the character at index `at`."""
    room = max(width - 2, 1)
    start = max(min(at - room // 3, len(text) - room), 0)
    end = start + room
    return f"{'…' * (start > 0)}{text[start:end]}{'…' * (end < len(text))}"[: max(width, 0)]


_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}
_OPERATOR = re.compile(r"operator(?:\(\)|\[\]|->\*?|[<>=!+\-*/%^&|~,]{1,3}|\s+\w+(?:\[\])?)")
_ANONYMOUS = "(anonymous namespace)"
_TRAILER = re.compile(r"(?:const|volatile|noexcept|requires|\[|&|\(\.)")
_SCRIPT = re.compile(r"(\w+:[^:\s].*) \S*/([^/\s]+)", re.DOTALL)
"""Pattern of V8's function names: kind and function, a space, then the file with line and column."""
_PACKAGE = re.compile(r"[\w.~/-]+/([^/ ]+)")
"""Pattern of Go's function names, which begin with the whole path of the package."""
_PYTHON = re.compile(r"(?=.*<)(?:\w+|<\w+>)(?:\.(?:\w+|<\w+>))*")
"""Pattern of the name of a nested Python function, such as "outer.<locals>.inner": parts separated by dots, of which
some may be in angle brackets.
"""
_PARAMETER = re.compile(r"\[?[A-Z]\]?")
"""Pattern of a type parameter in a generic Rust function's name. The trait says more than such a parameter."""
_SCOPES = re.compile(r"(?<!\w)(?:\w++::)+(?=[\w{<\[(&*])")
_ABI = re.compile(r"\.(?:(?:cpython|pypy)\w?-?\d+\w*(?:-[\w-]{1,64})?|abi3)(?=\.so)")
"""Pattern of the part of an extension module's file name that states the ABI: ".cpython-311-x86_64-linux-gnu"."""
_LONGEST = 4096
"""Maximum number of characters of a function name that are parsed. Some names have 100,000 characters."""


def function_name(name: str, width: int) -> str:
    """Shorten a function's name to at most `width` characters.

    First the parameters, the return type and template arguments are removed, then traits, then outer scopes. If that is
    not enough, only the beginning and the end remain.
    """
    if len(name) <= width or name.startswith("["):  # a marker is a sentence
        return shorten(name, width)
    if _PYTHON.fullmatch(name[:_LONGEST]):
        return _of_python(name[:_LONGEST], width)
    if plain := _without_folders(name[:_LONGEST]):
        return shorten_middle(plain, width)
    whole = "::".join(_path(name[:_LONGEST], _owner_and_trait))
    if 0 < len(whole) <= width:
        return whole
    parts = _path(name[:_LONGEST], _owner)
    while parts:
        short = "::".join(parts)
        if len(short) <= width:
            return short
        if not any(
            not part.startswith(("{", "operator()")) for part in parts[1:]
        ):  # a closure is named by its function
            break
        parts = parts[1:]
    return shorten_middle("::".join(parts) or name[:_LONGEST], width)


def _of_python(name: str, width: int) -> str:
    """Shorten a Python function name: first <locals> is removed, then outer scopes. A function without a name, such as
    a lambda, keeps the name of its parent.
    """
    parts = [part for part in name.split(".") if part != "<locals>"]
    while len(".".join(parts)) > width and len(parts) > 1 and not all(part.startswith("<") for part in parts[1:]):
        parts = parts[1:]
    return shorten_middle(".".join(parts), width)


def _without_folders(name: str) -> str:
    """Return a function name of a script or of Go without the folders in its path, and "" for other names."""
    if script := _SCRIPT.fullmatch(name):
        return " ".join(script.groups())
    package = _PACKAGE.fullmatch(name) if "::" not in name and not name.endswith(")") else None
    return package[1] if package else ""


def function_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten function names to at most `width` characters each.

    Names that would become equal get a suffix: the first template argument or parameter that differs. Without such a
    one, they keep the part that differs.
    """
    names = [name[:_LONGEST] for name in names]
    plain = [function_name(name, width) for name in names]
    short = list(plain)
    for at, alike in list_equal(names, plain).items():
        own = shorten(_difference(names[at], alike), max(width // 2, 1))
        if own:
            short[at] = f"{function_name(names[at], max(width - len(own) - 3, 1))} <{own}>"
    return keep_apart(names, short, width)


def module_names(modules: Sequence[str], width: int) -> list[str]:
    """Shorten names of object files to at most `width` characters. The tag of the interpreter's version is removed from
    the name of an extension module.
    """
    return shorten_apart([_ABI.sub("", each[:_LONGEST]) if len(each) > width else each for each in modules], width)


def _difference(name: str, others: Sequence[str]) -> str:
    """Return the template argument or parameter in which a function name first differs from all other names. The result
    is empty if the names differ elsewhere.
    """
    texts = (name, *others)
    begin = next(
        (at for at, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1), min(map(len, texts))
    )
    begin = max(name.rfind(letter, 0, begin) for letter in "<(, ") + 1
    if not begin:
        return ""
    end = begin
    while end < len(name) and name[end] not in ">),":
        end = max(_close(name, end), end + 1) if name[end] in _CLOSING else end + 1
    return _SCOPES.sub("", name[begin:end].strip())


def _path(text: str, owner: Callable[[str], str]) -> list[str]:
    """Return the parts of a qualified C++ or Rust function name, outermost first, without the contents of brackets.

    Args:
        owner: Function that returns the text to show for Rust's <type> and <type as trait>.
    """
    parts: list[str] = []
    part = ""
    at = 0
    while at < len(text):
        letter = text[at]
        operator = _OPERATOR.match(text, at) if letter == "o" and not part[-1:].isalnum() else None
        if text.startswith(_ANONYMOUS, at):
            part += _ANONYMOUS
            at += len(_ANONYMOUS)
        elif operator is not None:
            part += operator[0]
            at = operator.end()
        elif text.startswith("::", at):
            if part and not text.startswith("::<", at):  # Rust's turbofish belongs to the part before it
                parts.append(part)
                part = ""
            at += 2
        elif letter == "{":
            end = _close(text, at)
            part += text[at:end]
            at = end
        elif letter in _CLOSING:
            end = _close(text, at)
            if letter == "<" and not part:
                part = owner(text[at + 1 : end - 1])
            at = end
        elif letter == " ":
            if _TRAILER.match(text, at + 1):
                break
            if text[at + 1 : at + 2] != "<":  # the return type ends here
                parts, part = [], ""
            at += 1
        else:
            part += letter
            at += 1
    return [*parts, part] if part else parts


def _owner(inside: str) -> str:
    """Return the last part of the type's name in Rust's <type> or <type as trait>. If the type is only a type
    parameter, return the last part of the trait's name.
    """
    of_type, trait = map(_last, _type_and_trait(inside))
    return trait if trait and _PARAMETER.fullmatch(of_type) else of_type


def _owner_and_trait(inside: str) -> str:
    """Shorten the type and the trait in Rust's <type as trait> to the last parts of their names, and return them in
    Rust's notation.
    """
    of_type, trait = map(_last, _type_and_trait(inside))
    return f"<{of_type} as {trait}>" if trait else of_type


def _last(path: str) -> str:
    of_type = path.lstrip("&").removeprefix("mut ").removeprefix("dyn ").removeprefix("impl ")
    return (_path(of_type, str) or [of_type])[-1]


def _type_and_trait(inside: str) -> tuple[str, str]:
    """Split Rust's "type as trait" into type and trait; the trait is "" if there is none."""
    at = 0
    while at < len(inside):
        if inside.startswith(" as ", at):
            return inside[:at], inside[at + 4 :]
        at = _close(inside, at) if inside[at] in _CLOSING else at + 1
    return inside, ""


def _close(text: str, at: int) -> int:
    """Return the index after the bracket that closes the bracket at index `at`, or the length of the text if none
    closes it. An arrow (->) is not a bracket.
    """
    awaited: list[str] = []
    while at < len(text):
        letter = text[at]
        if text.startswith("->", at):
            at += 1
        elif letter in _CLOSING:
            awaited.append(_CLOSING[letter])
        elif letter == awaited[-1]:
            awaited.pop()
            if not awaited:
                return at + 1
        at += 1
    return at
