"""Tests of TLS sinks: the agent sends data only to a receiver whose certificate is signed by the sink's ca_file."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from pyprof.fleet.wire.push_client import Credentials, HttpClient
from pyprof.fleet.wire.push_response_verdicts import NotSent
from pyprof.lazy_dataclasses import replace
from tests.agent.push.receivers import Said, receiver
from tests.support import need

pytestmark = pytest.mark.system


def openssl(folder: Path, *words: str) -> None:
    subprocess.run([need("openssl"), *words], check=True, capture_output=True, cwd=folder)


KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(folder: Path, name: str) -> str:
    """Create a self-signed certificate authority and return the path of its certificate."""
    words = ("req", "-x509", *KEY, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    openssl(folder, *words, "-addext", "basicConstraints=critical,CA:TRUE")
    return str(folder / f"{name}.pem")


def server(folder: Path, signed_by: str, names: Sequence[str]) -> ssl.SSLContext:
    """Return a TLS server context with a certificate for these names.

    Args:
        names: Subject alternative names in OpenSSL's syntax, for example IP:127.0.0.1.
    """
    openssl(folder, "req", *KEY, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (folder / "names").write_text(f"subjectAltName={','.join(names)}\n")
    ca = ("-CA", f"{signed_by}.pem", "-CAkey", f"{signed_by}.key", "-CAcreateserial")
    openssl(folder, "x509", "-req", "-in", "server.csr", *ca, "-extfile", "names", "-out", "server.pem")
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(folder / "server.pem", folder / "server.key")
    return found


def test_receiver_is_sent_a_secret_only_where_the_right_authority_vouches_for_it(tmp_path: Path) -> None:
    right, wrong = authority(tmp_path, "right"), authority(tmp_path, "wrong")
    token = tmp_path / "token"
    token.write_text("s3cret")
    token.chmod(0o600)
    with receiver(lambda _: Said(), server(tmp_path, "right", ["IP:127.0.0.1"])) as there:
        endpoint = there.endpoint(credentials=Credentials(str(token)))
        for ca_file, why in ((wrong, "issuer certificate"), ("", "certificate"), (str(token), ".")):
            with pytest.raises(NotSent, match=why) as caught:
                HttpClient(replace(endpoint, ca_file=ca_file)).post("/x", b"data", {})
            assert caught.value.word == "insecure"
        assert there.asked == []
        HttpClient(replace(endpoint, ca_file=right)).post("/x", b"data", {})
    (asked,) = there.asked
    assert (asked.body, asked.headers["Authorization"]) == (b"data", "Bearer s3cret")


def test_receiver_of_another_name_is_sent_nothing(tmp_path: Path) -> None:
    right = authority(tmp_path, "right")
    tls = server(tmp_path, "right", ["DNS:other.example"])
    with receiver(lambda _: Said(), tls) as there, pytest.raises(NotSent) as caught:
        HttpClient(replace(there.endpoint(), ca_file=right)).post("/x", b"data", {})
    assert caught.value.word == "insecure"
    assert there.asked == []
