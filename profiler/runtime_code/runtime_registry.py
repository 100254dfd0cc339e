"""The managed runtimes that pyprof reads. A new one is a folder and a row here."""

from __future__ import annotations

import re

from pyprof.runtime_code.base import RuntimeKind
from pyprof.runtime_code.hotspot.code_cache import STUB_LIST
from pyprof.runtime_code.hotspot.java_code_source import HotspotCode
from pyprof.runtime_code.hotspot.vm_structs import SYMBOLS as HOTSPOT_SYMBOLS
from pyprof.runtime_code.v8.heap import SYMBOL_PREFIXES as V8_SYMBOLS
from pyprof.runtime_code.v8.javascript_code_source import V8Code

RUNTIMES = (
    RuntimeKind(HotspotCode, (*HOTSPOT_SYMBOLS, STUB_LIST)),
    RuntimeKind(V8Code, V8_SYMBOLS, re.compile(r"(?:node|nodejs|nsolid)[-.\d]*|libnode\.so.*")),
)
SYMBOL_PREFIXES = tuple(prefix for kind in RUNTIMES for prefix in kind.symbols)


def may_run(name: str) -> bool:
    """Return True if a file of this name may contain a runtime that runs its functions by code in its file."""
    return any(kind.programs is not None and kind.programs.fullmatch(name) for kind in RUNTIMES)
