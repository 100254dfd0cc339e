"""Protobuf messages of push receivers, copied from their published definitions.

Sources: grafana/pyroscope api/push/v1/push.proto and api/types/v1/types.proto; parca-dev/parca
proto/parca/profilestore/v1alpha1/profilestore.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TEXT, _BYTES, _BOOL, _MESSAGE = 9, 12, 8, 11
_PROTOS: dict[str, dict[str, list[tuple[str, int, int, bool, str]]]] = {
    "push.v1": {
        "LabelPair": [("name", 1, _TEXT, False, ""), ("value", 2, _TEXT, False, "")],
        "RawSample": [("raw_profile", 1, _BYTES, False, ""), ("ID", 2, _TEXT, False, "")],
        "RawProfileSeries": [("labels", 1, _MESSAGE, True, "LabelPair"), ("samples", 2, _MESSAGE, True, "RawSample")],
        "PushRequest": [("series", 1, _MESSAGE, True, "RawProfileSeries")],
    },
    "parca.profilestore.v1alpha1": {
        "Label": [("name", 1, _TEXT, False, ""), ("value", 2, _TEXT, False, "")],
        "LabelSet": [("labels", 1, _MESSAGE, True, "Label")],
        "RawSample": [("raw_profile", 1, _BYTES, False, "")],
        "RawProfileSeries": [("labels", 1, _MESSAGE, False, "LabelSet"), ("samples", 2, _MESSAGE, True, "RawSample")],
        "WriteRawRequest": [
            ("tenant", 1, _TEXT, False, ""),
            ("series", 2, _MESSAGE, True, "RawProfileSeries"),
            ("normalized", 3, _BOOL, False, ""),
        ],
    },
}
"""Definitions by package and message: a list of (field, number, type, repeated, message type)."""


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for package, messages in _PROTOS.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in messages.items():
            made = file.message_type.add(name=name)
            for field, number, kind, repeated, of in fields:
                added = made.field.add(name=field, number=number, label=3 if repeated else 1)
                added.type = kind
                if of:
                    added.type_name = f".{package}.{of}"
        pool.Add(file)
    return pool


_POOL = _pool()


def decoded(message: str, data: bytes) -> Any:
    """Parse a protobuf message and assert that it contains no unknown fields."""
    found = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(message))()
    found.MergeFromString(data)
    again = type(found)()
    again.CopyFrom(found)
    again.DiscardUnknownFields()
    assert again.SerializeToString() == found.SerializeToString()
    return found
