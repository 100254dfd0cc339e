"""The library: what `import pyprof` gives.

Nothing here or below prints, reads arguments or handles signals. Errors are those of pyprof.errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import get_annotations
from typing import Concatenate, ParamSpec, TypeVar

from pyprof.collectors.targets.launch import launch
from pyprof.errors import UsageError
from pyprof.model.profile import Profile
from pyprof.options import DumpOptions, RecordOptions, RemoteOptions, TargetOptions
from pyprof.session import opening, snapshot
from pyprof.session.recording import Recording
from pyprof.session.snapshot import ThreadStacks

Target = int | Sequence[str] | TargetOptions | RemoteOptions
"""A pid; a command with its arguments, which is started; processes by what they have in common; a GDB stub."""

P = ParamSpec("P")
Opts = TypeVar("Opts")
R = TypeVar("R")
T = TypeVar("T")


def _keywords_of(options: Callable[P, Opts]) -> Callable[[Callable[[T, Opts], R]], Callable[Concatenate[T, P], R]]:
    """The function takes the fields of the options as keyword arguments."""

    def decorate(function: Callable[[T, Opts], R]) -> Callable[Concatenate[T, P], R]:
        def call(target: T, /, *arguments: P.args, **keywords: P.kwargs) -> R:
            return function(target, options(*arguments, **keywords))

        own, fields = inspect.signature(function), inspect.signature(options).parameters.values()
        first = next(iter(own.parameters.values())).replace(kind=inspect.Parameter.POSITIONAL_ONLY)
        named_here = get_annotations(options)
        parameters = [first, *sorted(fields, key=lambda field: field.name not in named_here)]
        update_wrapper(call, function)
        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate


@_keywords_of(RecordOptions)
def attach(target: Target, options: RecordOptions) -> Recording:
    """Begin to record, in a thread of its own: a context manager, which ends the recording and leaves nothing behind.

    target: a pid, a command as a sequence of words, TargetOptions, RemoteOptions. The keyword arguments are the fields
    of RecordOptions. A command that still runs when the recording is closed is ended by SIGTERM.

    Raises NoSuchProcess, AccessDenied, NotTraceable, UnsupportedArchitecture, UsageError, CommandNotFound,
    RemoteError.
    """
    recording = _opened(target, options)
    recording.start()
    return recording


@_keywords_of(RecordOptions)
def record(target: Target, options: RecordOptions) -> Profile:
    """Record until `duration` seconds are over or the target has ended, and return the profile.

    Arguments and errors are those of attach(). What ends a recording early is raised, too; attach() keeps what was
    recorded until then.
    """
    with _opened(target, options) as recording:
        recording.start()
        recording.wait()
        profile = recording.stop()
        if recording.failure is not None:
            raise recording.failure
        return profile


@_keywords_of(DumpOptions)
def dump(target: int | RemoteOptions, options: DumpOptions) -> ThreadStacks:
    """What every thread of a process is doing now. Sleeping threads are read without stopping them.

    target: a pid, or RemoteOptions. The keyword arguments are the fields of DumpOptions. Raises NoSuchProcess,
    AccessDenied, NotTraceable, UnsupportedArchitecture, UsageError, RemoteError.
    """
    if isinstance(target, RemoteOptions):
        return snapshot.of_stub(target, options)
    if not _is_pid(target):
        raise UsageError(f"{target!r} is no target: a pid, or RemoteOptions")
    return snapshot.of_process(target, options)


def _is_pid(target: object) -> bool:
    return isinstance(target, int) and not isinstance(target, bool)


def _opened(target: Target, options: RecordOptions) -> Recording:
    if isinstance(target, TargetOptions):
        return opening.of_processes(target, options)
    if isinstance(target, RemoteOptions):
        return opening.of_stub(target, options)
    if isinstance(target, int) and _is_pid(target):
        return opening.of_processes(TargetOptions(pids=(target,)), options)
    if isinstance(target, str):
        raise UsageError(f"a command is a sequence of words, not {target!r}", "shlex.split() makes one of a line")
    if not isinstance(target, Sequence) or not all(isinstance(word, str) for word in target):
        raise UsageError(f"{target!r} is no target: a pid, a command, TargetOptions or RemoteOptions")
    return opening.of_command(launch(target), options)
