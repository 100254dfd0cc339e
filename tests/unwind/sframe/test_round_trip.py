"""Tests that written SFrame sections are read back: all versions, ABIs, byte orders and encodings."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyprof.model.arch import AARCH64, AARCH64_BE, S390X, X86_64, Arch
from pyprof.unwind.formats.sframe_source import read_sframe
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule
from tests.unwind.sframe.writer import Function, Place, Row, Section, write

RANGE = {1: 127, 2: 32767, 4: 2**31 - 1}


@st.composite
def places(draw: st.DrawFn, arch: Arch, word: int) -> Place:
    """Generate all places that FLEX can express, except CFA + 0 without deref, whose control word means the default
    place.
    """
    limit = min(31, len(arch.dwarf) - 1) if word == 1 else len(arch.dwarf) - 1
    registers = [number for number in sorted(arch.dwarf) if number <= limit and number != 65]
    register = draw(st.none() | st.sampled_from(registers))
    return Place(register, draw(_offset(word)), register is None or draw(st.booleans()))


def _offset(word: int) -> st.SearchStrategy[int]:
    return st.integers(-RANGE[word] - 1, RANGE[word])


@st.composite
def row(draw: st.DrawFn, section: Section, at: int, flex: bool) -> Row:
    arch = section.arch
    if draw(st.integers(0, 9)) == 0:
        return Row(at, None)
    word = draw(st.sampled_from([1, 2, 4]))
    offset = draw(_offset(word))
    if arch is S390X:
        offset = offset * 8 + 160
    mangled = arch in (AARCH64, AARCH64_BE) and draw(st.booleans())
    if flex:
        base = draw(places(arch, word).filter(lambda place: place.register is not None))
        cfa = Place(base.register, offset, base.deref)
        ra, fp = (draw(st.none() | places(arch, word)) for _ in range(2))
        return Row(at, cfa, ra, fp, mangled, word)
    numbers = {column: number for number, column in arch.dwarf.items()}
    cfa = Place(numbers[draw(st.sampled_from([arch.sp, arch.fp]))], offset, False)
    slot = _offset(word).filter(bool).map(lambda n: Place(None, n))
    if arch is S390X and section.version < 3:  # odd words are registers
        slot = _offset(word).filter(lambda n: n and n % 2 == 0).map(lambda n: Place(None, n))
        slot |= st.integers(0, 31).map(lambda n: Place(n, 0, False))
    ra = None if section.fixed_ra else draw(st.none() | slot)
    return Row(at, cfa, ra, draw(st.none() | slot), mangled, word)


@st.composite
def functions(draw: st.DrawFn, section: Section) -> tuple[Function, ...]:
    made, start = [], draw(st.integers(0, 1 << 20))
    for _ in range(draw(st.integers(0, 5))):
        start_size = draw(st.sampled_from([1, 2, 4]))
        size = draw(st.integers(1, 1 << 18))
        repeat = 0
        if draw(st.integers(0, 3)) == 0:
            repeat = 16 if section.version == 1 else draw(st.integers(1, 255))
        limit = min(repeat or size, size, 1 << 8 * start_size)
        flex = section.version == 3 and draw(st.booleans())
        starts = sorted(draw(st.sets(st.integers(0, limit - 1), min_size=1, max_size=6)))
        rows = tuple(draw(row(section, at, flex)) for at in starts)
        if repeat and section.arch is X86_64:  # keep away from the row of .plt.got that the reader corrects
            rows = tuple(r for r in rows if r.cfa is None or r.cfa.offset != 16) or (Row(starts[0], None),)
        signal = section.version == 3 and draw(st.booleans())
        made.append(Function(start, size, rows, start_size, repeat, draw(st.booleans()), signal, flex))
        start += size + draw(st.integers(0, 64))
    return tuple(made)


@st.composite
def sections(draw: st.DrawFn) -> Section:
    version = draw(st.sampled_from([1, 2, 3]))
    arch = draw(st.sampled_from([X86_64, AARCH64, AARCH64_BE, *([S390X] if version > 1 else [])]))
    head = Section(
        arch,
        version,
        svma=draw(st.integers(0, 1 << 24)),
        flags=draw(st.sampled_from([0, 4] if version > 1 else [0])),
        fixed_ra=-8 if arch is X86_64 else draw(st.sampled_from([0, -8])),
        fixed_fp=draw(st.sampled_from([0, -16])),
        auxiliary=draw(st.binary(max_size=9)),
    )
    made = draw(functions(head))
    if draw(st.booleans()):
        return Section(**{**vars(head), "functions": made, "flags": head.flags | 1})
    return Section(**{**vars(head), "functions": tuple(draw(st.permutations(made)))})


def expected(section: Section, function: Function) -> FunctionRows:
    starts = tuple(function.start + row.at for row in function.rows)
    rules = tuple(meaning(section, row, function.signal) for row in function.rows)
    return FunctionRows(function.start, function.start + function.size, starts, rules, function.repeat)


def meaning(section: Section, row: Row, signal: bool) -> Rule:
    arch = section.arch
    if row.cfa is None:
        return Rule(arch.sp, 0, UNDEFINED, signal=signal)
    lost = [(column, UNDEFINED) for column in sorted(arch.callee_saved) if column not in (arch.sp, arch.fp)]
    if row.ra:
        ra = _recovered(row.ra, arch)
    elif section.fixed_ra:
        ra = RegRule(RegKind.AT_CFA, section.fixed_ra)
    else:
        ra = RegRule(RegKind.REG_PLUS, 0, arch.lr)
    fp = _recovered(row.fp, arch) if row.fp else None
    if fp is None and section.fixed_fp:
        fp = RegRule(RegKind.AT_CFA, section.fixed_fp)
    regs = tuple(lost) if fp is None else (*lost, (arch.fp, fp))
    base = arch.dwarf[row.cfa.register or 0]
    return Rule(base, row.cfa.offset, ra, regs, row.cfa.deref, b"", signal, row.mangled)


def _recovered(place: Place, arch: Arch) -> RegRule:
    if place.register is None:
        return RegRule(RegKind.AT_CFA if place.deref else RegKind.CFA_PLUS, place.offset)
    kind = RegKind.AT_REG if place.deref else RegKind.REG_PLUS
    return RegRule(kind, place.offset, arch.dwarf[place.register])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sections())
def test_written_section_comes_back_unchanged(section: Section) -> None:
    source = read_sframe(write(section), section.svma, section.arch)
    ascending = sorted(section.functions, key=lambda function: function.start)
    wanted = [expected(section, function) for function in ascending]
    assert list(source.functions()) == wanted
    for i, (function, rows) in enumerate(zip(ascending, wanted, strict=True)):
        assert source.function_at(rows.starts[0]) == rows
        first = rows.starts[0] - rows.start
        last = (function.size - 1) % rows.repeat if rows.repeat else function.size - 1
        assert source.function_at(rows.end - 1) == (rows if last >= first else None)
        entry = source.entry(i)
        assert (entry.start, entry.size, entry.count) == (function.start, function.size, len(function.rows))
        assert (entry.signal, entry.flex, entry.repeat) == (function.signal, function.flex, function.repeat)
        assert entry.pauth_key == "ab"[function.key_b]
