"""The object file behind an address: proved to be the mapped one, with its load bias.

ImageStore takes an AddressSpace and an address in the process. It returns an Image, or None if no object file is known
(generated code, or a deleted file whose memory cannot be read). Files are shared: two modules of one file have two
Images and one ElfFile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from functools import cached_property, partial

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import AddressSpace, Module, StatedId
from pyprof.model.loss_reason_texts import problem, problem_counted
from pyprof.objfile.base import AbsentFile, ObjectFile
from pyprof.objfile.breakpad_records import is_stated
from pyprof.objfile.breakpad_symbol_file import SymbolFile
from pyprof.objfile.breakpad_symbol_search import SymbolStore
from pyprof.objfile.debug_files import DebugFiles
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.elf_memory_image import read_build_id, read_vdso_image, rebuild_image
from pyprof.objfile.mapped_file_search import Identity, find_bias, find_candidates, identify, is_accepted
from pyprof.objfile.pe import PeFile, PeImage, find_windows_module
from pyprof.objfile.untrusted_file_access import Rights, current_opener
from pyprof.problem_counters import Diagnostics

DIFFERS = "mapped_file_replaced"
SILENT = "file_system_timeout"
NOT_FOUND = "module_file_not_found"
NOT_COMPARED = "module_file_not_compared"
NO_SYMBOLS = "module_without_symbols"


@dataclass(eq=False)
class Image:
    """An object file at the place where it is loaded. It is compared by identity.

    Attributes:
        module: The module.
        file: The object file.
        bias: Address in the process minus address in the file, in bytes.
        root: Directory at which the target's file names start.
        from_memory: The file was rebuilt from the target's memory.
        debug_files: Finds separate debug files, None if there are none.
        symbol_store: Finds Breakpad symbol files, None if there are none.
        rights: Rights of the target, with which files that it names are opened. None stands for those of pyprof.
        base: Address in the process of the image's lowest page.
    """

    module: Module
    file: ObjectFile
    bias: int
    root: str = ""
    from_memory: bool = False
    debug_files: DebugFiles | None = field(default=None, repr=False)
    symbol_store: SymbolStore | None = field(default=None, repr=False)
    rights: Rights | None = None
    base: int = field(init=False)

    def __post_init__(self) -> None:
        self.base = self.bias + self.file.min_vaddr

    @cached_property
    def lacks_tables(self) -> bool:
        """True if the image was rebuilt from memory that does not contain the file's unwind tables."""
        return self.from_memory and self.file.lost_tables

    def svma(self, avma: int) -> int:
        """Return the address in the object file (svma) of an address in the process."""
        return avma - self.bias

    def rel(self, avma: int) -> int:
        """Return the distance in bytes of an address from the image's base."""
        return avma - self.base

    @property
    def debug(self) -> ObjectFile | None:
        """The separate debug file of the image, searched at the first use; None if there is none."""
        return self.debug_files.find(self.file, self.module.path, self.root, self.rights) if self.debug_files else None

    @property
    def symbols(self) -> SymbolFile | None:
        """The Breakpad symbol file of the image that the user gave, searched at the first use; None if there is
        none.
        """
        return self.symbol_store.find(self.file) if self.symbol_store else None

    def alternate(self, debug: ObjectFile) -> ObjectFile | None:
        """Return the file with the data that a debug file shares with other debug files, or None."""
        return self.debug_files.find_alternate(debug, self.root, self.rights) if self.debug_files else None


