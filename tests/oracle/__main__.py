"""Command line of the single-step oracle: python -m tests.oracle [options] PROGRAM [ARG...]."""

from __future__ import annotations

import argparse
import sys

import orjson

import tests.oracle
from pyprof.cli.arguments import source_list
from tests.oracle.report import as_json, lines
from tests.oracle.run import Oracle, Plan


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.oracle",
        description=tests.oracle.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="start", default="start", metavar="WHERE", help="entry, start or a symbol")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="stop after N instructions")
    parser.add_argument("--seconds", type=float, default=0, metavar="S", help="stop after S seconds")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="compare one new state of N")
    parser.add_argument("--only", default="", metavar="TEXT", help="compare only while in a module named like this")
    parser.add_argument(
        "--unwind", type=source_list, default=None, metavar="LIST", help="sources, as pyprof record has them"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM [ARG...]")
    options = parser.parse_args()
    if not options.command:
        parser.error("which program?")
    plan = Plan(options.start, options.limit, options.every, seconds=options.seconds, only=options.only)
    if options.unwind:
        plan = Plan(plan.start, plan.limit, plan.every, options.unwind, plan.seconds, plan.only)
    result = Oracle(options.command, plan).run()
    if options.json:
        sys.stdout.write(orjson.dumps(as_json(result), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(result)) + "\n")
    return 0 if result.exact == result.compared and not result.judge.walkers_differ else 3


if __name__ == "__main__":
    sys.exit(main())
