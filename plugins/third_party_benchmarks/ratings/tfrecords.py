"""Reads TFRecord files of TensorFlow Examples without TensorFlow."""

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import DOWNLOAD_AGAIN_REMEDY

MAX_RECORD_BYTES = 1 << 28
"""Maximum size of a record. A longer record is considered damaged."""
RECORD_HEAD_BYTES, RECORD_TAIL_BYTES = 12, 4
LFS_POINTER_START = b"version http"
"""First bytes of a Git LFS pointer file."""


def read_examples(place: Place) -> Iterator[dict[str, list[Any]]]:
    """Yield the features of each Example in a file: lists of bytes, floats or integers by name.

    Raises SourceError naming the file and the record if a record cannot be read.
    """
    with convert_read_errors(place, "file"), place.open() as stream:
        number = 0
        while head := stream.read(RECORD_HEAD_BYTES):
            where = f"{place.url}, record {number}"
            if number == 0 and head.startswith(LFS_POINTER_START):
                raise SourceError(f"{place.url} is a Git LFS pointer, not the file itself; run git lfs pull there")
            yield _parse_features(_read_record(stream, head, where), where)
            number += 1


def _read_record(stream: Any, head: bytes, where: str) -> bytes:
    length = struct.unpack_from("<Q", head)[0] if len(head) == RECORD_HEAD_BYTES else MAX_RECORD_BYTES
    if length >= MAX_RECORD_BYTES or struct.unpack_from("<I", head, 8)[0] != compute_masked_crc(head[:8]):
        raise SourceError(f"{where}: not a TFRecord; {DOWNLOAD_AGAIN_REMEDY}")
    record = bytes(stream.read(length))
    if len(record) < length or len(stream.read(RECORD_TAIL_BYTES)) < RECORD_TAIL_BYTES:
        raise SourceError(f"{where} is truncated; {DOWNLOAD_AGAIN_REMEDY}")
    return record


def compute_masked_crc(data: bytes) -> int:
    """Return the CRC-32C of the data, rotated and shifted as TensorFlow stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _parse_features(record: bytes, where: str) -> dict[str, list[Any]]:
    from google.protobuf.message import DecodeError

    example = _make_example_class()()
    try:
        example.ParseFromString(record)
    except DecodeError as error:
        raise SourceError(f"{where}: not a TensorFlow Example; {DOWNLOAD_AGAIN_REMEDY}") from error
    features = {entry.key: entry.value for entry in example.features.feature}
    lists = {name: (*one.bytes.value, *one.floats.value, *one.numbers.value) for name, one in sorted(features.items())}
    return {name: list(values) for name, values in lists.items()}


EXAMPLE_PROTO = """
name: "plumbline/example.proto" package: "plumbline" syntax: "proto3"
message_type { name: "Bytes" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "Floats" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Numbers" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  field { name: "bytes" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".plumbline.Bytes" }
  field { name: "floats" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".plumbline.Floats" }
  field { name: "numbers" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".plumbline.Numbers" }
}
message_type {
  name: "Entry"
  field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".plumbline.Feature" }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".plumbline.Entry" }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".plumbline.Features" }
}
"""
"""Protobuf definition of tensorflow.Example."""


@cache
def _make_example_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plumbline.Example"))
