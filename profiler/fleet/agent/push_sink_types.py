"""The types of sinks: the settings in a [[push]], the construction of each, and the sinks that store segments
unchanged.

The check of a configuration and --print-config use the table KINDS. Sinks that store segments unchanged are a folder, a
bucket and pyprof's own server. Their files are DAY/SERVICE/END_NS-UUID.pb.gz. Other users may create names in a folder,
for example in a folder of another machine. So each folder is opened relative to a descriptor, and links are not
followed. A bucket needs fsspec (extra [push]) and the package of its kind, such as s3fs, which finds credentials in its
own files. The server answers 409 if it has the segment already.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyprof.errors import UsageError
from pyprof.fleet.toml_config_files import Setting
from pyprof.lazy_dataclasses import dataclass, field

if TYPE_CHECKING:
    from pyprof.fleet.wire.push_client import Endpoint
    from pyprof.fleet.wire.push_response_verdicts import SegmentSink
from contextlib import ExitStack, suppress

from pyprof.exporters import output_file
from pyprof.fleet.file_system_calls import Disk
from pyprof.fleet.wire.push_client import Endpoint, HttpClient
from pyprof.fleet.wire.push_response_verdicts import NotSent
from pyprof.fleet.wire.segment_names import SegmentName

PATH = "/api/v1/segments"
_THERE = 409


class FolderSink:
    def __init__(self, path: str) -> None:
        self._path = path
        self._disk = Disk()

    def send(self, name: SegmentName, data: bytes) -> bool:
        """Store a segment durably in the sink's directory, and return False if it had the segment already.

        Raises:
            OSError: Writing failed.
        """
        with ExitStack() as opened:
            folder = _entered(output_file.open_folder(self._path), opened)
            for part in (name.day, name.folder):
                if self._disk.make_folder(f"{folder}/{part}"):
                    self._disk.sync_folder(folder)
                folder = _entered(output_file.open_directory(f"{folder}/{part}", os.O_NOFOLLOW), opened)
            is_new = not os.path.lexists(f"{folder}/{name.name}")
            self._write(folder, name.name, data)
        return is_new

    def _write(self, folder: str, name: str, data: bytes) -> None:
        part_file = f"{folder}/.{name}.part"
        with suppress(FileNotFoundError):
            self._disk.unlink(part_file)
        fd = self._disk.create(part_file)
        try:
            self._disk.write(fd, data)
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(part_file, f"{folder}/{name}")
        self._disk.sync_folder(folder)


def _entered(fd: int, opened: ExitStack) -> str:
    """Return a path of the folder behind an open descriptor."""
    opened.callback(os.close, fd)
    return f"/proc/self/fd/{fd}"


class ServerSink:
    def __init__(self, endpoint: Endpoint) -> None:
        self._client = HttpClient(endpoint)

    def send(self, name: SegmentName, data: bytes) -> bool:
        """Send a segment to pyprof's own server, and return False if the server had the segment already.

        The folder's name needs no quoting in a path: the agent has replaced other characters by %XX.
        """
        kind = {"Content-Type": "application/octet-stream"}
        return self._client.post(f"{PATH}/{name.path}", data, kind, (_THERE,)).status != _THERE


class BucketSink:
    """A sink that stores segments in a bucket. Its options are those of the bucket's package, such as endpoint_url."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self._url, self._options = url.rstrip("/"), options

    def send(self, name: SegmentName, data: bytes) -> None:
        try:
            files, path = self._opened()
            if files.protocol in ("file", ("file", "local")):
                files.makedirs(f"{path}/{name.day}/{name.folder}", exist_ok=True)
            files.pipe_file(f"{path}/{name.path}", data)
        except (NotSent, OSError):
            raise
        except ImportError as error:
            raise NotSent("no_package", str(error)) from None
        except Exception as error:  # noqa: BLE001 - each package has its own exceptions
            raise NotSent("otherwise", type(error).__name__) from None

    def _opened(self) -> tuple[Any, str]:
        found: tuple[Any, str] = import_module("fsspec").url_to_fs(self._url, **self._options)
        return found


