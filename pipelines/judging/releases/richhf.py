"""RichHF-18K: 17,760 images of Pick-a-Pic with four scores each, and which words of the prompt they do not show.

Source: google-research-datasets/richhf-18k, {train,dev,test}.tfrecord: TensorFlow Examples with filename,
aesthetics_score, artifact_score, misalignment_score and overall_score (floats, all the higher the better, means of
three people), prompt_misalignment_label (a 1 or a 0 for each word, 0 being not aligned, joined by spaces) and two
heatmaps, which are not read. The file has no prompts: they are Pick-a-Pic's, and THEIR TABLE IS OURS, `prompts` as
.csv, .parquet or .jsonl beside the records, with the columns filename and prompt. Words are what commas, full stops,
question and exclamation marks, double quotes, colons, semicolons and spaces part (google-research, richhf_18k,
match_label_to_token.py).

An image is named by its file's name without folder and suffix, which is its name in Pick-a-Pic; a prompt by its text.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import AGAIN
from plumbline.pipelines.judging.releases.release import Rating, Release, Word, rating_value, released, words_in
from plumbline.pipelines.judging.releases.sheets import beside, exists, files_in, is_folder, read_sheet

LONGEST = 1 << 28
"""Bytes of a record; a longer one is taken for damage."""
HEAD, TAIL = 12, 4
POINTER = b"version http"
"""How a file begins that stands for one in Git LFS."""
KINDS = {"bytes_list": "bytes", "float_list": "float", "int64_list": "int64"}


def read_examples(place: Place) -> Iterator[dict[str, list[Any]]]:
    """The Examples of a file, each as its features: lists of bytes, of floats or of whole numbers.

    Raises SourceError naming the file and the record that cannot be read.
    """
    with readable_errors(place, "file"), place.open() as stream:
        number = 0
        while head := stream.read(HEAD):
            where = f"{place.url}, record {number}"
            if number == 0 and head.startswith(POINTER):
                raise SourceError(f"{place.url}: is a pointer of Git LFS and not the file; run git lfs pull beside it")
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


SCORES = ("aesthetics", "artifact", "misalignment", "overall")
LABEL = "prompt_misalignment_label"
PROMPTS = ("prompts.csv", "prompts.parquet", "prompts.jsonl")
SEPARATORS = r'[,.?!":; ]+'
RATERS = "mean"
RELEASED = "is this RichHF-18K's file?"


def read(place: Place) -> Release:
    """The scores of a file, or of those of a folder, by template; with the prompts' table also the words."""
    folder = is_folder(place)
    files = files_in(place, ".tfrecord") if folder else [place]
    if not files:
        raise SourceError(f"{place.url}: expected a .tfrecord file or a folder with some, found none; check the path")
    prompts = _prompts([place / name if folder else beside(place, name) for name in PROMPTS])
    ratings: list[Rating] = []
    words: list[Word] = []
    unknown = 0
    for file in files:
        for number, example in enumerate(read_examples(file)):
            where = f"{file.url}, record {number}"
            name = _text(example, "filename", where)
            image_id, prompt = PurePosixPath(name).stem, prompts.get(name)
            ratings += [
                Rating(image_id, prompt, None, RATERS, score, _score(example, f"{score}_score", where), where)
                for score in SCORES
            ]
            unknown += prompt is None
            if prompt is not None:
                words += _words(image_id, prompt, _text(example, LABEL, where), where)
    notes = [f"{unknown} images have no prompt in a table {PROMPTS[0]} beside: no words of them"] if unknown else []
    return released(ratings=ratings, words=words, notes=notes)


def _prompts(files: Sequence[Place]) -> dict[str, str]:
    """Prompts by the file names of their images, of the first table that is there."""
    file = next(filter(exists, files), None)
    if file is None:
        return {}
    sheet = read_sheet(file).require(("filename", "prompt"), "name the columns so")
    return dict(zip(sheet.ids("filename"), sheet.ids("prompt"), strict=True))


def _one(example: Mapping[str, Sequence[Any]], name: str, where: str) -> Any:
    values = example.get(name)
    if not values:
        raise SourceError(f"{where}: expected {name}, found {', '.join(map(repr, example)) or 'nothing'}; {RELEASED}")
    return values[0]


def _text(example: Mapping[str, Sequence[Any]], name: str, where: str) -> str:
    value = _one(example, name, where)
    try:
        return str(value, "utf-8")
    except (TypeError, UnicodeDecodeError) as error:
        raise SourceError(f"{where}: expected {name} as text, found {value!r}; {RELEASED}") from error


def _score(example: Mapping[str, Sequence[Any]], name: str, where: str) -> float | None:
    return rating_value(_one(example, name, where), where)


def _words(image_id: str, prompt: str, label: str, where: str) -> Iterator[Word]:
    words, labels = words_in(prompt, SEPARATORS), label.split()
    if len(words) != len(labels) or not set(labels) <= {"0", "1"}:
        raise SourceError(
            f"{where}: expected a 1 or a 0 for each of the {len(words)} words of {prompt!r}, found {label!r}; is "
            "it the prompt that was rated?"
        )
    for (word, start, end), aligned in zip(words, labels, strict=True):
        yield Word(image_id, prompt, None, RATERS, word, start, end, float(aligned), where)
