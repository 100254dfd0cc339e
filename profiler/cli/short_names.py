"""Function names shortened to the width of the terminal, as readers of C++ and Rust expect. exporters/assets/
page.names.js does the same for the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pyprof.cli.number_format import keep_apart, list_equal, shorten, shorten_apart, shorten_middle

_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}
_OPERATOR = re.compile(r"operator(?:\(\)|\[\]|->\*?|[<>=!+\-*/%^&|~,]{1,3}|\s+\w+(?:\[\])?)")
_ANONYMOUS = "(anonymous namespace)"
_TRAILER = re.compile(r"(?:const|volatile|noexcept|requires|\[|&|\(\.)")
_SCRIPT = re.compile(r"(\w+:[^:\s].*) \S*/([^/\s]+)", re.DOTALL)
"""Pattern of function names of V8: kind and function, a space, the file with line and column."""
_PACKAGE = re.compile(r"[\w.~/-]+/([^/ ]+)")
"""Pattern of function names of Go, which begin with the whole path of the package."""
_PYTHON = re.compile(r"(?=.*<)(?:\w+|<\w+>)(?:\.(?:\w+|<\w+>))*")
"""Pattern of Python's name of a nested function; a part in angle brackets is a separate part."""
_PARAMETER = re.compile(r"\[?[A-Z]\]?")
"""Pattern of a type parameter of a generic Rust function, which says less than its trait."""
_SCOPES = re.compile(r"(?<!\w)(?:\w++::)+(?=[\w{<\[(&*])")
_ABI = re.compile(r"\.(?:(?:cpython|pypy)\w?-?\d+\w*(?:-[\w-]{1,64})?|abi3)(?=\.so)")
"""Pattern of the part of an extension module's file name that states the ABI: ".cpython-311-x86_64-linux-gnu"."""
_LONGEST = 4096
"""Maximum number of characters of a function name that are parsed; some names have 100,000."""


def function_name(name: str, width: int) -> str:
    """Shorten a function's name to at most width characters.

    First the parameters, the return type and template arguments are removed, then traits, then outer scopes. At last
    only the beginning and the end remain.
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
    """Shorten a Python name: first <locals> is removed, then outer scopes. An unnamed function keeps its parent's
    name.
    """
    parts = [part for part in name.split(".") if part != "<locals>"]
    while len(".".join(parts)) > width and len(parts) > 1 and not all(part.startswith("<") for part in parts[1:]):
        parts = parts[1:]
    return shorten_middle(".".join(parts), width)


def _without_folders(name: str) -> str:
    """Return the function name of a script or of Go without folders, "" for other names."""
    if script := _SCRIPT.fullmatch(name):
        return " ".join(script.groups())
    package = _PACKAGE.fullmatch(name) if "::" not in name and not name.endswith(")") else None
    return package[1] if package else ""


def function_names(names: Sequence[str], width: int) -> list[str]:
    """Shorten function names to at most width characters each.

    Names that would become equal get a suffix: the first template argument or parameter that differs. Others keep the
    part that differs.
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
    """Return names of object files in at most width characters. Tags of an interpreter's version are removed from
    extension modules.
    """
    return shorten_apart([_ABI.sub("", each[:_LONGEST]) if len(each) > width else each for each in modules], width)


def _difference(name: str, others: Sequence[str]) -> str:
    """Return the template argument or parameter in which a function name first differs from all the others. The result
    is empty if the difference is elsewhere.
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
    """Return the parts of a qualified function name, outermost first, without what is in brackets.

    Args:
        owner: Returns what is shown for Rust's <type> and <type as trait>.
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
    """Return the last name of the type in Rust's <type> or <type as trait>, or that of the trait if the type is a
    parameter.
    """
    of_type, trait = map(_last, _type_and_trait(inside))
    return trait if trait and _PARAMETER.fullmatch(of_type) else of_type


def _owner_and_trait(inside: str) -> str:
    """Return the type and the trait in Rust's <type as trait> with their last names, in Rust's notation."""
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
    """Return the index behind the bracket that closes the bracket at `at`, or the text's length. An arrow (->) is not a
    bracket.
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
