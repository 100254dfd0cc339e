"""Search for the list of registered unwind info in a module.

`_U_dyn_info_list` is hidden: only a symbol table that was not stripped has it, of the file or of its debug file. A
shared libunwind exports the function `_U_dyn_info_list_addr`, which only returns the list's address. The address is
decoded from its code.

    x86-64    [endbr64] [push %rbp; mov %rsp,%rbp] lea rel32(%rip),%rax [pop %rbp] ret      or mov from a GOT slot
    AArch64   [bti c] adrp x0, page; add x0, x0, #offset (or ldr x0, [x0, #slot]); ret
"""

from __future__ import annotations

import struct

from pyprof.model.arch import Arch
from pyprof.objfile.base import ObjectFile

LIST, LIST_ADDR = b"_U_dyn_info_list", b"_U_dyn_info_list_addr"
SYMBOLS = (LIST, LIST_ADDR)
MAX_CODE = 32

_PROLOGUES = (b"\xf3\x0f\x1e\xfa\x55\x48\x89\xe5", b"\x55\x48\x89\xe5", b"\xf3\x0f\x1e\xfa", b"")


def find_list(file: ObjectFile, arch: Arch, debug: ObjectFile | None) -> tuple[int, bool] | None:
    """Return where an object file has the list of registered unwind infos.

    Returns:
        (file address of the list, False), or (file address of a word that holds its address in the process, True), or
        None.
    """
    found = file.named_symbols(SYMBOLS)
    if LIST in found:
        return found[LIST], False
    if LIST_ADDR in found:
        known = decode_getter(bytes(file.at_svma(found[LIST_ADDR], MAX_CODE)), found[LIST_ADDR], arch)
        if known is not None:
            return known
    if debug is not None:
        separate = debug.named_symbols((LIST,))
        if LIST in separate:
            return separate[LIST] + file.min_vaddr - debug.min_vaddr, False
    return None


def decode_getter(code: bytes, svma: int, arch: Arch) -> tuple[int, bool] | None:
    """Return the address that a getter function returns, if its code computes the address relative to itself.

    Args:
        code: The function's code.
        svma: Its file address.
        arch: The architecture.

    Returns:
        As find_list().
    """
    if arch.name == "x86_64":
        return _decode_x86_64(code, svma)
    return _decode_aarch64(code, svma) if arch.name == "aarch64" else None


def _decode_x86_64(code: bytes, svma: int) -> tuple[int, bool] | None:
    skipped = next(len(start) for start in _PROLOGUES if code.startswith(start))
    body = code[skipped : skipped + 9]
    if len(body) < 8 or body[:1] != b"\x48" or body[2:3] != b"\x05" or body[1:2] not in (b"\x8d", b"\x8b"):
        return None
    if body[7:8] != b"\xc3" and body[7:9] not in (b"\x5d\xc3", b"\xc9\xc3"):
        return None
    target = svma + skipped + 7 + int.from_bytes(body[3:7], "little", signed=True)
    return target & (1 << 64) - 1, body[1:2] == b"\x8b"


def _decode_aarch64(code: bytes, svma: int) -> tuple[int, bool] | None:
    words = list(struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4]))
    if words[:1] == [0xD503245F]:  # bti c
        words, svma = words[1:], svma + 4
    if len(words) < 3 or words[0] & 0x9F00001F != 0x90000000 or words[2] != 0xD65F03C0:  # adrp x0; ret
        return None
    pages = (words[0] >> 5 & 0x7FFFF) << 2 | words[0] >> 29 & 3
    pages -= (pages & 1 << 20) << 1
    page = (svma & -4096) + (pages << 12)
    if words[1] & 0xFFC003FF == 0x91000000:  # add x0, x0, #imm12
        return page + (words[1] >> 10 & 0xFFF) & (1 << 64) - 1, False
    if words[1] & 0xFFC003FF == 0xF9400000:  # ldr x0, [x0, #imm12 * 8]
        return page + 8 * (words[1] >> 10 & 0xFFF) & (1 << 64) - 1, True
    return None
