"""One gRPC call with bodies as bytes (grpcio, of the extra [push]). The channel is created on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from pyprof.agent.push.http_client import MAX_ANSWER, Endpoint, ca
from pyprof.agent.push.responses import NotSent, judge_grpc


class GrpcCall:
    """A gRPC method /package.Service/Method of a receiver."""

    def __init__(self, endpoint: Endpoint, method: str) -> None:
        self._endpoint, self._method = endpoint, method
        self._call: Any = None
        self._errors: Any = None

    def __call__(self, body: bytes) -> bytes:
        """Call the gRPC method, and return the response's body.

        Raises:
            NotSent: The request must be repeated later.
            RefusedForGood: The receiver will never accept the request.
        """
        metadata = [(key.lower(), value) for key, value in self._endpoint.headers.items()]
        if authorization := self._endpoint.credentials.header():
            metadata.append(("authorization", authorization))
        call = self._call or self._made()
        try:
            answer: bytes = call(body, timeout=self._endpoint.timeout_s, metadata=metadata)
        except self._errors as error:
            judge_grpc(error.code().name)
            raise NotSent("nonsense", "a gRPC error with status OK") from None
        return answer

    def _made(self) -> Any:
        grpc = import_module("grpc")
        self._errors = grpc.RpcError
        url = urlsplit(self._endpoint.url)
        options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", MAX_ANSWER)]
        if self._endpoint.proxy:
            options.append(("grpc.http_proxy", self._endpoint.proxy))
        if url.scheme == "https":
            known = grpc.ssl_channel_credentials(ca(self._endpoint.ca_file).encode() or None)
            channel = grpc.secure_channel(url.netloc, known, options=options)
        else:
            channel = grpc.insecure_channel(url.netloc, options=options)
        self._call = channel.unary_unary(self._method)
        return self._call
