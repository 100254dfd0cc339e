"""Names for the frames of an existing profile, from files that are available now.

A frame of native code is a module with its build ID, and an address in it. A file can name the frame only if it has the
same build ID; an equal file name proves nothing. The address at which the module was mapped does not matter, so that
each module gets a separate address space here.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from pyprof.errors import FormatError, UsageError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.address_space import AddressSpace
from pyprof.model.address_space import Mapping as MappedRange
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile
from pyprof.model.stacks import native_key
from pyprof.objfile import io_deadline
from pyprof.objfile.base import ObjectFile, Segment
from pyprof.objfile.debug_files import DebugFiles
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.objfile.object_file_opening import open_object_file
from pyprof.objfile.symbol_servers import KINDS, cached_path
from pyprof.objfile.untrusted_file_access import current_opener, is_build_id
from pyprof.problem_counters import Diagnostics
from pyprof.symbolize.name_cache import NameCache
from pyprof.symbolize.symbolizer import Symbolizer

_BASE = 1 << 20
"""Artificial load address of each module of an existing profile while its names are looked up."""
_PAGE = 1 << 12
_MAX_REL = 1 << 46
_MAX_BACK = 16
_DEBUG = "usr/lib/debug"


@dataclass(frozen=True, slots=True)
class Places:
    """The places where add_names() looks for files with symbols. This machine and debuginfod's cache belong to them,
    too.

    Attributes:
        symbols: Object files, debug files, and directories of them.
        sysroots: Copies of the root directory of the machine that made the recording.
    """

    symbols: tuple[str, ...] = ()
    sysroots: tuple[str, ...] = ()

    def check_exists(self) -> None:
        """Raise an error if a given symbol file or directory does not exist.

        Raises:
            UsageError: A place does not exist.
        """
        for option, paths in (("--symbols", self.symbols), ("--sysroot", self.sysroots)):
            for path in paths:
                if not (os.path.isdir(path) if option == "--sysroot" else os.path.exists(path)):
                    raise UsageError(f"{option} {path}: no such {'folder' if option == '--sysroot' else 'file'}")

    @property
    def folders(self) -> list[str]:
        return [path for path in self.symbols if os.path.isdir(path)]

    @property
    def debug_dirs(self) -> list[str]:
        roots = [os.path.join(root, _DEBUG) for root in (*self.sysroots, "/")]
        return [os.path.abspath(path) for path in (*self.folders, *roots)]

    def candidate_paths(self, info: ModuleInfo) -> Iterator[str]:
        """Yield the paths at which a module's file may be."""
        path = os.path.normpath("/" + info.path).lstrip("/")
        yield from (each for each in self.symbols if not os.path.isdir(each))
        for folder in self.folders:
            name = os.path.basename(path)
            yield from (os.path.join(folder, each) for each in (name, path, f"{name}.debug", f"{path}.debug"))
        yield from (os.path.join(root, path) for root in (*self.sysroots, "/"))
        if not is_build_id(info.build_id):
            return
        by_id = os.path.join(".build-id", info.build_id[:2], info.build_id[2:] + ".debug")
        yield from (os.path.join(folder, by_id) for folder in self.debug_dirs)
        yield from (cached_path(info.build_id, kind) for kind in reversed(KINDS))


def find_unnamed_modules(profile: Profile) -> list[ModuleInfo]:
    """Return the modules that have a build ID and frames without a symbol."""
    without = {frame.module for frame in profile.frames if _is_code(frame) and not _has_symbol(frame)}
    return [info for at, info in enumerate(profile.modules) if at in without and info.build_id]


def add_names(profile: Profile, places: Places, seconds: float | None = None) -> Profile:
    """Return the profile with the names that the files at some places have. A frame whose file is not found is
    unchanged.

    Args:
        profile: The profile.
        places: The places of files.
        seconds: Maximum time for source lines and inlined functions, None for no limit.
    """
    images = _Images(profile.modules, places)
    profile = replace(profile, frames=tuple(map(images.placed, profile.frames)))
    spaces: dict[int, AddressSpace] = {}
    wanted: defaultdict[int, list[int]] = defaultdict(list)
    for at, frame in enumerate(profile.frames):
        if _is_code(frame) and images.has(frame.module):
            wanted[frame.module].append(at)
    for module, inside in wanted.items():
        last = max(profile.frames[at].rel for at in inside)
        spaces[module] = _space(module, profile.modules[module].path, last)
    places_of = [at for inside in wanted.values() for at in inside]
    keys = [
        native_key(frame.module, _BASE + frame.rel, frame.lookup == frame.pc, frame.trust)
        for frame in (profile.frames[at] for at in places_of)
    ]
    diagnostics = Diagnostics()
    resolved = Symbolizer(images, NameCache(diagnostics), spaces, seconds).resolve(keys)
    frames = list(profile.frames)
    for at, found in zip(places_of, resolved.frames, strict=True):
        if (_has_symbol(found) or not frames[at].lines) and _later(found) != _later(frames[at]):
            frames[at] = replace(frames[at], lines=_later(found), title=found.title)
    modules = _updated(profile.modules, frames)
    problems = {profile.modules[at].path: diagnostics.problems.get(profile.modules[at].path, set()) for at in wanted}
    summaries = tuple(
        replace(each, problems=tuple(sorted(problems[each.path]))) if each.path in problems else each
        for each in profile.summary.modules
    )
    return replace(profile, frames=tuple(frames), modules=modules, summary=replace(profile.summary, modules=summaries))


