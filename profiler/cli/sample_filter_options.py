"""Options that choose samples of a profile, common to all commands that read a file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pyprof.cli.argument_types import label, positive_int, regex

if TYPE_CHECKING:
    from pyprof.model.profile import Profile

CRITERIA = ("thread", "process", "pid", "tid", "function", "exclude", "module", "label")
"""Names of options that choose samples, and of the criteria of Profile.filter() that they set."""


def add_criteria(what: argparse._ArgumentGroup) -> None:
    what.add_argument("--thread", type=regex, metavar="REGEX", help="threads with this in their name")
    what.add_argument("--process", type=regex, metavar="REGEX", help="processes with this in their name")
    what.add_argument(
        "-p", "--pid", type=positive_int, action="append", metavar="PID", help="processes; may be repeated"
    )
    what.add_argument("--tid", type=positive_int, action="append", metavar="TID", help="threads; may be repeated")
    what.add_argument(
        "--function",
        "--include",
        type=regex,
        metavar="REGEX",
        help="stacks through a function with this in its name",
    )
    what.add_argument("--exclude", type=regex, metavar="REGEX", help="no stacks through such a function")
    what.add_argument(
        "--label",
        type=label,
        action="append",
        metavar="NAME=VALUE",
        help="what was recorded with this label; of several values of a name one is enough",
    )
    what.add_argument("--module", type=regex, metavar="REGEX", help="stacks through such a file, of Python a script")


def chosen(profile: Profile, arguments: argparse.Namespace) -> Profile:
    """Return the profile with only the samples that the options choose."""
    criteria = {name: getattr(arguments, name) for name in CRITERIA}
    if arguments.label is not None:
        criteria["label"] = {name: {v for n, v in arguments.label if n == name} for name, _ in arguments.label}
    return profile.filter(**criteria) if any(each is not None for each in criteria.values()) else profile
