"""A parser of XML from a stub, by events: no tree, no entities, nothing fetched."""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

from pyprof.errors import RemoteError

Start = Callable[[str, dict[str, str]], None]


def parse_xml(
    what: str,
    text: bytes,
    start: Start,
    end: Callable[[str], None] | None = None,
    words: Callable[[str], None] | None = None,
) -> None:
    """Parse a document and call the handlers, which may raise KeyError and ValueError for missing or invalid
    attributes.

    Raises:
        RemoteError: The document is not valid.
    """
    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    if end is not None:
        parser.EndElementHandler = end
    if words is not None:
        parser.CharacterDataHandler = words

    def refuse(*_: object) -> None:
        raise RemoteError(f"the stub's {what} defines entities")

    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except (expat.ExpatError, KeyError, ValueError) as error:
        raise RemoteError(f"the stub's {what} is broken: {error}") from None
