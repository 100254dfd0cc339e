"""Names for code without a symbol: its module, and the start of its function (`!`) or its own address (`+`).

Such a name is valid in one file only. If several files of a profile have one name, the build-id or the inode is added:
`libssl.so.3[1f2e3d4c]!0x3b40`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyprof.model.modules import Module

_SHOWN = 8
"""Digits of a build-id."""


class Labels:
    """What the modules of a profile's nameless code are called."""

    def __init__(self, modules: Iterable[tuple[Module, str]]) -> None:
        """modules: with their build-ids."""
        self._files: dict[str, set[object]] = {}
        for module, build_id in modules:
            self._files.setdefault(module.name, set()).add(_file(module, build_id))

    def of(self, module: Module, build_id: str) -> str:
        if not module.has_file or len(self._files.get(module.name, ())) < 2:
            return module.name
        return f"{module.name}[{build_id[:_SHOWN] or f'inode {module.inode}'}]"


def _file(module: Module, build_id: str) -> object:
    return build_id or (module.dev, module.inode, module.path)


def unnamed(label: str, start_rel: int) -> str:
    """The name of a function whose start is all that is known. start_rel: from the module's first loaded byte."""
    return f"{label}!{start_rel:#x}"
