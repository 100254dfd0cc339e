"""`pyprof agent`: record what rules choose, for as long as the machine runs, and keep it in a spool."""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyprof.cli.arguments import positive
from pyprof.cli.terminal_output import HelpFormatter, line
from pyprof.errors import UsageError
from pyprof.options import SIMPLE_MODES

if TYPE_CHECKING:
    from pyprof.cli.terminal_output import Log
    from pyprof.fleet.agent.config import AgentConfig

WHAT = ("run", "status", "conditions", "refusals", "install", "record", "resend")
_MAX_S = 10.0
"""Maximum time in seconds from the first signal that ends the agent until its process exits.

A page of a target's memory that never arrives (userfaultfd, NFS) blocks its reader. Windows are saved regularly, so an
exit by force loses little.
"""

_MAX_FITTING = 20
"""Maximum number of rules for which --check finds out whether they fit a process. Each takes a search of /proc."""
DESCRIPTION = """\
Profile processes continuously. The rules of a configuration file choose them; without one, the
agent records all processes of the calling user. It writes a window of samples each minute to a
folder, the spool, which `pyprof query` reads. SIGTERM writes the current window and ends the
agent. SIGHUP makes it read the configuration again. A sink is a destination to which the agent
pushes its windows.

commands:
  run        record until SIGTERM or Ctrl-C (default)
  status     print the agent's health, the contents of the spool, and files without symbols
  conditions print what can impair the agent, with meanings and hints; status prints what does
  refusals   print why the agent refuses requests for recordings, with meanings and hints
  install    write a systemd unit that runs the agent
  record     get the last minutes of one service from the running agent (the setting record.last),
             and a detailed recording that starts now
  resend     send windows of the spool to their sinks again
"""

