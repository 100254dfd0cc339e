"""Text and JSON that are UTF-8 whatever the target's names are: a file name is bytes, and need not be any text."""

from __future__ import annotations

import orjson


def clean(text: str) -> str:
    """Text without lone surrogates (bytes of a file name that are no UTF-8): those as `\\udcNN`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def dumps(document: object, option: int = 0) -> bytes:
    """JSON of dicts, lists and tuples, all texts clean. option: orjson's."""
    try:
        return orjson.dumps(document, option=option)
    except TypeError:  # orjson refuses surrogates
        return orjson.dumps(_cleaned(document), option=option)


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
