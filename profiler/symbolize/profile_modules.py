"""The list of the modules of a profile's frames."""

from __future__ import annotations

from pyprof.model.modules import Module
from pyprof.model.profile import Line, ModuleInfo
from pyprof.records import replace
from pyprof.symbolize.unnamed_code import Labels


class FrameModules:
    """The modules of a profile's frames in the order of their first use, with the labels for code without a name."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._index: dict[tuple[int, int, str, str], int] = {}
        self._seen: dict[tuple[int, str], tuple[Module, int]] = {}
        self._infos: list[ModuleInfo] = []

    def module_index(self, module: Module, build_id: str, lines: tuple[Line, ...]) -> int:
        _, at = self._seen.get((id(module), build_id)) or (module, -1)
        if at < 0:
            at = self._add(module, build_id)
            self._seen[id(module), build_id] = module, at  # kept alive, so that no other object gets its id
        info = self._infos[at]
        if info.has_functions and info.has_lines:
            return at
        functions, has_lines = any(line.system_name for line in lines), any(line.line for line in lines)
        if functions > info.has_functions or has_lines > info.has_lines:
            self._infos[at] = replace(
                info, has_functions=info.has_functions or functions, has_lines=info.has_lines or has_lines
            )
        return at

    def _add(self, module: Module, build_id: str) -> int:
        """Add a module of a profile and return its index. Mappings of one file at one place count as one module."""
        code = [m for m in module.mappings if m.executable] or list(module.mappings)
        at = self._index.setdefault((code[0].start, code[-1].end, module.path, build_id), len(self._infos))
        if at == len(self._infos):
            self._infos.append(
                ModuleInfo(module.path, build_id, code[0].start, code[-1].end, code[0].offset, False, False)
            )
        return at

    def module_infos(self) -> tuple[ModuleInfo, ...]:
        return tuple(self._infos)