@dataclass(frozen=True, slots=True)
class PushTarget:
    """A [[push]] table of the agent's configuration. `values` has its checked settings, without its name and type."""

    name: str
    kind: str
    values: dict[str, Any] = field(default_factory=dict)


COMMON = (
    Setting("push", "name", "NAME", '"nas"', "name of the sink in the spool, the log and the metrics"),
    Setting("push", "type", "SINK", '"folder"', "pyprof, pyroscope, otlp, parca, folder or bucket"),
)
_URL = Setting("push", "url", "URL", '"https://host:4318"', "http or https")
_HTTP = (
    Setting("push", "token_file", "PATH", "", "file whose first line is a bearer token; chmod 600"),
    Setting("push", "user", "TEXT", "", "user of basic authentication, with password_file"),
    Setting("push", "password_file", "PATH", "", "file whose first line is the password; chmod 600"),
    Setting("push", "ca_file", "PATH", "", "certificates (PEM), instead of the system's"),
    Setting("push", "proxy", "URL", "", "proxy, instead of https_proxy and http_proxy in the environment"),
    Setting("push", "headers", "HEADERS", "", 'such as { X-Scope-OrgID = "team" }; no secrets'),
    Setting("push", "timeout", "SPAN", '"30s"', "of a request"),
)
_PROTOCOL = Setting("push", "protocol", "PROTOCOL", '"http"', 'or "grpc", which needs the extra [push]')
KINDS: dict[str, tuple[tuple[Setting, ...], tuple[str, ...]]] = {
    "pyprof": ((_URL, *_HTTP), ("url",)),
    "pyroscope": (
        (
            _URL,
            *_HTTP,
            Setting("push", "api", "API", '"push"', 'or "ingest", for servers that lack push.v1'),
            Setting(
                "push",
                "max_age",
                "SPAN",
                '"1h"',
                "age above which windows are set aside, because the server would refuse them",
            ),
        ),
        ("url",),
    ),
    "otlp": ((_URL, *_HTTP, _PROTOCOL), ("url",)),
    "parca": ((_URL, *_HTTP, _PROTOCOL), ("url",)),
    "folder": (
        (Setting("push", "path", "PATH", '"/mnt/nas/profiles"', "path of an existing folder"),),
        ("path",),
    ),
    "bucket": (
        (
            Setting(
                "push", "url", "BUCKET", '"s3://bucket/prefix"', "bucket address for fsspec; needs the extra [push]"
            ),
            Setting(
                "push",
                "options",
                "HEADERS",
                "",
                'options of the package: { endpoint_url = "https://host" }; no secrets',
            ),
        ),
        ("url",),
    ),
}
"""Types of sinks: the settings of each in addition to COMMON, and the names of the required settings."""


_ON_DATE = "on date"
"""Key under which the settings of a sink also hold its function on_date. Names of settings have no blank, so none is
equal to this key.
"""


def wrong(target: PushTarget) -> str:
    """Return what is wrong with the combination of a sink's settings, "" if it is valid."""
    values = target.values
    if values.get("token_file") and values.get("password_file"):
        return "token_file and password_file: one of them"
    if bool(values.get("user")) != bool(values.get("password_file")):
        return "user and password_file belong together"
    needed = {"grpc": "grpc"}.get(values.get("protocol", "")) or {"bucket": "fsspec"}.get(target.kind)
    if needed and find_spec(needed) is None:
        return f"{needed} is not installed: pip install 'pyprof-live[push]'"
    return ""


def missing(target: PushTarget) -> str:
    """Return the file, folder or library that a sink needs and that cannot be used now, "" if nothing is missing."""
    values = target.values
    if target.kind == "folder" and not os.path.isdir(values["path"]):
        return f"{values['path']} is no folder"
    if target.kind == "bucket":
        try:
            import_module("fsspec").get_filesystem_class(values["url"].partition("://")[0])
        except (ImportError, ValueError) as error:
            return str(error)
    absent = [path for path in _credential_files(target) if not os.path.lexists(path)]
    return f"{absent[0]} cannot be read: No such file or directory" if absent else ""