def _is_code(frame: Frame) -> bool:
    """Return True if a frame is native code at an address that a real file can have.

    Other addresses come from a malicious recording.
    """
    back = frame.pc - frame.lookup
    return frame.kind == FrameKind.NATIVE and frame.module >= 0 and 0 <= frame.rel < _MAX_REL and 0 <= back <= _MAX_BACK


def _later(frame: Frame) -> tuple[Line, ...]:
    return tuple(replace(line, later=True) for line in frame.lines)


def _has_symbol(frame: Frame) -> bool:
    return bool(frame.lines) and bool(frame.lines[-1].system_name)


def _updated(modules: Sequence[ModuleInfo], frames: Sequence[Frame]) -> tuple[ModuleInfo, ...]:
    functions = {frame.module for frame in frames if _has_symbol(frame)}
    lines = {frame.module for frame in frames if any(line.line for line in frame.lines)}
    return tuple(
        replace(info, has_functions=info.has_functions or at in functions, has_lines=info.has_lines or at in lines)
        for at, info in enumerate(modules)
    )


def _space(module: int, path: str, last: int) -> AddressSpace:
    mapping = MappedRange(_BASE, _BASE + last + 1, "r-xp", 0, "", module + 1, path or "?")
    return AddressSpace(module, 0, 0, (mapping,), lambda _, __: b"", "/")


class _Images(ImageStore):
    """A finder of object files for the modules of a profile. Each found file is in a separate address space."""

    def __init__(self, modules: Sequence[ModuleInfo], places: Places) -> None:
        super().__init__(Diagnostics())
        self._modules = modules
        self._places = places
        self._debug = DebugFiles(Diagnostics(), places.debug_dirs)
        self._files: dict[tuple[str, str], ObjectFile | None] = {}
        self._made_images: dict[int, Image] = {}

    def has(self, module: int) -> bool:
        return self._file(self._modules[module]) is not None

    def placed(self, frame: Frame) -> Frame:
        """Return a frame with its address in the object file. A frame is changed only if the profile has nothing but
        its offset in the file.

        A pprof file has the mappings of a module, but not the segments of its image.
        """
        if not _is_code(frame):
            return frame
        info = self._modules[frame.module]
        file = self._file(info)
        inside = info.start <= frame.pc < info.end
        if file is None or not inside or frame.rel != frame.pc - info.start + info.offset:
            return frame
        base = next((_start_of(each, info.offset) for each in file.loads if _holds(each, info.offset)), None)
        rel = None if base is None else frame.pc - info.start + base - file.min_vaddr
        return frame if rel is None or rel == frame.rel else replace(frame, rel=rel)

    def image(self, space: AddressSpace, avma: int) -> Image | None:
        file, module = self._file(self._modules[space.id]), space.module_at(avma)
        if file is None or module is None:
            return None
        if space.id not in self._made_images:
            image = Image(module, file, _BASE - file.min_vaddr, "/", debug_files=self._debug)
            self._made_images[space.id] = image
        return self._made_images[space.id]

    def _file(self, info: ModuleInfo) -> ObjectFile | None:
        key = (info.path, info.build_id)
        if key not in self._files:
            self._files[key] = find_object_file(info, self._places)
        return self._files[key]


def _holds(segment: Segment, offset: int) -> bool:
    """Return True if a segment contains code at a file offset. The beginning of the segment's first page counts,
    because it is mapped, too.
    """
    return segment.executable and segment.offset & -_PAGE <= offset < segment.offset + segment.filesz


def _start_of(segment: Segment, offset: int) -> int:
    return segment.vaddr - segment.offset + offset


def find_object_file(info: ModuleInfo, places: Places) -> ObjectFile | None:
    """Return the object file of a module, or a debug file of it, by its build ID; None if there is none."""
    found = map(partial(_opened, build_id=info.build_id), places.candidate_paths(info) if info.build_id else ())
    return next((file for file in found if file is not None), None)


def _opened(path: str, build_id: str) -> ObjectFile | None:
    """Return the object file at a path if it has the requested build ID, else None."""
    try:
        fd = current_opener().open_named(path)
        try:
            file = open_object_file(fd)
        finally:
            io_deadline.close_descriptor(fd)
        return file if file.build_id == build_id else None
    except (OSError, ValueError, FormatError):
        return None
