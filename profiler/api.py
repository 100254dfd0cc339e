"""The functions of the library, which `import pyprof` exports.

No library code prints, reads command-line arguments or handles signals. It raises the exceptions of pyprof.errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from inspect import get_annotations
from typing import Concatenate, ParamSpec, TypeVar

from pyprof.collectors.targets.command_launch import launch
from pyprof.errors import UsageError
from pyprof.model.profile import Profile
from pyprof.options import DumpOptions, RecordOptions, RemoteOptions, TargetOptions
from pyprof.session import recording_factory, thread_dump
from pyprof.session.recording import Recording
from pyprof.session.thread_dump import ThreadStacks

Target = int | Sequence[str] | TargetOptions | RemoteOptions
"""Type of the target of a recording: a pid, a command with its arguments, criteria for processes, or a GDB stub."""

P = ParamSpec("P")
Opts = TypeVar("Opts")
R = TypeVar("R")
T = TypeVar("T")


def _keywords_of(options: Callable[P, Opts]) -> Callable[[Callable[[T, Opts], R]], Callable[Concatenate[T, P], R]]:
    """Return a decorator that replaces a function's last parameter, an options object, by keyword arguments for the
    fields of the options.

    Args:
        options: Class of the options.
    """

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
    """Begin to record in a separate thread, and return when samples are taken.

    The result is a context manager that ends the recording and frees its resources. A command that still runs when the
    recording is closed is ended by SIGTERM.

    Args:
        target: A pid, a command as a sequence of words, TargetOptions or RemoteOptions.
        options: The fields of RecordOptions, as keyword arguments.

    Raises:
        NoSuchProcess: There is no such process.
        AccessDenied: The caller may not read the process.
        NotTraceable: The process cannot be sampled.
        UnsupportedArchitecture: The process has an unknown architecture.
        UsageError: An option is invalid.
        CommandNotFound: There is no such command.
        RemoteError: The stub cannot be reached, or does not answer.
    """
    recording = _opened(target, options)
    try:
        recording.start()
        recording.wait_for_sampling()
    except BaseException:
        recording.close()
        raise
    return recording


@_keywords_of(RecordOptions)
def record(target: Target, options: RecordOptions) -> Profile:
    """Record until `duration` seconds are over or the target has ended, and return the profile.

    Arguments and errors are those of attach(). An error that ends the recording early is raised, too. With attach(),
    what was recorded until then is kept.
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
    """Return the current stacks of all threads of a process. Sleeping threads are read without stopping them.

    Args:
        target: A pid or RemoteOptions.
        options: The fields of DumpOptions, as keyword arguments.

    Raises:
        NoSuchProcess: There is no such process.
        AccessDenied: The caller may not read the process.
        NotTraceable: The process cannot be stopped.
        UnsupportedArchitecture: The process has an unknown architecture.
        UsageError: An option is invalid.
        RemoteError: The stub cannot be reached, or does not answer.
    """
    if isinstance(target, RemoteOptions):
        return thread_dump.of_stub(target, options)
    if not _is_pid(target):
        raise UsageError(f"{target!r} is not a target; a target is a pid, or RemoteOptions")
    return thread_dump.of_process(target, options)


def _is_pid(target: object) -> bool:
    return isinstance(target, int) and not isinstance(target, bool)


def _opened(target: Target, options: RecordOptions) -> Recording:
    if isinstance(target, TargetOptions):
        return recording_factory.of_processes(target, options)
    if isinstance(target, RemoteOptions):
        return recording_factory.of_stub(target, options)
    if isinstance(target, int) and _is_pid(target):
        return recording_factory.of_processes(TargetOptions(pids=(target,)), options)
    if isinstance(target, str):
        raise UsageError(f"a command is a list of words, not {target!r}", "shlex.split() splits a command line")
    if not isinstance(target, Sequence) or not all(isinstance(word, str) for word in target):
        raise UsageError(f"{target!r} is not a target; a target is a pid, a command, TargetOptions or RemoteOptions")
    return recording_factory.of_command(launch(target), options)
