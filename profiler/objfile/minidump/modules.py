"""The modules of a minidump: MINIDUMP_MODULE and the CodeView record that identifies it.

PDB 7.0 ("RSDS") has a GUID, the age and the name of the PDB. Crashpad writes it for ELF modules too, with the first 16
bytes of their build ID. PDB 2.0 ("NB10") has a time stamp and the age. "BpEL" (reversed in the file) of Linux has the
build ID.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pyprof.model.modules import base_name
from pyprof.objfile.breakpad.ids import format_guid
from pyprof.objfile.minidump.crash_dump import DumpModule, DumpRegion

MAX_MODULES = 1 << 16
ELF_SYSTEMS = frozenset({"linux", "android"})


def read_modules(base: int, size: int, path: str, record: bytes, system: str) -> list[DumpModule]:
    """Return the module of one entry of a minidump's module list, or an empty list if its size is 0.

    Args:
        base: Address of the module in the process.
        size: Size in bytes.
        path: Path, as the target names it.
        record: CodeView record of the module, b"" if there is none.
        system: Operating system, as in CrashDump.os.
    """
    if not size or base + size > 1 << 64:
        return []
    debug_id = build_id = ""
    name = base_name(path)
    if record[:4] == b"RSDS" and len(record) >= 24:
        (age,) = struct.unpack_from("<I", record, 20)
        identifier = record[4:20]
        if any(identifier):
            debug_id = format_guid(identifier, "little") + f"{age:X}"
        if system in ELF_SYSTEMS:
            build_id = identifier.hex() if any(identifier) else ""
        name = base_name(_text(record[24:])) or name
    elif record[:4] == b"NB10" and len(record) >= 16:
        stamp, age = struct.unpack_from("<II", record, 8)
        debug_id = f"{stamp:08X}{age:X}"
        name = base_name(_text(record[16:])) or name
    elif record[:4] == b"LEpB" and any(record[4:]):
        build_id = record[4:].hex()
        debug_id = format_guid(record[4:], "little") + "0"
    return [DumpModule(base, size, path, debug_id, build_id, name)]


def infer_modules(regions: Sequence[DumpRegion], objects: Sequence[tuple[int, str]]) -> list[DumpModule]:
    """Return modules for a crash dump without a module list: adjacent mappings of one file each.

    The loader's list gives better names. The identities of the modules are unknown.

    Args:
        regions: The mappings.
        objects: (load bias, name) of the loader's objects.
    """
    found: list[DumpModule] = []
    named = {bias: name for bias, name in objects if name}
    for region in regions[:MAX_MODULES]:
        if not region.path or region.path.startswith("["):
            continue
        last = found[-1] if found else None
        if last is not None and last.path == region.path:
            found[-1] = DumpModule(last.base, region.end - last.base, last.path, debug_name=last.debug_name)
            continue
        path = named.get(region.start, region.path)
        found.append(DumpModule(region.start, region.end - region.start, region.path, debug_name=base_name(path)))
    return found


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace")