def _credential_files(target: PushTarget) -> list[str]:
    return [target.values[key] for key in ("token_file", "password_file", "ca_file") if target.values.get(key)]


def unusable_credentials(target: PushTarget) -> str:
    """Return why the token, the password or the certificates of a sink cannot be used, "" if they can. A missing file
    is no reason: it may exist where the agent runs.
    """
    from pyprof.fleet.wire.push_client import Credentials, ca
    from pyprof.fleet.wire.push_response_verdicts import NotSent

    values = target.values
    if not all(map(os.path.lexists, _credential_files(target))):
        return ""
    try:
        Credentials(*(values.get(key, "") for key in ("token_file", "user", "password_file"))).header()
        ca(values.get("ca_file", ""))
    except NotSent as error:
        return str(error)
    return ""


def made(target: PushTarget, on_date: Callable[[float], None] = lambda ahead_s: None) -> SegmentSink:
    """Create the sink that a [[push]] table describes.

    Args:
        on_date: Function that receives the seconds by which this clock is ahead, when a response has a date.

    Raises:
        UsageError: A library is missing.
    """
    try:
        return _MAKERS[target.kind]({**target.values, _ON_DATE: on_date})
    except ImportError as error:
        raise UsageError(f"push to {target.name}: {error}", "pip install 'pyprof-live[push]'") from None


def _endpoint(values: dict[str, Any]) -> Endpoint:
    from pyprof.fleet.wire.push_client import Credentials, Endpoint

    return Endpoint(
        values["url"].rstrip("/"),
        Credentials(*(values.get(key, "") for key in ("token_file", "user", "password_file"))),
        values.get("headers", {}),
        values.get("ca_file", ""),
        values.get("proxy", ""),
        values.get("timeout", 30.0),
        values[_ON_DATE],
    )


def _pyprof(values: dict[str, Any]) -> SegmentSink:
    from pyprof.fleet.agent.push_sink_types import ServerSink

    return ServerSink(_endpoint(values))


def _pyroscope(values: dict[str, Any]) -> SegmentSink:
    from pyprof.fleet.agent.push_sinks_otlp_parca_pyroscope import PyroscopeSink

    return PyroscopeSink(_endpoint(values), values.get("api") == "ingest", values.get("max_age", 3600.0))


def _otlp(values: dict[str, Any]) -> SegmentSink:
    from pyprof.fleet.agent import push_sinks_otlp_parca_pyroscope
    from pyprof.fleet.wire.push_client import GrpcCall

    endpoint = _endpoint(values)
    grpc = values.get("protocol") == "grpc"
    return push_sinks_otlp_parca_pyroscope.OtlpSink(
        GrpcCall(endpoint, push_sinks_otlp_parca_pyroscope.OTLP_METHOD)
        if grpc
        else push_sinks_otlp_parca_pyroscope.otlp_by_http(endpoint)
    )


def _parca(values: dict[str, Any]) -> SegmentSink:
    from pyprof.fleet.agent import push_sinks_otlp_parca_pyroscope
    from pyprof.fleet.wire.push_client import GrpcCall

    endpoint = _endpoint(values)
    grpc = values.get("protocol") == "grpc"
    return push_sinks_otlp_parca_pyroscope.ParcaSink(
        push_sinks_otlp_parca_pyroscope.parca_by_grpc(GrpcCall(endpoint, push_sinks_otlp_parca_pyroscope.PARCA_METHOD))
        if grpc
        else push_sinks_otlp_parca_pyroscope.parca_by_http(endpoint)
    )


def _folder(values: dict[str, Any]) -> SegmentSink:
    from pyprof.fleet.agent.push_sink_types import FolderSink

    return FolderSink(values["path"])


def _bucket(values: dict[str, Any]) -> SegmentSink:
    from pyprof.fleet.agent.push_sink_types import BucketSink

    import_module("fsspec")
    return BucketSink(values["url"], values.get("options", {}))


_MAKERS: dict[str, Callable[[dict[str, Any]], SegmentSink]] = {
    "pyprof": _pyprof,
    "pyroscope": _pyroscope,
    "otlp": _otlp,
    "parca": _parca,
    "folder": _folder,
    "bucket": _bucket,
}
