"""The code that a process has described at run time. The survey stops no thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pyprof.diagnostics import Diagnostics
from pyprof.model.modules import AddressSpace
from pyprof.objfile.images import ImageStore
from pyprof.options import UnwindOptions
from pyprof.records import dataclass
from pyprof.runtime_code.base import JIT, CodeSource, module_path
from pyprof.runtime_code.recording_code import RuntimeCode

MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class CodeSurvey:
    """The JIT code of a process that one source describes.

    Attributes:
        module: Name of the module in a profile.
        count: Number of described pieces of code.
        size: Total size of these pieces in bytes.
        has_rules: True if the source has unwind rules for some of them.
        pieces: (address, size, name) of the first few.
    """

    module: str
    count: int
    size: int
    has_rules: bool
    pieces: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class RunTimeSurvey:
    """The code of a process that no file contains.

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
    code = RuntimeCode(images, UnwindOptions(), diagnostics)
    unfiled = sum(
        module.end - module.start for module in code.find_candidates(space) if not images.image(space, module.start)
    )
    process = code.process(space)
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