EPILOG = """\
examples:
  pyprof agent                                      this user's processes, until Ctrl-C
  pyprof agent --print-config > agent.toml          every setting, with what it means
  pyprof agent --config agent.toml --check          all errors, each with its line
  pyprof agent --config agent.toml --log json
  pyprof agent install --config /etc/pyprof/agent.toml    a systemd unit
  pyprof agent status                               contents of the spool, and files without symbols
  pyprof agent resend --config FILE --since 3h      send windows again that a receiver has lost
  pyprof agent record --service web -d 30 -r 499    the last minutes, and 30 more seconds at 499 Hz
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "agent",
        help="profile the processes that rules choose, for as long as the machine runs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=WHAT, default="run", help="see above (default: run)")
    parser.add_argument("--config", metavar="FILE", help="rules and settings (TOML)")
    parser.add_argument("--check", action="store_true", help="only check the configuration")
    parser.add_argument("--print-config", action="store_true", help="print the default configuration, commented")
    parser.add_argument(
        "--log", choices=("text", "json"), default="text", help="format of log lines (default: %(default)s)"
    )
    parser.add_argument("--spool", metavar="DIR", help="folder of the spool; overrides the setting spool.path")
    parser.add_argument(
        "--cpu-budget",
        type=float,
        metavar="PERCENT",
        help="limit of the agent's own processor time, in percent; overrides the setting budget.cpu (default: 1)",
    )
    parser.add_argument(
        "--since",
        default="1h",
        metavar="TIME",
        help="with status or resend: only windows since TIME, such as 14:00 or 2h (ago) (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="with status: print one JSON document")
    parser.add_argument(
        "--forget",
        metavar="SINK",
        help="with status: delete the windows that wait for SINK (SINK is no longer in the configuration)",
    )
    parser.add_argument(
        "--unit-dir",
        default="/etc/systemd/system",
        metavar="DIR",
        help="with install: folder for the systemd unit (default: %(default)s)",
    )
    asked = parser.add_argument_group("options of record")
    asked.add_argument("--service", metavar="NAME", help="the service to record; `pyprof agent status` lists them")
    asked.add_argument(
        "-d", "--duration", type=positive, default=30.0, metavar="S", help="record for S more seconds (default: 30)"
    )
    asked.add_argument(
        "-r",
        "--rate",
        type=positive,
        default=499.0,
        metavar="HZ",
        help="samples a second of each thread (default: 499)",
    )
    asked.add_argument(
        "--mode",
        choices=SIMPLE_MODES,
        default="",
        help="see pyprof record (default: the first mode in the rule of the service)",
    )
    asked.add_argument(
        "-o", "--output", metavar="FILE", help="write to FILE (default: a recording, pyprof-SERVICE-TIME.pyprof)"
    )
    asked.add_argument("-f", "--format", metavar="FORMAT", help="format of the output (default: by the suffix of -o)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyprof.fleet.agent import config

    if arguments.print_config:
        print(config.printed(), end="")
        return 0
    if arguments.check:
        return _check(arguments)
    if arguments.what == "record":
        from pyprof.fleet.cli.agent_record import record

        return record(arguments, _spool(arguments))
    if arguments.what == "install":
        from pyprof.fleet.cli.agent_administration import install

        for text in install(_load(arguments), arguments.config, arguments.unit_dir):
            line(text)
        return 0
    if arguments.what in ("conditions", "refusals"):
        from pyprof.fleet.cli.agent_administration import conditions, refusals

        for text in conditions() if arguments.what == "conditions" else refusals():
            line(text)
        return 0
    if arguments.what == "status":
        return _status(arguments)
    if arguments.what == "resend":
        from pyprof.fleet.cli.agent_administration import resend

        for text in resend(arguments, _load(arguments), _spool(arguments)):
            line(text)
        return 0
    return _run(arguments)


def _load(arguments: argparse.Namespace) -> AgentConfig:
    """Load the agent's configuration and apply the command-line options.

    Raises:
        BadConfig: The configuration is wrong.
        UsageError: An option is wrong.
    """
    from pyprof.fleet import toml_config_files
    from pyprof.fleet.agent import config

    if arguments.config is None:
        found = config.without_file()
    else:
        found = config.parse(toml_config_files.read(arguments.config), arguments.config)
    return _with_options(found, arguments)


def _with_options(found: AgentConfig, arguments: argparse.Namespace) -> AgentConfig:
    from pyprof.lazy_dataclasses import replace

    given: dict[str, Any] = {}
    if arguments.spool:
        given["path"] = arguments.spool
    if arguments.cpu_budget is not None:
        if not 0 < arguments.cpu_budget <= 100:
            raise UsageError("--cpu-budget must be above 0 and at most 100 (percent)", "--cpu-budget 1")
        given["cpu"] = arguments.cpu_budget
    return replace(found, values=replace(found.values, **given)) if given else found


def _spool(arguments: argparse.Namespace) -> str:
    """Return the folder of the agent's spool.

    Raises:
        BadConfig: The configuration is wrong.
        UsageError: An option is wrong.
    """
    from pyprof.fleet.wire.segment_names import default_spool

    return _load(arguments).values.path or default_spool()


def _status(arguments: argparse.Namespace) -> int:
    """Print the state of the agent and its spool. Errors of the configuration come first and prevent nothing."""
    from pyprof.fleet import toml_config_files
    from pyprof.fleet.agent import config
    from pyprof.fleet.cli.agent_administration import status
    from pyprof.fleet.toml_config_files import BadConfig
    from pyprof.fleet.wire.segment_names import default_spool

    found, errors = config.without_file(), list[toml_config_files.ConfigError]()
    if arguments.config is not None:
        found, errors = config.parse_valid(toml_config_files.read(arguments.config), arguments.config)
    if errors and arguments.forget is not None:  # its sinks are not known
        raise BadConfig(arguments.config, errors)
    found = _with_options(found, arguments)
    code = status(arguments, found, found.values.path or default_spool(), errors)
    return BadConfig.exit_code if errors else code


def _fitting(found: AgentConfig, rules: Iterable[int]) -> set[int]:
    """Return those of the rules that fit a process, whatever other rules decide about it."""
    from pyprof.fleet.agent.process_table import ProcessTable

    fitting = set()
    for at in itertools.islice(rules, _MAX_FITTING):
        table = ProcessTable((found.rules[at],), os.getpid())
        table.find_processes()
        if not table.unmatched_rules():
            fitting.add(at)
    return fitting


def _check(arguments: argparse.Namespace) -> int:
    from pyprof.fleet import toml_config_files
    from pyprof.fleet.agent import config
    from pyprof.fleet.agent.control_socket import group_number
    from pyprof.fleet.agent.process_table import ProcessTable
    from pyprof.fleet.agent.push_sink_types import missing, unusable_credentials
    from pyprof.fleet.toml_config_files import BadConfig

    if arguments.config is None:
        raise UsageError("--check needs a configuration file", "pyprof agent --config FILE --check")
    try:
        found = _load(arguments)
    except BadConfig as error:
        for each in error.errors:
            line(f"{arguments.config}: {each}")
        return error.exit_code
    if found.values.group:
        group_number(found.values.group)
    source = toml_config_files.read(arguments.config)
    table = ProcessTable(found.rules, os.getpid())
    table.find_processes()
    rules = table.unmatched_rules()
    unmatched = config.unmatched_rules(source, arguments.config, rules, _fitting(found, rules))
    warnings = map(str, (*config.warnings(source, arguments.config), *unmatched))
    for text in (*warnings, *config.nameless_hosts(found)):
        line(f"{arguments.config}: warning: {text}")
    for target in found.pushes:
        if text := missing(target):
            line(f"{arguments.config}: warning: push {target.name}: {text}")
    errors = [f"push {target.name}: {text}" for target in found.pushes if (text := unusable_credentials(target))]
    for text in errors:
        line(f"{arguments.config}: {text}")
    if errors:
        return BadConfig.exit_code
    count = len(found.rules)
    line(f"{arguments.config}: {count} rule{'s' * (count != 1)}, no error")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from pyprof.cli.signal_thread import EndBySignals, listen
    from pyprof.cli.terminal_output import Log, log_thread_failures
    from pyprof.fleet.agent.agent import Agent
    from pyprof.fleet.systemd import Notifier

    prefix = "" if arguments.log == "json" else "pyprof agent: "
    log = Log(lambda text: line(f"{prefix}{text}", sys.stderr), arguments.log == "json")
    log_thread_failures(log)
    agent = Agent(lambda: _load(arguments), log, Notifier(os.environ))
    # SIGHUP means reload, so it does not end the agent; this holds under nohup too
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ending = EndBySignals(agent.end, lambda: _left(log), _MAX_S)
    listen(lambda number: agent.reload() if number == signal.SIGHUP else ending(number))
    agent.run()
    if agent.left:
        _left(log)
    if agent.opening:
        os._exit(0)
    return 0


def _left(log: Log) -> None:
    log("error", "ended before the open windows were written: the spool has their last checkpoints")
    os._exit(1)
