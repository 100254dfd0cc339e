"""Tests of the agent's configuration: defaults are printed correctly and every error names its line."""

from __future__ import annotations

import os
import re

import pytest

from pyprof.fleet.agent.config import (
    SETTINGS,
    Values,
    nameless_hosts,
    parse,
    printed,
    unmatched_rules,
    warnings,
    without_file,
)
from pyprof.fleet.agent.process_rules import SamplingChoice, Template, asked_facts, judge
from pyprof.fleet.toml_config_files import BadConfig

HOST = ("host", os.uname().nodename)

WRONG = """\
[spool]
max_byte = "1G"
max_age = 12
max_bytes = "10"

[windws]
[sampling]
rate = 0
modes = ["gpu"]
collector = 7

[labels]
pid = "7"

[[rule]]
name = "x"

[[rule]]
usr = "x"
cmdline = "("
service = "{nix}"
labels = { version = "{env:}" }

[[rule]]
name = 3
action = "perhaps"
service = "a}"
"""


def test_every_error_has_its_line() -> None:
    with pytest.raises(BadConfig) as caught:
        parse(WRONG, "agent.toml")
    assert [(each.line, re.split(r"[ :]", each.text)[0]) for each in caught.value.errors] == [
        (2, "max_byte"),
        (3, "max_age"),
        (4, "max_bytes"),
        (6, "windws"),
        (8, "rate"),
        (9, "modes"),
        (10, "collector"),
        (12, "labels"),
        (19, "usr"),
        (20, "cmdline"),
        (21, '"{nix}"'),
        (22, '"{env'),
        (25, "name"),
        (26, "action"),
        (27, '"a}"'),
    ]
    assert "(15 errors)" in caught.value.message


@pytest.mark.parametrize(
    ("text", "line"), [("a = 1\nb = [", 2), ("\n\nx y\n", 3), ("rule = 7\n", 1), ("[spool]\n" * 2, 2)]
)
def test_broken_toml_has_its_line(text: str, line: int) -> None:
    with pytest.raises(BadConfig) as caught:
        parse(text, "agent.toml")
    assert caught.value.errors[0].line == line


def test_printed_configuration_is_the_default() -> None:
    plain = parse(printed(), "printed")
    assert plain.values == Values()
    assert plain.rules == without_file().rules
    settings = re.sub(r"^#(\w+ = )(?!\.\.\.)", r"\1", printed(), flags=re.M)
    with_all = parse(settings, "printed")
    assert with_all.values == Values(labels={"host": "{hostname}", "env": "staging"})
    assert all(f"\n#{setting.name} = " in printed() for setting in SETTINGS)


NO_EFFECT = """\
[windows]
every = "1s"
durable = "10m"

[labels]
service = "all"

[[rule]]
name = ["short", "longer-than-fifteen-letters"]
labels = { service = "short" }

[[rule]]
exe = "cworker"

[[rule]]
exe = "*/cworker"
name = "longer-than-fifteen*"
user = "0"

[[rule]]
user = "nosuchuser-"

[[rule]]
name = "*"

[[rule]]
name = "web"
"""


def test_rules_and_settings_without_effect_are_warned_of_with_their_lines() -> None:
    parse(NO_EFFECT, "agent.toml")
    assert [(each.line, each.text.split()[0]) for each in warnings(NO_EFFECT, "agent.toml")] == [
        (3, "durable"),
        (6, "the"),
        (9, "name"),
        (10, "the"),
        (13, "exe"),
        (21, "user"),
        (26, "this"),
    ]
    assert warnings(printed(), "printed") == []


def test_first_rule_that_fits_decides() -> None:
    rules = parse(
        """
[labels]
env = "staging"
[[rule]]
name = ["ssh*", "cron"]
action = "exclude"
[[rule]]
user = "web"
cgroup = "/system.slice"
service = "{unit|name}"
labels = { version = "{env:VERSION}", empty = "{container}" }
rate = 49
modes = ["cpu", "offcpu"]
[[rule]]
cmdline = "serve[r]"
""",
        "x",
    ).rules
    facts = {"name": "sshd", "user": "web", "cgroup": "/system.slice/a.service/x", "cmdline": "server"}
    ask = dict(facts).get
    assert not judge(rules, lambda name: ask(name, "")).samplings
    facts |= {"name": "python3", "unit": "a.service", "env:VERSION": "1.\n2" + "x" * 300}
    found = judge(rules, lambda name: facts.get(name, ""))
    assert found.service == "a.service"
    version = "1.?2" + "x" * 196
    assert found.labels == (("env", "staging"), HOST, ("service", "a.service"), ("version", version))
    assert found.samplings == (SamplingChoice(49.0, "cpu", "extensions"), SamplingChoice(49.0, "offcpu", "extensions"))
    facts |= {"cgroup": "/system.slices"}
    third = judge(rules, lambda name: facts.get(name, ""))
    assert (third.service, [each.rate for each in third.samplings]) == ("python3", [19.0])
    assert not judge(rules, lambda name: "").samplings


