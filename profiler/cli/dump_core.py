"""`pyprof dump` of a core file or a crash dump: threads, why the process died, registers.

References: signal(7), sigaction(2); winnt.h of Windows (exceptions, the codes of __fastfail); mach/exception_types.h of
macOS; Crashpad's util/mach/mach_extensions.h and client/simulate_crash_win.h.
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal_output
from pyprof.cli.arguments import unwind_options
from pyprof.cli.dump_stacks import Subject
from pyprof.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from pyprof.model.profile import Profile
    from pyprof.objfile.minidump_content import DumpException, DumpModule
    from pyprof.session.core_and_crash_dump_profile import PostMortem, StatedCrash


def subject(arguments: argparse.Namespace) -> Subject:
    """Examine a core file, a minidump or a microdump for `pyprof dump`. A forked worker parses the file."""
    from pyprof.options import DeadTarget
    from pyprof.session.core_and_crash_dump_profile import examined
    from pyprof.session.worker.worker_process import forked

    target = DeadTarget(
        path=arguments.core or arguments.minidump,
        is_minidump=not arguments.core,
        exe=os.path.abspath(arguments.exe) if arguments.exe else "",
        sysroot=arguments.sysroot,
        stack_size=arguments.stack_size,
        unwind=unwind_options(arguments),
        registers=arguments.json or arguments.registers,
        sandbox=arguments.sandbox,
        goroutines=arguments.goroutines,
    )
    found = examined(target, forked)
    return of_core(target.path, found) if found.crash is None else of_minidump(target.path, found, found.crash)


def of_core(path: str, found: PostMortem) -> Subject:
    signal = crash_signal(found.signal)
    return Subject(
        found.pid,
        found.exe,
        found.arch,
        found.profile,
        found.threads,
        header=(f"core {path} of process {found.pid} {found.exe} ({found.arch})",),
        reason=f"killed by {signal.text}" if signal else "",
        facts={"signal": signal.to_json() if signal else None},
        registers=found.registers,
        post_mortem=True,
    )


def of_minidump(path: str, found: PostMortem, crash: StatedCrash) -> Subject:
    """Return the threads and the crash reason of a minidump or microdump for `pyprof dump`."""
    reason = crash_reason(crash.system, crash.exception)
    system = " ".join(word for word in (crash.system, crash.version) if word)
    facts = {
        "os": crash.system or None,
        "os_version": crash.version or None,
        "crash": reason.to_json() if reason else None,
        "modules": [stated(module) for module in crash.modules],
    }
    return Subject(
        found.pid,
        found.exe,
        found.arch,
        found.profile,
        found.threads,
        header=(f"dump {path} of process {found.pid} {found.exe} ({found.arch})", *((system,) if system else ())),
        reason=f"crashed: {reason.text}" if reason else "",
        facts=facts,
        registers=found.registers,
        post_mortem=True,
    )


def stated(module: DumpModule) -> dict[str, str | None]:
    return {
        "path": module.path,
        "start": f"{module.base:#x}",
        "end": f"{module.base + module.size:#x}",
        "debug_id": module.debug_id or None,
        "build_id": module.build_id or None,
    }


def complain(profile: Profile) -> None:
    """Print the tolerated errors of a core file or crash dump, and the files that its modules lack. Each hint is
    printed once.
    """
    from pyprof.model.loss_reason_table import DUMPS
    from pyprof.model.loss_reason_texts import counted, counter_title

    said = set()
    for key, count in profile.summary.errors.items():
        reason = counted(key)
        hint = reason.hint if reason in DUMPS and reason.hint not in said else ""
        terminal_output.complain(f"{counter_title(key)}: {count}", hint)
        said.add(hint)
    for module in profile.summary.modules:
        for problem in module.problems:
            hint = "" if problem.hint in said else problem.hint
            terminal_output.complain(f"{module.path}: {problem.text}", hint)
            said.add(hint)


def lacks_files(profile: Profile) -> bool:
    """Return True if stacks of a dead process may lack frames because files of its modules are missing or not the right
    ones.
    """
    from pyprof.collectors.postmortem.core_process import NO_PROGRAM, OTHER_PROGRAM
    from pyprof.objfile.mapped_object_files import DIFFERS, NO_SYMBOLS, NOT_COMPARED, NOT_FOUND

    missing = {DIFFERS, NOT_COMPARED, NOT_FOUND, NO_SYMBOLS, NO_PROGRAM, OTHER_PROGRAM}
    return not profile.summary.errors.keys().isdisjoint(missing)


def facts(subject: Subject) -> dict[str, Any]:
    """Return the additional JSON entries of `pyprof dump` for a process that has died: its signal or exception."""
    problems = [
        {
            "module": module.path,
            "build_id": module.build_id or None,
            "reason": problem.reason,
            "text": problem.text,
            "hint": problem.hint,
        }
        for module in subject.profile.summary.modules
        for problem in module.problems
    ]
    return {**subject.facts, "problems": problems}


CODES = {
    ("SIGSEGV", 1): "SEGV_MAPERR",
    ("SIGSEGV", 2): "SEGV_ACCERR",
    ("SIGSEGV", 4): "SEGV_PKUERR",
    ("SIGSEGV", 9): "SEGV_MTESERR",
    ("SIGBUS", 1): "BUS_ADRALN",
    ("SIGBUS", 2): "BUS_ADRERR",
    ("SIGBUS", 3): "BUS_OBJERR",
    ("SIGFPE", 1): "FPE_INTDIV",
    ("SIGSEGV", 3): "SEGV_BNDERR",
    ("SIGFPE", 2): "FPE_INTOVF",
    ("SIGILL", 3): "ILL_ILLADR",
    ("SIGILL", 4): "ILL_ILLTRP",
    ("SIGILL", 5): "ILL_PRVOPC",
    ("SIGTRAP", 1): "TRAP_BRKPT",
    ("SIGILL", 1): "ILL_ILLOPC",
    ("SIGILL", 2): "ILL_ILLOPN",
}


EXCEPTIONS = {
    0x40010005: "DBG_CONTROL_C",
    0x80000001: "EXCEPTION_GUARD_PAGE",
    0x80000002: "EXCEPTION_DATATYPE_MISALIGNMENT",
    0x80000003: "EXCEPTION_BREAKPOINT",
    0x80000004: "EXCEPTION_SINGLE_STEP",
    0xC0000005: "EXCEPTION_ACCESS_VIOLATION",
    0xC0000006: "EXCEPTION_IN_PAGE_ERROR",
    0xC0000008: "EXCEPTION_INVALID_HANDLE",
    0xC000001D: "EXCEPTION_ILLEGAL_INSTRUCTION",
    0xC0000025: "EXCEPTION_NONCONTINUABLE_EXCEPTION",
    0xC0000026: "EXCEPTION_INVALID_DISPOSITION",
    0xC000008C: "EXCEPTION_ARRAY_BOUNDS_EXCEEDED",
    0xC000008D: "EXCEPTION_FLT_DENORMAL_OPERAND",
    0xC000008E: "EXCEPTION_FLT_DIVIDE_BY_ZERO",
    0xC000008F: "EXCEPTION_FLT_INEXACT_RESULT",
    0xC0000090: "EXCEPTION_FLT_INVALID_OPERATION",
    0xC0000091: "EXCEPTION_FLT_OVERFLOW",
    0xC0000092: "EXCEPTION_FLT_STACK_CHECK",
    0xC0000093: "EXCEPTION_FLT_UNDERFLOW",
    0xC0000094: "EXCEPTION_INT_DIVIDE_BY_ZERO",
    0xC0000095: "EXCEPTION_INT_OVERFLOW",
    0xC0000096: "EXCEPTION_PRIV_INSTRUCTION",
    0xC00000FD: "EXCEPTION_STACK_OVERFLOW",
    0xC0000194: "EXCEPTION_POSSIBLE_DEADLOCK",
    0xC0000374: "STATUS_HEAP_CORRUPTION",
    0xC0000409: "STATUS_STACK_BUFFER_OVERRUN",
    0xE06D7363: "unhandled C++ exception",
    0x0517A7ED: "simulated exception",
}
ADDRESS_SIGNALS = frozenset({4, 5, 7, 8, 11})
"""Numbers of the Linux signals for which si_addr is the address of the fault: SIGILL, SIGTRAP, SIGBUS, SIGFPE,
SIGSEGV.
"""
ABOUT_MEMORY = (0xC0000005, 0xC0000006)
"""Codes of Windows exceptions about memory: access violation and in-page error. Their parameters are the kind of access
and the address.
"""
ACCESSES = {0: "_READ", 1: "_WRITE", 8: "_EXEC"}

STACK_BUFFER_OVERRUN = 0xC0000409
"""Exception code of Windows for a stack buffer overrun. __fastfail uses it too, with its own code as the first
parameter.
"""
_FAST_FAILS = """
LEGACY_GS_VIOLATION VTGUARD_CHECK_FAILURE STACK_COOKIE_CHECK_FAILURE CORRUPT_LIST_ENTRY INCORRECT_STACK INVALID_ARG
GS_COOKIE_INIT FATAL_APP_EXIT RANGE_CHECK_FAILURE UNSAFE_REGISTRY_ACCESS GUARD_ICALL_CHECK_FAILURE
GUARD_WRITE_CHECK_FAILURE INVALID_FIBER_SWITCH INVALID_SET_OF_CONTEXT INVALID_REFERENCE_COUNT - - - INVALID_JUMP_BUFFER
MRDATA_MODIFIED CERTIFICATION_FAILURE INVALID_EXCEPTION_CHAIN CRYPTO_LIBRARY INVALID_CALL_IN_DLL_CALLOUT
INVALID_IMAGE_BASE DLOAD_PROTECTION_FAILURE UNSAFE_EXTENSION_CALL DEPRECATED_SERVICE_INVOKED INVALID_BUFFER_ACCESS
INVALID_BALANCED_TREE INVALID_NEXT_THREAD GUARD_ICALL_CHECK_SUPPRESSED APCS_DISABLED INVALID_IDLE_STATE
MRDATA_PROTECTION_FAILURE UNEXPECTED_HEAP_EXCEPTION INVALID_LOCK_STATE GUARD_JUMPTABLE INVALID_LONGJUMP_TARGET
INVALID_DISPATCH_CONTEXT INVALID_THREAD INVALID_SYSCALL_NUMBER INVALID_FILE_OPERATION LPAC_ACCESS_DENIED
GUARD_SS_FAILURE LOADER_CONTINUITY_FAILURE GUARD_EXPORT_SUPPRESSION_FAILURE INVALID_CONTROL_STACK SET_CONTEXT_DENIED
INVALID_IAT HEAP_METADATA_CORRUPTION PAYLOAD_RESTRICTION_VIOLATION LOW_LABEL_ACCESS_DENIED ENCLAVE_CALL_FAILURE
UNHANDLED_LSS_EXCEPTON ADMINLESS_ACCESS_DENIED UNEXPECTED_CALL CONTROL_INVALID_RETURN_ADDRESS UNEXPECTED_HOST_BEHAVIOR
FLAGS_CORRUPTION VEH_CORRUPTION ETW_CORRUPTION RIO_ABORT INVALID_PFN GUARD_ICALL_CHECK_FAILURE_XFG CAST_GUARD
HOST_VISIBILITY_CHANGE KERNEL_CET_SHADOW_STACK_ASSIST PATCH_CALLBACK_FAILED NTDLL_PATCH_FAILED INVALID_FLS_DATA
ASAN_ERROR CLR_EXCEPTION_AOT POINTER_AUTH_INVALID_RETURN_ADDRESS INVALID_THREAD_STATE CORRUPT_WOW64_STATE
INVALID_EXTENDED_STATE KERNEL_POINTER_EXPECTED
"""
FAST_FAILS = {code: f"FAST_FAIL_{name}" for code, name in enumerate(_FAST_FAILS.split()) if name != "-"}

NS_EXCEPTION = 0x43506E78
"""Exception code 'CPnx' of macOS: an uncaught Objective-C exception; it has no address."""
MACH_EXCEPTIONS = {
    1: "EXC_BAD_ACCESS",
    2: "EXC_BAD_INSTRUCTION",
    3: "EXC_ARITHMETIC",
    4: "EXC_EMULATION",
    5: "EXC_SOFTWARE",
    6: "EXC_BREAKPOINT",
    10: "EXC_CRASH",
    11: "EXC_RESOURCE",
    12: "EXC_GUARD",
    0x43507378: "simulated exception",
    NS_EXCEPTION: "uncaught NSException",
}


@dataclass(frozen=True, slots=True)
class CrashSignal:
    """The signal that killed a process, with its code and the address of the fault.

    Attributes:
        number: Signal number.
        name: Name of the signal.
        code: Name of si_code, "" if it has no meaning.
        address: Address that was accessed or executed, None if the signal is not about an address.
    """

    number: int
    name: str
    code: str
    address: int | None

    @property
    def text(self) -> str:
        words = [self.name, self.code]
        if self.address is not None:
            words.append(f"at {self.address:#x}")
        return " ".join(word for word in words if word)

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "name": self.name,
            "code": self.code or None,
            "address": None if self.address is None else f"{self.address:#x}",
        }


def crash_signal(recorded: tuple[int, int, int | None] | None) -> CrashSignal | None:
    """Return the signal that killed the process of a core file, None if the file states none.

    Signal numbers are the same on all architectures that pyprof supports.

    Args:
        recorded: (number, si_code, address).
    """
    if recorded is None:
        return None
    number, code, address = recorded
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return CrashSignal(number, name, CODES.get((name, code), ""), address)


@dataclass(frozen=True, slots=True)
class CrashReason:
    """The reason for a crash according to a crash dump.

    Attributes:
        code: Exception or signal number, as in the dump.
        flags: Flags of the exception, as in the dump.
        address: Address that was accessed or executed, None if the reason is not about an address.
    """

    tid: int
    name: str
    code: int
    flags: int
    address: int | None
    parameters: tuple[int, ...]

    @property
    def text(self) -> str:
        return self.name if self.address is None else f"{self.name} at {self.address:#x}"

    def to_json(self) -> dict[str, Any]:
        return {
            "tid": self.tid,
            "reason": self.name,
            "code": f"{self.code:#x}",
            "flags": f"{self.flags:#x}",
            "address": None if self.address is None else f"{self.address:#x}",
            "parameters": [f"{value:#x}" for value in self.parameters],
        }


def crash_reason(system: str, recorded: DumpException | None) -> CrashReason | None:
    """Return the reason for a crash that a crash dump states. `system` is the operating system, CrashDump.os."""
    if recorded is None:
        return None
    address: int | None = recorded.address
    if system == "windows":
        name = EXCEPTIONS.get(recorded.code, f"exception {recorded.code:#x}")
        if recorded.code in ABOUT_MEMORY and len(recorded.parameters) >= 2:
            name += ACCESSES.get(recorded.parameters[0], "")
            address = recorded.parameters[1]
        elif recorded.code == STACK_BUFFER_OVERRUN and recorded.parameters:
            name += f" {FAST_FAILS.get(recorded.parameters[0], f'fast fail {recorded.parameters[0]}')}"
    elif system in ("linux", "android"):
        signal_ = crash_signal((recorded.code, recorded.flags, recorded.address))
        assert signal_ is not None
        name = " ".join(word for word in (recorded.name or signal_.name, signal_.code) if word)
        address = recorded.address if recorded.code in ADDRESS_SIGNALS else None
    else:
        name = MACH_EXCEPTIONS.get(recorded.code, f"exception {recorded.code:#x}")
        address = None if recorded.code == NS_EXCEPTION else recorded.address
    return CrashReason(recorded.tid, name, recorded.code, recorded.flags, address, recorded.parameters)
