"""Conversion of profiles that agents of other projects push, such as Pyroscope's, to segments: one reader for each URL
path, and the response.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping

from pyprof.errors import FormatError
from pyprof.exporters import pprof as written
from pyprof.exporters.base import ExportOptions
from pyprof.fleet.wire.segment_names import SegmentName
from pyprof.importers import otlp, pprof, pyroscope_parca_requests
from pyprof.importers.profile_builder import PushedProfile
from pyprof.lazy_dataclasses import dataclass

Read = Callable[[Mapping[str, str], str, bytes], list[PushedProfile]]
"""Function that decodes a push from the parameters of the URL's query, the content type and the body. It raises
FormatError.
"""
_PROTO = "application/x-protobuf"
SENDERS: Mapping[str, Read] = {
    "/ingest": pyroscope_parca_requests.read_pyroscope_ingest,
    "/push.v1.PusherService/Push": lambda _, kind, body: pyroscope_parca_requests.read_pyroscope_push(kind, body),
    "/profiles/writeraw": lambda _, kind, body: pyroscope_parca_requests.read_parca_write(kind, body),
    "/v1development/profiles": lambda _, _kind, body: otlp.read_otlp(body),
}
"""Functions that decode pushes of other projects' agents, by URL path: two of Pyroscope, one of Parca, one of
OpenTelemetry.
"""


@dataclass(frozen=True, slots=True)
class ForeignPush:
    """Profiles that the agent of another project pushes to the server.

    Attributes:
        path: URL path of the request, a key of SENDERS.
        words: Parameters of the URL's query.
        encoding: Content-Encoding.
    """

    path: str
    words: Mapping[str, str]
    content_type: str
    encoding: str
    body: bytes

    def segments(self, now_ns: int, most: int) -> list[tuple[SegmentName, bytes]]:
        """Convert the profiles of a push to segments. Equal pushes give equal names, so a repeated push counts once.

        Args:
            now_ns: Time since the epoch that counts as the end of profiles without times.
            most: Maximum inflated size of the body in bytes.

        Raises:
            FormatError: The push is broken or too large.
        """
        if self.encoding not in ("", "identity", "gzip"):
            raise FormatError("body", 0, f"encoding {self.encoding[:40]!r} is not read, only gzip")
        body = pprof.inflate(self.body, most) if self.encoding == "gzip" else self.body
        digest = hashlib.blake2b(self.body, digest_size=16).hexdigest()
        found = []
        for number, each in enumerate(SENDERS[self.path](self.words, self.content_type, body)):
            profile = each.profile
            end_ns = profile.start_ns + profile.duration_ns if profile.start_ns > 0 else now_ns
            out = io.BytesIO()
            written.write(profile, out, ExportOptions(evidence=True))
            found.append((SegmentName.new(each.service, end_ns, f"{digest} {number}"), out.getvalue()))
        return found

    @property
    def answer(self) -> tuple[bytes, str]:
        """Body and content type of the response to an accepted push: an empty message in the format of the sender."""
        is_json = self.content_type.partition(";")[0].strip().lower() == pyroscope_parca_requests.JSON
        return (b"{}", pyroscope_parca_requests.JSON) if is_json else (b"", self.content_type or _PROTO)
