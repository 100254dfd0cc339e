"""Reader of requests by which other projects' agents push profiles: Pyroscope's /ingest and push.v1.PusherService/Push,
Parca's WriteRaw.

All carry profiles in pprof's format. push.v1 and WriteRaw are nearly the same message, as protocol buffer or as JSON:
series of labels, each with profiles (github grafana/pyroscope, api/push/v1/push.proto; parca-dev/parca,
proto/parca/profilestore/v1alpha1). /ingest has the labels in its name, `app{env=prod}`, and the profile as its body or
as a part of a form. The requests are untrusted input: bounded, and refused as a whole by a FormatError.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from pyprof.errors import FormatError
from pyprof.importers import pprof
from pyprof.importers.profile_builder import PushedProfile, add_labels, split_by_value_type, split_labels
from pyprof.importers.protobuf import read_texts
from pyprof.lazy_dataclasses import replace
from pyprof.model.profile import Profile
from pyprof.model.thread_identity import Labels

MAX_PROFILES = 1000
"""Maximum number of profiles in one push request."""
MAX_BYTES = 1 << 27
"""Maximum inflated size in bytes of all profiles of one push request."""
JSON = "application/json"
_NAME = re.compile(r"([^{}]{1,1000})(?:\{(.{0,60000})\})?")
_BOUNDARY = re.compile(r'multipart/form-data;.*\bboundary="?([\w\'()+,./:=? -]{1,70})"?', re.IGNORECASE)
_FIELD = re.compile(rb'\bname="?(\w{1,40})"?')
_MAX_PARTS = 16
_SECONDS, _MILLISECONDS = 10**11, 10**14
"""Numbers below which a time in a push request counts as seconds, or as milliseconds since the epoch. Larger ones are
nanoseconds, because senders use different units.
"""


def read_pyroscope_ingest(words: Mapping[str, str], content_type: str, body: bytes) -> list[PushedProfile]:
    """Read Pyroscope's POST /ingest?name=app{k=v}&from=&until=&format=pprof.

    Args:
        words: Parameters of the URL's query.

    Raises:
        FormatError: The request is broken or too large.
    """
    form = _BOUNDARY.search(content_type)
    if words.get("format", "pprof" if form else "") != "pprof":
        raise FormatError("ingest", 0, f"format {words.get('format', '')[:40]!r} is not read, only pprof")
    match = _NAME.fullmatch(words.get("name", ""))
    if match is None:
        raise FormatError("ingest", 0, "name is no application with labels: app{env=prod}")
    pairs = [pair.partition("=") for pair in (match[2] or "").split(",") if pair.strip()]
    given = {name.strip(): value.strip().strip('"') for name, _, value in pairs}
    service, labels = split_labels({"service_name": match[1].strip(), **given}.items())
    if form is not None:
        parts = _form(body, form[1].encode())
        if "profile" not in parts:
            raise FormatError("ingest", 0, "the form has no part named profile")
        body = parts["profile"]
    span = _moment(words.get("from", "")), _moment(words.get("until", ""))
    return [PushedProfile(service, _timed(profile, *span)) for profile in _profiles(body, service, labels, [MAX_BYTES])]


def read_pyroscope_push(content_type: str, body: bytes) -> list[PushedProfile]:
    """Read Pyroscope's push.v1.PusherService/Push in the Connect protocol.

    Raises:
        FormatError: The request is broken or too large.
    """
    series = _of_json(body, "") if _is_json(content_type) else _of_message(body, 1, nested=False)
    return list(_pushed(series))


def read_parca_write(content_type: str, body: bytes) -> list[PushedProfile]:
    """Read Parca's POST /profiles/writeraw.

    Raises:
        FormatError: The request is broken or too large.
    """
    series = _of_json(body, "labels") if _is_json(content_type) else _of_message(body, 2, nested=True)
    return list(_pushed(series))


Series = tuple[list[tuple[str, str]], list[bytes]]
"""A part of a push request: labels as (name, value), and the encoded profiles that have these labels."""


def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == JSON


def _pushed(series: Iterator[Series]) -> Iterator[PushedProfile]:
    room, count = [MAX_BYTES], 0
    for pairs, profiles in series:
        service, labels = split_labels(pairs)
        count += len(profiles)
        if count > MAX_PROFILES:
            raise FormatError("push", count, f"more than {MAX_PROFILES:,} profiles in one request")
        for data in profiles:
            yield from (PushedProfile(service, each) for each in _profiles(data, service, labels, room))


def _profiles(data: bytes, service: str, labels: Labels, room: list[int]) -> Iterator[Profile]:
    """Yield the profiles in one pprof file of a push request. room[0] is the number of bytes that the request may still
    inflate to; it is reduced by the file's inflated size.
    """
    if len(whole := pprof.inflate(data, max(room[0], 1))) > room[0]:
        raise FormatError("push", room[0], f"the profiles of one request have more than {MAX_BYTES:,} bytes")
    if whole is not data and pprof.is_gzipped(whole):
        raise FormatError("gzip", 0, "gzip within gzip")
    room[0] -= len(whole)
    try:
        found = pprof.read_pprof(whole, service)
    except OverflowError as error:
        raise FormatError("pprof", 0, str(error)) from None
    yield from split_by_value_type(add_labels(found, labels))


def _of_message(body: bytes, key: int, nested: bool) -> Iterator[Series]:
    """Yield the series (labels and profiles) of a protobuf push request. `nested` says that the labels are in a message
    within the series.
    """
    for row in read_texts(body, key):
        sets = read_texts(row, 1)
        pairs = [pair for each in sets for pair in read_texts(each, 1)] if nested else sets
        labels = [(_text(pair, 1), _text(pair, 2)) for pair in pairs]
        yield labels, [b"".join(read_texts(sample, 1)[-1:]) for sample in read_texts(row, 2)]


def _text(message: bytes, key: int) -> str:
    return b"".join(read_texts(message, key)[-1:]).decode("utf-8", "replace")


def _of_json(body: bytes, within: str) -> Iterator[Series]:
    """Yield the series (labels and profiles) of a JSON push request.

    Args:
        within: Name of the field of `labels` that has the list of labels, "" if `labels` is the list.
    """
    try:
        whole = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FormatError("json", error.pos, error.msg) from None
    for row in _list(whole, "series"):
        labels = _list(row.get("labels"), within) if within else _list(row, "labels")
        pairs = [(str(each.get("name", "")), str(each.get("value", ""))) for each in labels]
        yield pairs, [_bytes(sample.get("rawProfile", sample.get("raw_profile"))) for sample in _list(row, "samples")]


def _list(found: object, name: str) -> list[dict[str, Any]]:
    """Return a field of a JSON push request that must be a list of objects.

    Raises:
        FormatError: The field is not a list of objects.
    """
    rows = found.get(name, []) if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FormatError("json", 0, f"{name} is no list of objects")
    return rows


def _bytes(found: object) -> bytes:
    try:
        return base64.b64decode(str(found or "").encode("ascii", "replace"), validate=True)
    except binascii.Error as error:
        raise FormatError("json", 0, f"rawProfile is no base64: {error}") from None


def _form(body: bytes, boundary: bytes) -> dict[str, bytes]:
    """Return the parts of a multipart form by their names.

    Raises:
        FormatError: The form is broken.
    """
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if len(parts) < 2 or len(parts) > _MAX_PARTS or parts[-1][:2] != b"--":
        raise FormatError("form", 0, "it does not end, or has too many parts")
    found = {}
    for part in parts[1:-1]:
        head, mark, content = part.partition(b"\r\n\r\n")
        name = _FIELD.search(head)
        if not mark or name is None:
            raise FormatError("form", 0, "a part without a name")
        found[name[1].decode()] = content
    return found


def _moment(text: str) -> int:
    """Parse a time in a push request. Return nanoseconds since the epoch, 0 if the text is not a number."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return 0
    number = int(text)
    return number * (10**9 if number < _SECONDS else 10**6 if number < _MILLISECONDS else 1)


def _timed(profile: Profile, from_ns: int, until_ns: int) -> Profile:
    """Return a profile with the times that its push request states, if the profile itself states none."""
    if profile.start_ns or not 0 < from_ns <= until_ns < 1 << 62:
        return profile
    length = profile.duration_ns or until_ns - from_ns
    return replace(profile, start_ns=from_ns, duration_ns=length, time_ns=profile.time_ns + from_ns)