@pytest.mark.parametrize(
    ("template", "host"),
    [
        ("", HOST[1]),
        ('host = "{hostname}.example"', f"{HOST[1]}.example"),
        ('host = "{agent_env:NODE_NAME|hostname}"', "node-7"),
        ('host = "{unit|agent_env:ABSENT|agent_env:NODE_NAME|name}"', "node-7"),
        ('host = "{agent_env:ABSENT|name|hostname}"', "web"),
        ('host = "{agent_env:NODE_PASSWORD}"', "<redacted>"),
    ],
)
def test_host_is_that_of_the_agent_unless_a_template_names_another(
    monkeypatch: pytest.MonkeyPatch, template: str, host: str
) -> None:
    monkeypatch.setenv("NODE_NAME", "node-7")
    monkeypatch.setenv("NODE_PASSWORD", "x")
    monkeypatch.delenv("ABSENT", raising=False)
    rules = parse(f"[labels]\n{template}\n[[rule]]\nname = 'web'\n", "agent.toml").rules
    facts = {"name": "web"}
    assert dict(judge(rules, lambda name: facts.get(name, "")).labels)["host"] == host
    assert asked_facts(rules) <= {"name", "unit"}


def test_template_takes_text_as_it_is() -> None:
    facts = {"name": "{unit}", "unit": "u"}
    assert Template.parse("a{name}b").filled(lambda name: facts.get(name, "")) == "a{unit}b"


RELOADED = """
[windows]
every = "60s"
[sampling]
rate = 19
collector = "auto"
[budget]
cpu = 1
memory = "200M"
over = "60s"
[record]
last = "10m"
[labels]
env = "a"
[[rule]]
user = "1"
"""


@pytest.mark.parametrize(
    ("before", "after", "continues"),
    [
        ("cpu = 1", "cpu = 2", True),
        ("200M", "100M", True),
        ('over = "60s"', 'over = "90s"', True),
        ("10m", "20m", True),
        ('every = "60s"', 'every = "90s"', False),
        ("rate = 19", "rate = 20", False),
        ("auto", "perf", False),
        ('env = "a"', 'env = "b"', False),
        ('user = "1"', 'user = "2"', False),
    ],
)
def test_only_changes_of_what_recordings_depend_on_restart_them(before: str, after: str, continues: bool) -> None:
    found = parse(RELOADED, "agent.toml")
    other = parse(RELOADED.replace(before, after), "agent.toml")
    assert other != found
    assert other.is_recorded_like(found) == continues


@pytest.mark.parametrize("name", ["bad label!", "1st", "a=b", "", "é", "x" * 101])
def test_label_names_have_the_letters_that_queries_can_name(name: str) -> None:
    for table in ("[labels]\n{}\n[[rule]]\nname = 'x'\n", "[[rule]]\nname = 'x'\nlabels = {{ {} }}\n"):
        with pytest.raises(BadConfig, match="names are a-z, A-Z, 0-9"):
            parse(table.format(f'"{name}" = "x"'), "agent.toml")
        assert parse(table.format('"app.kubernetes.io/part-of_2" = "x"'), "agent.toml")


def test_all_errors_are_named_also_those_behind_another_error_of_the_same_table() -> None:
    text = """\
[sampling]
rate = 100000
[labels]
"bad name!" = "{nix"
[[rule]]
name = "x"
labels = { "1st" = "x", env = "{env}" }
[[push]]
name = "one"
type = "pyprof"
url = "not an address"
[[push]]
name = "one"
type = "folder"
path = "/srv"
"""
    with pytest.raises(BadConfig) as caught:
        parse(text, "agent.toml")
    said = [f"{each.line} {each.text}" for each in caught.value.errors]
    for wanted in (
        r"2 rate = 100000 is not a number above 0, at most 1000",
        r"\d+ labels.* has the name 'bad name!'",
        r"\d+ \"\{nix\" has a bracket",
        r"\d+ labels.* has the name '1st'",
        r"\d+ \"\{env\}\" names \{env\}",
        r"11 url is no http",
        r"13 there is another \"one\"",
    ):
        assert sum(bool(re.match(wanted, each)) for each in said) == 1, (wanted, said)
    assert len(said) == 7


SHADOWED = """\
[[rule]]
cmdline = ".*"
user = "0"
[[rule]]
name = "web"
[[rule]]
name = "absent"
[[rule]]
cmdline = ".*"
[[rule]]
name = "last"
"""


def test_rule_behind_one_that_takes_its_processes_is_told_from_one_that_fits_none() -> None:
    found = unmatched_rules(SHADOWED, "agent.toml", [1, 2, 3, 4], {1})
    assert [(each.line, each.text.partition(":")[0]) for each in found] == [
        (4, "earlier rules decide about all processes that fit this rule now"),
        (6, "this rule fits no process that runs now"),
        (8, "this rule fits no process that runs now"),
    ]
    assert [each.line for each in warnings(SHADOWED, "agent.toml")] == [10], "a rule is named once"


@pytest.mark.parametrize(
    ("label", "warned"),
    [
        ("", ""),
        ('host = "{agent_env:ABSENT}"', "the label host is empty"),
        ('host = "{env:ABSENT}"', "the label host may be empty"),
        ('host = "{env:ABSENT|hostname}"', ""),
        ('host = "h"', ""),
    ],
)
def test_host_without_a_name_is_warned_of(monkeypatch: pytest.MonkeyPatch, label: str, warned: str) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    found = list(nameless_hosts(parse(f"[labels]\n{label}\n[[rule]]\nname = 'web'\n", "agent.toml")))
    assert [text.partition(":")[0].partition(",")[0] for text in found] == ([warned] if warned else [])
