"""The server's configuration: TOML in, checked values out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pyprof.errors import UsageError
from pyprof.fleet.server.authorization import READ, WRITE, Tenant
from pyprof.fleet.server.store.clickhouse_engine import PASSWORD_VARIABLE, StoreAddress, address
from pyprof.fleet.toml_config_files import BadConfig, ConfigError, Setting, Wrong, checked, document, read
from pyprof.fleet.wire.push_client import secret
from pyprof.fleet.wire.push_response_verdicts import NotSent
from pyprof.lazy_dataclasses import dataclass, replace

_MAX_TENANTS = 1000
_MIN_TOKEN = 16
_DAY_S = 86_400

SETTINGS = (
    Setting("server", "host", "TEXT", '"127.0.0.1"', "address to listen on; other than loopback only with a tenant"),
    Setting("server", "port", "PORT", "4242", "port to listen on"),
    Setting("server", "data", "PATH", '"/var/lib/pyprof-server"', "folder of the segments"),
    Setting(
        "server", "store", "TEXT", "", "chdb:///FOLDER, clickhouse://HOST:PORT/DATABASE?cluster=NAME; none: in data"
    ),
    Setting(
        "server", "store_password_file", "PATH", "", f"password of the store's user; chmod 600; or {PASSWORD_VARIABLE}"
    ),
    Setting("retention", "max_age", "SPAN", '"14d"', "age up to which windows are kept, in whole days"),
    Setting(
        "retention", "hours_after", "SPAN", '"3d"', "age from which on samples are kept as hourly sums, in whole days"
    ),
    Setting(
        "retention", "max_bytes", "SIZE", '"20G"', "maximum size of all segments; the oldest days are deleted first"
    ),
    Setting("limits", "body", "SIZE", '"16M"', "of a request"),
    Setting("limits", "rate", "COUNT", "500", "maximum number of segments a second from one tenant"),
    Setting(
        "limits", "series", "COUNT", "100000", "maximum number of different sets of labels from one tenant in a day"
    ),
    Setting("limits", "symbols", "SIZE", '"2G"', "maximum size of a tenant's symbol files"),
    Setting("limits", "question_time", "SPAN", '"30s"', "maximum time of one statement of a query in the database"),
    Setting("limits", "question_memory", "SIZE", '"2G"', "maximum memory of one statement of a query in the database"),
)
"""Settings of the server in the TOML tables that have one value for each name. The table [[tenant]] has the settings
name, write_token_file and read_token_file.
"""
TENANT = ("name", "write_token_file", "read_token_file")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Values of the server's settings. max_age (of segments) and hours_after (the age at which rollups replace raw
    rows) are in seconds.
    """

    host: str = "127.0.0.1"
    port: int = 4242
    data: str = "/var/lib/pyprof-server"
    store: str = ""
    store_password_file: str = ""
    max_age: float = 14 * 86_400.0
    hours_after: float = 3 * 86_400.0
    max_bytes: int = 20 << 30
    body: int = 16 << 20
    rate: int = 500
    series: int = 100_000
    symbols: int = 2 << 30
    question_time: float = 30.0
    question_memory: int = 2 << 30
    tenants: tuple[Tenant, ...] = ()

    @property
    def store_url(self) -> str:
        return self.store or f"chdb://{self.data}/store"

    def store_address(self) -> StoreAddress:
        """Return the address of the server's database, with its password.

        Raises:
            UsageError: The URL is wrong, or the file of the password cannot be used.
        """
        found = address(self.store_url)
        try:
            password = secret(self.store_password_file) if self.store_password_file else ""
        except NotSent as error:
            raise UsageError(f"server.store_password_file: {error}") from None
        return replace(found, password=password or os.environ.get(PASSWORD_VARIABLE, ""))

    @property
    def days(self) -> int:
        return max(int(-(-self.max_age // 86_400)), 1)


def parse(text: str, name: str) -> ServerConfig:
    """Parse the configuration of a server.

    Args:
        name: Name of the file.

    Raises:
        BadConfig: The configuration has errors.
    """
    given = document(text, name)
    errors: list[ConfigError] = []
    lines = text.split("\n")
    found = _values(given, lines, errors)
    errors += [
        ConfigError(_line(lines, key), f"retention.{key} is not in whole days, such as 14d")
        for key in ("max_age", "hours_after")
        if found.get(key, 0) % _DAY_S
    ]
    tenants = _tenants(given.get("tenant", []), lines, errors)
    if not errors and not tenants and found.get("host", "127.0.0.1") not in ("127.0.0.1", "::1", "localhost"):
        errors.append(
            ConfigError(_line(lines, "host"), "an address for other machines needs a [[tenant]] with its tokens")
        )
    config = ServerConfig(**found, tenants=tenants)
    for key in ("store", "store_password_file"):
        try:
            address(config.store_url) if key == "store" else config.store_address()
        except UsageError as error:
            errors.append(ConfigError(_line(lines, key), f"{error.message}: {error.hint}".rstrip(": ")))
            break
    if errors:
        raise BadConfig(name, errors)
    return config


def _values(document: Mapping[str, Any], lines: list[str], errors: list[ConfigError]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    known = {(setting.table, setting.name): setting for setting in SETTINGS}
    for table, part in document.items():
        if table == "tenant":
            continue
        if not isinstance(part, dict):
            errors.append(ConfigError(_line(lines, table), f"{table} is not a table of settings"))
            continue
        for key, value in part.items():
            setting = known.get((table, key))
            try:
                if setting is None:
                    raise Wrong("is not known")
                found[key] = checked(setting.kind, value)
            except Wrong as error:
                errors.append(ConfigError(_line(lines, key), f"{table}.{key} {error}"))
    return found


def _tenants(given: Any, lines: list[str], errors: list[ConfigError]) -> tuple[Tenant, ...]:
    if not isinstance(given, list) or len(given) > _MAX_TENANTS:
        errors.append(
            ConfigError(_line(lines, "tenant"), f"tenants must be tables ([[tenant]]), at most {_MAX_TENANTS}")
        )
        return ()
    tenants: dict[str, Tenant] = {}
    tokens: set[str] = set()
    for at, table in enumerate(given):
        try:
            tenant = _tenant(table)
            if tenant.name in tenants or not tokens.isdisjoint(tenant.tokens.values()):
                raise Wrong("another tenant has the same name or token")
        except Wrong as error:
            shown = table.get("name", "") if isinstance(table, dict) else ""
            errors.append(ConfigError(_tenant_line(lines, at), f"tenant {shown!r}: {error}"))
            continue
        tenants[tenant.name] = tenant
        tokens.update(tenant.tokens.values())
    return tuple(tenants.values())


def _tenant(table: Any) -> Tenant:
    """Return a tenant of the server from its table in the configuration; raise Wrong if the table is wrong."""
    if not isinstance(table, dict) or set(table) - set(TENANT) or "name" not in table:
        raise Wrong(f"its settings are name, which is required, and {TENANT[1]} and {TENANT[2]}")
    name = checked("NAME", table["name"])
    assert isinstance(name, str)
    roles = {role: table[f"{role}_token_file"] for role in (WRITE, READ) if f"{role}_token_file" in table}
    tokens = {role: _token(path) for role, path in roles.items()}
    if len(set(tokens.values())) < len(tokens):
        raise Wrong(f"{TENANT[1]} and {TENANT[2]} hold the same token, with which a client may write and read")
    return Tenant(name, tokens)


def _token(path: object) -> str:
    """Read an access token from a file; raise Wrong if the file cannot be read. The error's text never contains the
    contents of the file.
    """
    try:
        token = secret(str(checked("PATH", path)))
    except NotSent as error:
        raise Wrong(str(error)) from None
    if len(token) < _MIN_TOKEN:
        raise Wrong(f"the token in {path} has less than {_MIN_TOKEN} letters")
    return token


def _line(lines: list[str], key: str) -> int:
    """Return the number of the first line of the configuration in which a key or a table is named."""
    pattern = re.compile(rf'\s*(?:\[+\s*)?"?{re.escape(key)}"?\s*(?:[.=\]])')
    return next((number for number, text in enumerate(lines, 1) if pattern.match(text)), 1)


def _tenant_line(lines: list[str], at: int) -> int:
    """Return the line number of the [[tenant]] table with this index. Indices count from 0, lines from 1."""
    headers = [number for number, text in enumerate(lines, 1) if re.match(r"\s*\[\[\s*\"?tenant\"?\s*\]\]", text)]
    return headers[at] if at < len(headers) else _line(lines, "tenant")


def printed() -> str:
    """Return the text of the server's default configuration, with an explanation of each line."""
    lines = ["# pyprof server --config FILE. What has # before it is the default."]
    table = ""
    for setting in SETTINGS:
        if setting.table != table:
            lines += ["", f"[{setting.table}]"]
            table = setting.table
        lines += [f"# {setting.help}", f"#{setting.name} = {setting.default or '...'}"]
    lines += ["", "# Who may write and read. Without any, whoever reaches the server may do both.", "#[[tenant]]"]
    lines += [
        '#name = "staging"',
        '#write_token_file = "/etc/pyprof/write.token"',
        '#read_token_file = "/etc/pyprof/read.token"',
    ]
    return "\n".join(lines) + "\n"


def load(path: str | None) -> ServerConfig:
    """Read a configuration file of the server, or return the defaults if the path is None.

    Raises:
        BadConfig: The configuration has errors.
        UsageError: The file cannot be read.
    """
    if path is None:
        return ServerConfig()
    return parse(read(path), path)