class ImageStore:
    """All object file images of a recording, by address space. No content of a target or file makes it raise."""

    def __init__(
        self,
        diagnostics: Diagnostics,
        debug_dirs: Sequence[str] = ("/usr/lib/debug",),
        symbol_store: SymbolStore | None = None,
    ) -> None:
        self._diagnostics = diagnostics
        self._symbol_store = symbol_store
        self._debug_files = DebugFiles(diagnostics, debug_dirs)
        self._opened: dict[tuple[int, int, int, int], ElfFile] = {}
        self._windows_opened: dict[tuple[int, int, int, int], PeFile] = {}
        self._proved: set[tuple[str, int, str, ElfFile]] = set()
        self._images: dict[tuple[int, Module], Image | None] = {}
        self._by_space: dict[tuple[int, int], Image | None] = {}

    def image(self, space: AddressSpace, avma: int) -> Image | None:
        """Return the object file image whose module covers an address, or None. Failed lookups are cached, too."""
        module = space.module_at(avma)
        if module is None:
            return None
        key = (space.id, module.start)
        if key not in self._by_space:
            same = (space.pid, module)
            if same not in self._images:
                self._images[same] = self._find(space, module, avma)
            self._by_space[key] = self._images[same]
        return self._by_space[key]

    def seen_image(self, space: AddressSpace, avma: int) -> Image | None:
        """Return the object file image of an address if an earlier call looked it up, else None. Nothing is opened."""
        module = space.module_at(avma)
        return self._by_space.get((space.id, module.start)) if module is not None else None

    def known_image(self, space: AddressSpace, avma: int) -> Image | None:
        """Return the object file image that covers an address, or None. If a core file or crash dump lacks the file,
        that is not reported as a problem.

        A missing file is no loss if no stack runs through it.
        """
        module = space.module_at(avma)
        if space.files is None or module is None or (space.id, module.start) in self._by_space:
            return self.image(space, avma)
        saying, self._diagnostics = self._diagnostics, Diagnostics()
        try:
            found = self._find(space, module, avma)
        finally:
            self._diagnostics = saying
        if found is not None and not found.from_memory:
            self._by_space[space.id, module.start] = self._images[space.pid, module] = found
        return found

    def forget(self, *spaces: AddressSpace) -> Set[ObjectFile]:
        """Drop the object file images that only these address spaces need.

        Returns:
            The files that no address space uses any more.
        """
        ids, pids = {space.id for space in spaces}, {space.pid for space in spaces}
        self._by_space = {key: image for key, image in self._by_space.items() if key[0] not in ids}
        kept = {id(image) for image in self._by_space.values()}
        return self._keep(lambda pid, image: pid not in pids or id(image) in kept)

    def _keep(self, wanted: Callable[[int, Image | None], bool]) -> Set[ObjectFile]:
        before, self._images = self._images, {k: image for k, image in self._images.items() if wanted(k[0], image)}
        files: set[ObjectFile] = {image.file for image in self._images.values() if image is not None}
        self._opened = {key: elf for key, elf in self._opened.items() if elf in files}
        self._windows_opened = {key: file for key, file in self._windows_opened.items() if file in files}
        paths = self.paths
        self._proved = {file for file in self._proved if file[3] in files and file[2] in paths}
        return {image.file for image in before.values() if image is not None} - files

    @property
    def paths(self) -> Set[str]:
        """The paths of the modules whose object file images are cached."""
        return {module.path for _, module in self._images}

    def _find(self, space: AddressSpace, module: Module, avma: int) -> Image | None:
        stated = space.stated(module) if space.stated else None
        if stated is not None:
            return self._stated(space, module, avma, stated)
        if not module.has_file:
            return self._from_memory(space, module, avma) or self._windows(space, avma)
        code = next((m.start for m in module.mappings if m.executable), module.start)
        at = avma if any(m.start <= avma < m.end for m in module.mappings) else code
        differs = unproved = False
        for candidate in find_candidates(space, module, self._opened, partial(self._silent, module), ElfFile.open):
            bias = find_bias(module, candidate.elf, at)
            identity = Identity.DIFFERENT if bias is None else identify(space, module, candidate.elf, bias)
            file = (module.dev, module.inode, module.path, candidate.elf)
            if identity is Identity.BUILD_ID or (identity is Identity.CONTENT and is_accepted(candidate, identity)):
                self._proved.add(file)
            known = identity is Identity.UNKNOWN and file in self._proved
            if bias is not None and (known or is_accepted(candidate, identity)):
                return self._made(Image(module, candidate.elf, bias, space.root))
            conclusive = candidate.same_file or not candidate.handle or space.files is not None
            differs = differs or (identity is Identity.DIFFERENT and conclusive)
            unproved = unproved or identity in (Identity.UNKNOWN, Identity.CONTENT)
        image = self._from_memory(space, module, at)
        windows = self._windows(space, at) if image is None else None
        if windows is not None:
            return windows
        self._report(space, module, image, differs, unproved)
        return image

    def _silent(self, module: Module) -> None:
        self._diagnostics.count(SILENT)
        self._diagnostics.problem(module.path, problem_counted(SILENT))

    def _windows(self, space: AddressSpace, avma: int) -> Image | None:
        """Return the object file image of a Windows module that Wine mapped, or None.

        The identity in the module's headers serves to find its symbol file.
        """
        found = find_windows_module(space, avma)
        if found is None:
            return None
        module, stated = found
        memory = PeImage(module, stated, space.read)
        file, _ = self._windows_file(space, module, lambda file: file.headers.is_same_module(memory.headers))
        if file is not None:
            image = self._made(Image(module, file, module.start - file.min_vaddr, space.root), stated.name)
        else:
            image = self._made(Image(module, memory, module.start, space.root, from_memory=True), stated.name)
        if image.symbols is None and image.file.unwind_table(".pdata") is None:
            self._diagnostics.count(NO_SYMBOLS)
            lacking = problem("windows_without_symbols", identity=stated.debug_id or "no id")
            self._diagnostics.problem(module.path, lacking)
        return image

    def _windows_file(
        self, space: AddressSpace, module: Module, is_right: Callable[[PeFile], bool]
    ) -> tuple[PeFile | None, bool]:
        """Return (the local file of a Windows module or None, whether the user named a file for it that is not the
        right one).
        """
        differs = False
        for candidate in find_candidates(
            space, module, self._windows_opened, partial(self._silent, module), PeFile.open
        ):
            if is_right(candidate.elf):
                return candidate.elf, False
            differs = differs or candidate.named
        return None, differs

    def _stated(self, space: AddressSpace, module: Module, avma: int, stated: StatedId) -> Image:
        """Return the object file image of a module whose identity a crash dump states.

        The image is that of a local file with the identity. Without such a file it has the content of the dump, or only
        the identity.
        """
        differs = False
        if stated.image_size:
            file, differs = self._windows_file(
                space, module, lambda file: is_stated(file, stated) or file.is_stated(stated)
            )
            if file is not None:
                return self._made(Image(module, file, module.start - file.min_vaddr, space.root), stated.name)
        silent = partial(self._silent, module)
        for candidate in find_candidates(space, module, self._opened, silent, ElfFile.open):
            known = stated.debug_id or stated.build_id
            if is_stated(candidate.elf, stated) if known else candidate.named:
                return self._made(Image(module, candidate.elf, module.start - candidate.elf.min_vaddr, space.root))
            differs = differs or candidate.named
        with suppress(FormatError):
            found = rebuild_image(space, module, avma)
            if found is not None and _is_whole(space, *found):
                return self._made(Image(module, *found, space.root, from_memory=True), stated.name)
        absent = AbsentFile(module, stated, space.read)
        image = self._made(Image(module, absent, module.start, space.root, from_memory=True), stated.name)
        if differs:
            self._diagnostics.count(DIFFERS)
            self._diagnostics.problem(module.path, problem("file_differs_elsewhere", how="not used"))
        if image.symbols is None and image.debug is None:
            self._diagnostics.count(NO_SYMBOLS)
            lacking = problem("neither_file_nor_symbols", identity=stated.debug_id or "no id")
            self._diagnostics.problem(module.path, lacking)
        return image

    def _from_memory(self, space: AddressSpace, module: Module, avma: int) -> Image | None:
        try:
            if module.has_file:
                found = rebuild_image(space, module, avma)
            else:
                found = read_vdso_image(space, module)
        except FormatError:
            self._diagnostics.count("memory_image_broken")
            return None
        if found is None:
            return None
        elf, bias = found
        return self._made(Image(module, elf, bias, space.root, from_memory=True))

    def _made(self, image: Image, name: str = "") -> Image:
        """Complete a new object file image, and return it: add the finders of debug files and symbol files, and the
        rights of the target.

        Args:
            image: The image.
            name: Name by which symbol files identify the module, "" for that of its path.
        """
        for oddity in image.file.oddities:
            self._diagnostics.count(oddity)
        image.file.oddities.clear()
        image.debug_files = self._debug_files
        image.symbol_store = self._symbol_store
        if self._symbol_store:
            self._symbol_store.register_file(image.file, name or image.module.path)
        ours, image.rights = current_opener().describe_root(image.root)
        if ours:
            image.root = "/"  # /proc/PID/root disappears with the target
        else:
            _ = image.debug
        return image

    def _report(self, space: AddressSpace, module: Module, image: Image | None, differs: bool, unproved: bool) -> None:
        how = "read from memory" if image else "not used, and its memory cannot be read"
        here = space.files is None
        if differs:
            self._diagnostics.count(DIFFERS)
            self._diagnostics.problem(
                module.path, problem("file_differs", how=how) if here else problem("file_differs_elsewhere", how=how)
            )
        elif module.deleted and image and here:
            self._diagnostics.count("deleted_file_read")
        elif unproved and image is None:
            self._diagnostics.count(NOT_COMPARED)
            self._diagnostics.problem(
                module.path, problem("file_not_proved") if here else problem("file_not_proved_elsewhere")
            )
        elif not here:
            build_id = read_build_id(space.read, module.start)
            self._diagnostics.count(NOT_FOUND)
            known = f" (build-id {build_id})" if build_id else ""
            self._diagnostics.problem(module.path, problem("file_not_found", known=known))
        elif image is None and module.path and not module.path.startswith("/memfd:"):
            self._diagnostics.count(NOT_FOUND)


def _is_whole(space: AddressSpace, elf: ElfFile, bias: int) -> bool:
    """Return True if a core file or crash dump contains all of a mapped object file, and not only its first page."""
    constant = [load for load in elf.loads if not load.writable]
    return all(len(space.read(bias + load.vaddr, load.filesz)) == load.filesz for load in constant)
