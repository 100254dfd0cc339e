"""What a process says about the code that it makes at run time. Stops nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pyprof.diagnostics import Diagnostics
from pyprof.model.modules import AddressSpace
from pyprof.objfile.images import ImageStore
from pyprof.options import UnwindOptions
from pyprof.records import dataclass
from pyprof.runtime_code.base import JIT, CodeSource, module_path
from pyprof.runtime_code.code import RuntimeCode

MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class CodeSurvey:
    """module: as a profile names it. count: pieces of code described, size: their bytes. has_rules: some can be unwound
    by it. pieces: (avma, size, name) of the first few.
    """

    module: str
    count: int
    size: int
    has_rules: bool
    pieces: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True)
class RunTimeSurvey:
    """unfiled: bytes of executable memory that no file describes. problems: what could not be used."""

    unfiled: int
    sources: tuple[CodeSurvey, ...]
    problems: tuple[str, ...]


def survey_code(space: AddressSpace, diagnostics: Diagnostics) -> RunTimeSurvey:
    images = ImageStore(diagnostics)
    code = RuntimeCode(images, UnwindOptions(), diagnostics)
    unfiled = sum(
        module.end - module.start for module in code.candidates(space) if not images.image(space, module.start)
    )
    process = code.process(space)
    found = [survey for source in process.sources for survey in _describe(source)] if process else []
    problems = {p.text for path, known in diagnostics.problems.items() if path.startswith(JIT) for p in known}
    return RunTimeSurvey(unfiled, tuple(found), tuple(sorted(problems)))


def _describe(source: CodeSource) -> Iterator[CodeSurvey]:
    if not len(source.spans):
        return
    pieces = []
    for span in islice(source.spans, MOST_NAMED):
        name = source.name(span)
        pieces.append((span.start, span.end - span.start, name.name if name else ""))
    has_rules = any(
        source.rows(span, span.start, True, lambda pc, exact: None) is not None
        for span in islice(source.spans, MOST_NAMED)
    )
    yield CodeSurvey(module_path(source.label), len(source.spans), source.spans.size, has_rules, tuple(pieces))
