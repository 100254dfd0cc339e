"""The unwind sections, symbols and frame pointers of each module of a process, for `pyprof doctor`. No thread of the
process is stopped.

A task (SurveyOf) is sent to a worker with the mappings and the memory of the process, and the worker parses the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pyprof.errors import FormatError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Module
from pyprof.model.arch import Arch
from pyprof.model.loss_reason_texts import problem, problem_of
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.runtime_code.base import JIT, CodeSource, module_path
from pyprof.runtime_code.jit_code_of_recording import find_candidates
from pyprof.runtime_code.perf_map_and_jitdump import FILE as JITDUMP
from pyprof.runtime_code.runtime_processes import RuntimeProcesses
from pyprof.unwind.formats.cfi_sections import open_eh_frame

MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class CodeSurvey:
    """The part of a process's JIT code that one source describes, for example a perf map.

    Attributes:
        module: Name of the module in a profile.
        count: Number of described pieces of code.
        size: Total size of these pieces in bytes.
        has_rules: True if the source has unwind rules for some of them.
        pieces: (address, size, name) of the first few pieces.
    """

    module: str
    count: int
    size: int
    has_rules: bool
    pieces: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class RunTimeSurvey:
    """The code of a process that no file contains, such as JIT code, and the sources that describe it.

    Attributes:
        unfiled: Number of bytes of executable memory without a file.
        sources: The sources that describe code.
        problems: Descriptions of errors.
    """

    unfiled: int
    sources: tuple[CodeSurvey, ...]
    problems: tuple[str, ...]


def survey_code(space: AddressSpace, diagnostics: Diagnostics) -> RunTimeSurvey:
    images = ImageStore(diagnostics)
    unfiled = sum(
        module.end - module.start for module in find_candidates(space) if not images.image(space, module.start)
    )
    process = RuntimeProcesses(images, UnwindOptions(), diagnostics).process(space)
    if process is not None:
        for runtime in process.runtimes:
            runtime.load_all()
    found = [survey for source in process.sources for survey in _describe(source)] if process else []
    problems = {p.text for path, known in diagnostics.problems.items() if path.startswith(JIT) for p in known}
    return RunTimeSurvey(unfiled, tuple(found), tuple(sorted(problems)))


def _describe(source: CodeSource) -> Iterator[CodeSurvey]:
    if not len(source.spans):
        return
    pieces = []
    for span in islice(source.spans, MAX_NAMED):
        name = source.name(span)
        pieces.append((span.start, span.end - span.start, name.name if name else ""))
    has_rules = any(
        source.rows(span, span.start, True, lambda pc, exact: None) is not None
        for span in islice(source.spans, MAX_NAMED)
    )
    yield CodeSurvey(module_path(source.label), len(source.spans), source.spans.size, has_rules, tuple(pieces))


UNWIND_SECTIONS = (".sframe", ".eh_frame", ".gopclntab", ".debug_frame", ".ARM.exidx")
SYMBOL_SECTIONS = (".symtab", ".dynsym", ".gnu_debugdata", ".debug_info")
FUNCTIONS_LOOKED_AT = 300
MIN_FUNCTION_BYTES = 9
"""Minimum size in bytes of an unwind section with content. An empty .eh_frame has only its terminator."""


@dataclass(frozen=True, slots=True)
class ModuleSurvey:
    """The unwind sections, symbols and frame pointers of one module of a process.

    Attributes:
        path: Path of the module.
        build_id: Build ID, "" if there is none.
        unwind: Names of its unwind sections, with "debug file" for those of a separate debug file.
        symbols: Names of its symbol sections, with "debug file" if there is one.
        frame_pointers: "yes", "no", "some" or "unknown".
        unreadable: True if its code is readable neither in a file nor in memory.
        problems: Problems of the module.
    """

    path: str
    build_id: str
    unwind: tuple[str, ...]
    symbols: tuple[str, ...]
    frame_pointers: str
    unreadable: bool
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class ProcessSurvey:
    """The findings of `pyprof doctor` about all modules of a process.

    Attributes:
        modules: All modules with code in address order. A file that is mapped several times is listed once.
        code: Code that no file contains, such as JIT code.
        tolerated: Counters of tolerated errors.
    """

    modules: tuple[ModuleSurvey, ...]
    code: RunTimeSurvey
    tolerated: dict[str, int]


@dataclass(frozen=True, slots=True)
class SurveyOf:
    """A one-shot task for a worker that returns the survey of a process for `pyprof doctor`, in one piece."""

    space: AddressSpace

    def pieces(self, diagnostics: Diagnostics) -> Iterator[ProcessSurvey]:
        modules = tuple(_survey_modules(self.space, diagnostics))
        code = survey_code(self.space, diagnostics)
        yield ProcessSurvey(modules, code, dict(diagnostics.counts))


def _survey_modules(space: AddressSpace, diagnostics: Diagnostics) -> list[ModuleSurvey]:
    images = ImageStore(diagnostics)
    found: dict[ModuleSurvey, None] = {}
    for module in space.modules:
        image = images.image(space, module.start)
        found[_survey_module(module, image, diagnostics)] = None
    return list(found)


def _survey_module(module: Module, image: Image | None, diagnostics: Diagnostics) -> ModuleSurvey:
    if image is None:
        problems = tuple(sorted(diagnostics.problems.get(module.path, ())))
        unreadable = module.has_file and not JITDUMP.search(module.path)
        return ModuleSurvey(module.path, "", (), (), "unknown", unreadable, problems)
    file, debug = image.file, image.debug
    unwind = [name for name in UNWIND_SECTIONS if _has_table(file, name)]
    symbols = [name for name in SYMBOL_SECTIONS if _has(file, name)]
    symbols += [name for name in unwind if name == ".gopclntab"]
    if debug:
        symbols.append("debug file")
        if _has_table(debug, ".debug_frame") and ".debug_frame" not in unwind:
            unwind.append(".debug_frame (debug file)")
    if not unwind:
        diagnostics.problem(module.path, problem("no_unwind_tables"))
    arch = file.arch
    return ModuleSurvey(
        module.path,
        file.build_id,
        tuple(unwind),
        tuple(symbols),
        _frame_pointers(file, arch, diagnostics) if arch else "unknown",
        False,
        tuple(sorted(diagnostics.problems.get(module.path, ()))),
    )


def _has_table(file: ObjectFile, name: str) -> bool:
    table = file.unwind_table(name)
    return table is not None and table.size >= MIN_FUNCTION_BYTES


def _has(file: ObjectFile, name: str) -> bool:
    section = file.sections.get(name)
    return section is not None and section.size >= MIN_FUNCTION_BYTES and section.stored


def _frame_pointers(file: ObjectFile, arch: Arch, diagnostics: Diagnostics) -> str:
    """Return whether the functions of a file keep frame pointers: "yes", "no", "some" or "unknown". The CFI after the
    prologues of a few functions decides.
    """
    text = file.sections.get(".text")
    keeps, starts = 0, set[int]()
    try:
        source = open_eh_frame(file, arch, diagnostics)
        for probe in range(FUNCTIONS_LOOKED_AT) if source and text else ():
            rows = source.function_at(text.addr + probe * text.size // FUNCTIONS_LOOKED_AT) if source and text else None
            if rows and rows.start not in starts and len(rows.rules) > 1:
                starts.add(rows.start)
                keeps += any(rule.cfa_reg == arch.fp for rule in rows.rules)
    except FormatError as error:
        diagnostics.problem(file.name, problem_of(error))
    looked = len(starts)
    if not looked:
        return "unknown"
    share = keeps / looked
    return "yes" if share > 0.8 else "no" if share < 0.2 else "some"
