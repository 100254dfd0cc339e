"""Names for addresses: unique frames in, Frame objects and their modules out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyprof.diagnostics import Diagnostics
from pyprof.model.modules import AddressSpace
from pyprof.model.profile import Frame, FrameKind, ModuleInfo
from pyprof.model.stacks import MARKER_SPACE, FrameKey
from pyprof.model.walk import StackEnd, Trust, lookup_pc
from pyprof.objfile.images import ImageStore

MARKERS = {
    StackEnd.RUNNING: "[truncated: walk not finished]",
    StackEnd.NO_RULE: "[truncated: no unwind rule]",
    StackEnd.UNREADABLE: "[truncated: stack not readable]",
    StackEnd.STUCK: "[truncated: stack does not ascend]",
    StackEnd.DEPTH: "[truncated: maximum depth]",
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """frames[i] belongs to keys[i]; Frame.module indexes modules."""

    frames: tuple[Frame, ...]
    modules: tuple[ModuleInfo, ...]


class Symbolizer:
    """Resolves frames at the end of a recording, each address once."""

    def __init__(self, images: ImageStore, diagnostics: Diagnostics, spaces: Mapping[int, AddressSpace]) -> None:
        self._images = images
        self._diagnostics = diagnostics
        self._spaces = spaces

    def resolve(self, keys: Sequence[FrameKey]) -> Resolved:
        """Never raises for what a target or a file contains, and drops no frame."""
        frames = []
        modules: dict[tuple[int, str], ModuleInfo] = {}
        index: dict[tuple[int, str], int] = {}
        for space_id, pc, exact, trust in keys:
            if space_id == MARKER_SPACE:
                frames.append(marker(pc))
                continue
            lookup = lookup_pc(pc, exact)
            space = self._spaces.get(space_id)
            module = space.module_at(lookup) if space else None
            if space is None or module is None:
                frames.append(Frame(FrameKind.NATIVE, pc, lookup, pc, -1, (), Trust(trust), f"[unknown]+{pc:#x}"))
                continue
            image = self._images.image(space, lookup)
            rel = image.rel(pc) if image else pc - module.start
            key = (module.start, module.path)
            if key not in modules:
                index[key] = len(modules)
                code = next((m for m in module.mappings if m.executable), module.mappings[0])
                build_id = image.elf.build_id if image else ""
                modules[key] = ModuleInfo(module.path, build_id, code.start, code.end, code.offset, False, False)
            title = f"{module.name}+{rel:#x}"
            frames.append(Frame(FrameKind.NATIVE, pc, lookup, rel, index[key], (), Trust(trust), title))
        return Resolved(tuple(frames), tuple(modules.values()))


def marker(end: int) -> Frame:
    """The frame that stands for the missing outer part of a stack."""
    title = MARKERS.get(StackEnd(end), "[truncated]")
    return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, title)
