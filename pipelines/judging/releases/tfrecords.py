"""TensorFlow's files of records without TensorFlow: the records of a file, and the features of an Example in one.

A record is its length (8 bytes, little-endian), that length's checksum (4), its bytes, and their checksum (4), which is
not looked at. An Example (tensorflow/core/example/example.proto) is protobuf, read by protobuf's own library; nothing
in a file is run.
"""

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import AGAIN

LONGEST = 1 << 28
"""Bytes of a record; a longer one is taken for damage."""
HEAD, TAIL = 12, 4
POINTER = b"version http"
"""How a file begins that stands for one in Git LFS."""
KINDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}


def read_examples(location: Place) -> Iterator[dict[str, list[Any]]]:
    """The Examples of a file, each as its features: lists of bytes, of floats or of whole numbers.

    Raises SourceError naming the file and the record that cannot be read.
    """
    with readable_errors(location, "file"), location.open() as stream:
        number = 0
        while head := stream.read(HEAD):
            where = f"{location.url}, record {number}"
            if number == 0 and head.startswith(POINTER):
                raise SourceError(
                    f"{location.url}: is a pointer of Git LFS and not the file; run git lfs pull beside it"
                )
            yield _features(_record(stream, head, where), where)
            number += 1


def _record(stream: Any, head: bytes, where: str) -> bytes:
    length = struct.unpack_from("<Q", head)[0] if len(head) == HEAD else LONGEST
    if length >= LONGEST or struct.unpack_from("<I", head, 8)[0] != masked_crc(head[:8]):
        raise SourceError(f"{where}: no TFRecord; {AGAIN}")
    record = bytes(stream.read(length))
    if len(record) < length or len(stream.read(TAIL)) < TAIL:
        raise SourceError(f"{where}: ends before its end; {AGAIN}")
    return record


def masked_crc(data: bytes) -> int:
    """CRC-32C of the data, turned and shifted as TensorFlow stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _features(record: bytes, where: str) -> dict[str, list[Any]]:
    from google.protobuf.message import DecodeError

    example = example_class()()
    try:
        example.ParseFromString(record)
    except DecodeError as error:
        raise SourceError(f"{where}: not a TensorFlow Example; {AGAIN}") from error
    features = example.features.feature
    return {
        name: list(getattr(features[name], kind).value) if (kind := features[name].WhichOneof("kind")) else []
        for name in sorted(features)
    }


@cache
def example_class() -> Any:
    """The class of tensorflow.Example, of its fields' numbers."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="plumbline/example.proto", package="plumbline", syntax="proto3")
    types = {"bytes": field.TYPE_BYTES, "float": field.TYPE_FLOAT, "int64": field.TYPE_INT64}
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (kind, values) in enumerate(KINDS.items(), 1):
        file.message_type.add(name=kind).field.add(
            name="value", number=1, type=types[values], label=field.LABEL_REPEATED
        )
        feature.field.add(
            name=kind, number=number, type=field.TYPE_MESSAGE, type_name=f".plumbline.{kind}",
            label=field.LABEL_OPTIONAL, oneof_index=0,
        )  # fmt: skip
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=field.TYPE_MESSAGE, type_name=".plumbline.Feature", label=field.LABEL_OPTIONAL
    )
    features.field.add(
        name="feature", number=1, type=field.TYPE_MESSAGE, type_name=".plumbline.Features.FeatureEntry",
        label=field.LABEL_REPEATED,
    )  # fmt: skip
    file.message_type.add(name="Example").field.add(
        name="features", number=1, type=field.TYPE_MESSAGE, type_name=".plumbline.Features", label=field.LABEL_OPTIONAL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plumbline.Example"))
