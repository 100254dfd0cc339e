"""The processes of a recording that generate code while they run, and the unwind rules of that code.

A process is examined only after a sample lies in executable memory that no file describes. From then on it is examined
before each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.integer_array_operations import distinct
from pyprof.model.profile import ThreadInfo, rename_threads
from pyprof.model.sample_batch import SampleBatch
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import Rows, RuleAt
from pyprof.runtime_code.perf_map_and_jitdump import FILE as JITDUMP
from pyprof.runtime_code.process_code import ProcessCode
from pyprof.unwind.formats.gdb_jit import DESCRIPTOR
from pyprof.unwind.formats.libunwind_registrations import LIST, find_list


def _do_nothing() -> None:
    return


class RuntimeProcesses:
    """The processes of a recording that generate code. Implements unwind.module_unwind_sources.RuntimeRules."""

    def __init__(self, images: ImageStore, options: UnwindOptions, diagnostics: Diagnostics) -> None:
        self._images = images
        self._options = options
        self._diagnostics = diagnostics
        self._processes: dict[object, ProcessCode] = {}
        self._may_run_in: dict[int, bool] = {}
        self._symbols: WeakKeyDictionary[ObjectFile, list[tuple[bytes, int, bool]]] = WeakKeyDictionary()
        self.between_lookups: Callable[[], None] = _do_nothing
        """Function that is called between lookups in a process with a managed runtime, for other work: unwinding a
        batch may take seconds.
        """

    def known(self, space: AddressSpace) -> ProcessCode | None:
        """Return the descriptions of JIT code of a process if process() has read them before, else None."""
        return self._processes.get(space.process)

    def refresh(self, space: AddressSpace) -> None:
        process = self._processes.get(space.process)
        if process is not None:
            process.update(space)

    def changes(self, space: AddressSpace) -> Sequence[int]:
        process = self._processes.get(space.process)
        return process.changes if process is not None else ()

    def version(self, space: AddressSpace) -> int:
        process = self._processes.get(space.process)
        return process.version if process is not None else 0

    def is_reserved(self, space: AddressSpace, avma: int) -> bool:
        process = self._processes.get(space.process)
        return process is not None and process.is_reserved(avma)

    def is_in_file(self, space: AddressSpace, avma: int) -> bool:
        process = self._processes.get(space.process)
        if process is None and self.may_run(space):
            process = self.process(space)
        runtimes = process.runtimes if process is not None else ()
        if runtimes:
            self.between_lookups()
        return any(low <= avma < high for runtime in runtimes for low, high in runtime.code_ranges)

    def rows(self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt) -> Rows | None:
        process = self.process(space)
        return process.rows(pc, exact, time_ns, rule_at) if process is not None else None

    def process(self, space: AddressSpace) -> ProcessCode | None:
        """Return the descriptions of JIT code of a process, or None if its architecture is unknown.

        The first call reads them.
        """
        process = self._processes.get(space.process)
        if process is None:
            arch = self._arch(space)
            if arch is None:
                return None
            process = ProcessCode(space, arch, self._options, self._diagnostics, self._find_symbols)
            self._processes[space.process] = process
            process.update(space)
        return process

    def _arch(self, space: AddressSpace) -> Arch | None:
        """Return the architecture of the first mapped file of a process, or None."""
        for module in space.modules:
            image = self._images.known_image(space, module.start) if module.has_file else None
            if image is not None:
                return image.file.arch
        return None

    def _find_symbols(self, space: AddressSpace, arch: Arch) -> list[tuple[bytes, int]]:
        """Return (name, address in the process) of the lists of registered JIT code in the modules of a process."""
        found: list[tuple[bytes, int]] = []
        for module in space.modules:
            is_file = module.has_file and not JITDUMP.search(module.path)
            image = self._images.known_image(space, module.start) if is_file else None
            if image is not None:
                symbols = self._symbols.get(image.file)
                if symbols is None:
                    symbols = self._symbols[image.file] = _find_lists(image, arch)
                for name, svma, indirect in symbols:
                    avma = svma + image.bias & arch.mask
                    found.append((name, _read_word(space, arch, avma) if indirect else avma))
        return found

    def may_run(self, space: AddressSpace) -> bool:
        """Return True if a file of an address space may contain a managed runtime that runs functions of the program by
        code in that file, as node does.
        """
        found = self._may_run_in.get(space.id)
        if found is None:
            from pyprof.runtime_code.process_code import may_run

            found = self._may_run_in[space.id] = any(may_run(module.name) for module in space.modules)
        return found

    def forget(self, space: AddressSpace) -> None:
        """Drop an address space from which no more samples come."""
        self._may_run_in.pop(space.id, None)

    def drop_unused(self, since_ns: int) -> None:
        """Drop processes and descriptions that ended before a CLOCK_MONOTONIC time. The caller guarantees that no more
        samples from before that time come.
        """
        self.finish()
        kept = {key: p for key, p in self._processes.items() if p.ended_ns is None or p.ended_ns >= since_ns}
        self._processes = kept
        for process in kept.values():
            process.forget(since_ns)

    def finish(self) -> None:
        """Read the perf maps and jitdumps of ended processes to their end, and close them."""
        for process in self._processes.values():
            if process.ended and process.ended_ns is None:
                process.finish()

    def read_ahead(self, batch: SampleBatch) -> None:
        """Read the code of managed runtimes on the stacks of a batch before the batch is unwound, because a process may
        end before that.
        """
        for space_id in distinct(batch.space).tolist():
            space = batch.spaces.get(space_id)
            if space is None:  # a wait may have no address space
                continue
            process = self._processes.get(space.process)
            for runtime in process.runtimes if process is not None and process.ended_ns is None else ():
                runtime.read_ahead(space, batch)

    @property
    def watched(self) -> bool:
        return any(process.watched for process in self._processes.values())

    def update_code(self) -> None:
        for process in self._processes.values():
            if process.watched:
                process.update_code()

    def name_threads(self, threads: tuple[ThreadInfo, ...]) -> tuple[ThreadInfo, ...]:
        """Return the threads with the names that managed runtimes have for them."""
        processes = sorted(self._processes.values(), key=lambda process: process.ended_ns is None)
        names = {(process.pid, tid): name for process in processes for tid, name in process.thread_names().items()}
        return rename_threads(threads, names) if names else threads

    @property
    def own_modules(self) -> frozenset[str]:
        """File names of the modules that are part of the managed runtimes in the recording's processes."""
        processes = self._processes.values()
        return frozenset(
            name for each in processes for runtime in each.runtimes if runtime.is_open for name in runtime.own_modules
        )


def _find_lists(image: Image, arch: Arch) -> list[tuple[bytes, int, bool]]:
    """Return (name, file address, whether the word there holds the list's address in the process) of each list of
    registered JIT code in a file.
    """
    file = image.file
    from pyprof.runtime_code.process_code import SYMBOL_PREFIXES

    symbols = file.named_symbols((DESCRIPTOR,)) | file.prefixed_symbols(SYMBOL_PREFIXES)
    found = [(name, svma, False) for name, svma in symbols.items()]
    listed = find_list(file, arch, None if ".symtab" in file.sections else image.debug)
    return found + ([(LIST, *listed)] if listed is not None else [])


def _read_word(space: AddressSpace, arch: Arch, avma: int) -> int:
    """Read an address-sized word from a process's memory, 0 if it is not readable."""
    data = space.read(avma, arch.word)
    return int.from_bytes(data, "little" if arch.byteorder == "little" else "big") if len(data) == arch.word else 0
