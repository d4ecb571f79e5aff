"""Ratings of images and of the words of their prompts: EvalMuse-40K, RichHF-18K and Gecko2K."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metrics import parsing
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.base.tables import AGAIN, as_object
from plumbline.pipelines.judging.releases.release import (
    LIKERT,
    Part,
    Rating,
    Release,
    Word,
    rating_value,
    released,
    remember,
    skills_of,
    words_in,
)
from plumbline.pipelines.judging.releases.sheets import (
    Sheet,
    as_list,
    as_text,
    exists,
    files_in,
    first_that_exists,
    is_folder,
    read_content,
    read_list,
    read_sheet,
)
from plumbline.pipelines.sources.prompt_files import read_prompt_file


def read_evalmuse(place: Place) -> Release:
    """The file's ratings, raters by their places in the lists; the words of its elements; `type` as the skill.

    EvalMuse-40K: generated images whose prompts people rated as a whole and element by element.

    Source: DY-Evalab/EvalMuse, train_list.json: a list of `{"prompt_id", "prompt", "type": "real" or "synth",
    "img_path", "total_score": [1-5, ...], "element_score": {"<words> (<kind>)": [1 or 0, ...]}, "promt_meaningless",
    "split_confidence", "attribute_confidence": [1 or 0, ...], "fidelity_label": [...]}`, three people or six for each
    image. Upstream's process/process_train.py makes train.json of it, with the means in place of the lists, which is
    read too; test.json has no ratings. The last four say how sure the annotators were, and are not read.

    An image is named by its `img_path`, whose folder is the generator. An element's words are looked for in the prompt,
    as upstream's process/element2mask.py does; those that do not stand there are no ratings of words, and counted.
    """
    ratings: list[Rating] = []
    words: list[Word] = []
    skills = []
    elements = lost = 0
    for where, record in read_list(place, "images"):
        prompt_id, image_id = as_text(record, "prompt_id", where), as_text(record, "img_path", where)
        generator = image_id.rpartition("/")[0].rpartition("/")[2] or None
        ids = (image_id, prompt_id, generator)
        skills.append((prompt_id, str(record["type"]) if record.get("type") else None))
        for rater, rating in enumerate(_listed(record.get("total_score"), where)):
            ratings.append(Rating(*ids, str(rater), LIKERT, rating_value(rating, where), where))
        for name, given in as_object(record.get("element_score") or {}, f"{where}, element_score").items():
            found = list(_element_words(ids, as_text(record, "prompt", where), name, given, f"{where}, {name!r}"))
            elements, lost, words = elements + 1, lost + (not found), words + found
    notes = [f"{lost} of {elements} elements do not stand in their prompt: no ratings of words"] if lost else []
    return released(ratings=ratings, words=_once(words), skills=skills_of(skills), notes=notes)


def _listed(value: Any, where: str) -> list[Any]:
    """What each rater said, or their mean as one."""
    return [value] if isinstance(value, int | float) else as_list(value, "ratings", where)


def _element_words(ids: tuple[str, str, str | None], prompt: str, name: str, given: Any, where: str) -> Iterator[Word]:
    """What is said of each word of an element, by every rater."""
    words = name.rpartition("(")[0].strip() or name
    span = parsing.find(words, prompt)
    if span is None:
        return
    for rater, value in enumerate(_listed(given, where)):
        for word, start, end in words_in(prompt[span.start : span.end]):
            yield Word(*ids, str(rater), word, span.start + start, span.start + end, rating_value(value, where), where)


def _once(words: list[Word]) -> Iterator[Word]:
    """Every rater's word once: one that several elements hold is aligned where it is in all of them."""
    lowest: dict[tuple[Any, ...], Word] = {}
    for word in words:
        key = (*word[:4], word.start, word.end)
        known = lowest.get(key)
        if known is None or (
            word.aligned is not None and word.aligned < (1 if known.aligned is None else known.aligned)
        ):
            lowest[key] = word
    return iter(lowest.values())


LONGEST = 1 << 28
"""Bytes of a record; a longer one is taken for damage."""
HEAD, TAIL = 12, 4
POINTER = b"version http"
"""How a file begins that stands for one in Git LFS."""


def _read_examples(place: Place) -> Iterator[dict[str, list[Any]]]:
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

    example = _example_class()()
    try:
        example.ParseFromString(record)
    except DecodeError as error:
        raise SourceError(f"{where}: not a TensorFlow Example; {AGAIN}") from error
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
"""The fields of tensorflow.Example."""


@cache
def _example_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("plumbline.Example"))


RICHHF_SCORES = ("aesthetics", "artifact", "misalignment", "overall")
LABEL = "prompt_misalignment_label"
RICHHF_PROMPTS = ("prompts.csv", "prompts.parquet", "prompts.jsonl")
SEPARATORS = r'[,.?!":; ]+'
RATERS = "mean"
RICHHF = "is this RichHF-18K's file?"


def read_richhf(place: Place) -> Release:
    """The scores of a file, or of those of a folder, by template; with the prompts' table also the words.

    RichHF-18K: 17,760 images of Pick-a-Pic with four scores each, and which words of the prompt they do not show.

    Source: google-research-datasets/richhf-18k, {train,dev,test}.tfrecord: TensorFlow Examples with filename,
    aesthetics_score, artifact_score, misalignment_score and overall_score (floats, all the higher the better, means of
    three people), prompt_misalignment_label (a 1 or a 0 for each word, 0 being not aligned, joined by spaces) and two
    heatmaps, which are not read. The file has no prompts: they are Pick-a-Pic's, and THEIR TABLE IS OURS, `prompts` as
    .csv, .parquet or .jsonl beside the records, with the columns filename and prompt. Words are what commas, full
    stops, question and exclamation marks, double quotes, colons, semicolons and spaces part (google-research,
    richhf_18k, match_label_to_token.py).

    An image is named by its file's name without folder and suffix, which is its name in Pick-a-Pic; a prompt by its
    text.
    """
    folder = is_folder(place)
    files = files_in(place, ".tfrecord") if folder else [place]
    if not files:
        raise SourceError(f"{place.url}: expected a .tfrecord file or a folder with some, found none; check the path")
    prompts = _prompts_by_file([place / name if folder else place.parent / name for name in RICHHF_PROMPTS])
    ratings: list[Rating] = []
    words: list[Word] = []
    unknown = 0
    for file in files:
        for number, example in enumerate(_read_examples(file)):
            where = f"{file.url}, record {number}"
            name = _feature_text(example, "filename", where)
            image_id, prompt = PurePosixPath(name).stem, prompts.get(name)
            ratings += [
                Rating(
                    image_id,
                    prompt,
                    None,
                    RATERS,
                    score,
                    rating_value(_feature(example, f"{score}_score", where), where),
                    where,
                )
                for score in RICHHF_SCORES
            ]
            unknown += prompt is None
            if prompt is not None:
                words += _labelled_words(image_id, prompt, _feature_text(example, LABEL, where), where)
    notes = (
        [f"{unknown} images have no prompt in a table {RICHHF_PROMPTS[0]} beside: no words of them"] if unknown else []
    )
    return released(ratings=ratings, words=words, notes=notes)


def _prompts_by_file(files: Sequence[Place]) -> dict[str, str]:
    """Prompts by the file names of their images, of the first table that is there."""
    file = next(filter(exists, files), None)
    if file is None:
        return {}
    sheet = read_sheet(file).require(("filename", "prompt"), "name the columns so")
    return dict(zip(sheet.ids("filename"), sheet.ids("prompt"), strict=True))


def _feature(example: Mapping[str, Sequence[Any]], name: str, where: str) -> Any:
    values = example.get(name)
    if not values:
        raise SourceError(f"{where}: expected {name}, found {', '.join(map(repr, example)) or 'nothing'}; {RICHHF}")
    return values[0]


def _feature_text(example: Mapping[str, Sequence[Any]], name: str, where: str) -> str:
    value = _feature(example, name, where)
    try:
        return str(value, "utf-8")
    except (TypeError, UnicodeDecodeError) as error:
        raise SourceError(f"{where}: expected {name} as text, found {value!r}; {RICHHF}") from error


def _labelled_words(image_id: str, prompt: str, label: str, where: str) -> Iterator[Word]:
    words, labels = words_in(prompt, SEPARATORS), label.split()
    if len(words) != len(labels) or not set(labels) <= {"0", "1"}:
        raise SourceError(
            f"{where}: expected a 1 or a 0 for each of the {len(words)} words of {prompt!r}, found {label!r}; is "
            "it the prompt that was rated?"
        )
    for (word, start, end), aligned in zip(words, labels, strict=True):
        yield Word(image_id, prompt, None, RATERS, word, start, end, float(aligned), where)


GECKO_UNSURE = ("unsure", "i do not know the answer", "subjective")
GECKO_INVALID = "invalid"
GECKO_SHARES = {"wl": ("word", "aligned", "not aligned"), "dsg_h": ("question_id", "yes", "no")}
"""By template: what one answer is about, and the answers that count as 1 and 0."""
SIDE_BY_SIDE = "sxs"
GECKO_SIDES = ("a", "b", "unsure")
GECKO_PROMPTS = ("prompts.csv", "gecko_prompts.csv")
RELIABLE = ("reliable", "max_disagreement_less_0.5")
GECKO_LAYOUT = "see the layout in the documentation of pipelines/judging/releases/word_ratings.py (read_gecko)"


def read_gecko(place: Place) -> Release:
    """The folder's ratings by template, its side-by-side choices, and the prompts' skills with `reliable` as one.

    Gecko2K's human ratings: Likert, word level, DSG(H) and side by side, three people for each image.

    google-deepmind/gecko_benchmark_t2i has released the prompts alone: of the images and the human annotation its
    DATABASE.md says "Working on". Whatever form they will have, THIS LAYOUT OF THE RATINGS IS OURS, after App. D.1 of
    the paper, for whoever has such ratings; only prompts.csv is the released one. A folder with one or more of these
    tables, each .csv or .parquet, of one row per answer:
    - likert: prompt_id, generator, rater, answer: 1 to 5, or Unsure;
    - wl: prompt_id, generator, rater, word (its place in the prompt, from 0; spaces part words), answer: Aligned, Not
      aligned or Unsure;
    - dsg_h: prompt_id, generator, rater, question_id, answer: Yes, No, Unsure (also "I do not know the answer" and
      "Subjective", which the paper counts so) or Invalid;
    - sxs: prompt_id, generator_a, generator_b, rater, answer: a, b or Unsure;
    - prompts (prompts.csv, or gecko_prompts.csv): dataset_id, prompt, prompt_type, prompt_id, and `reliable` or the
      released `max_disagreement_less_0.5`, which is the paper's threshold.
    An image is named `<prompt_id>/<generator>`.

    A rating of wl is the share of words aligned, of dsg_h the share of questions answered yes, for each person; Unsure
    answers are left out of both sides, and a rating without any other is null, as a Likert rating of Unsure is. Invalid
    answers, of dsg_h alone, are left out. With the prompts' texts the words of wl are ratings of words too.
    """
    sheets = {name: _gecko_sheet(place, name) for name in (LIKERT, *GECKO_SHARES, SIDE_BY_SIDE)}
    if not any(sheets.values()):
        raise SourceError(
            f"{place.url}: expected likert, wl, dsg_h or sxs as .csv or .parquet, found none; {GECKO_LAYOUT}"
        )
    likert, votes = sheets[LIKERT], sheets[SIDE_BY_SIDE]
    ratings = _gecko_likert(likert) if likert else []
    parts = [part for name in GECKO_SHARES if (sheet := sheets[name]) for part in _gecko_parts(name, sheet)]
    prompts = _gecko_prompts(place)
    skills = {str(prompt["prompt_id"]): _gecko_skills(prompt) for prompt in prompts}
    texts = {str(prompt["prompt_id"]): str(prompt["prompt"]) for prompt in prompts}
    rated_words = sheets["wl"]
    notes = [f"no table of {name}" for name, sheet in sheets.items() if sheet is None]
    return released(
        ratings=ratings,
        parts=parts,
        preferences=list(_gecko_choices(votes)) if votes else [],
        words=_gecko_words(rated_words, texts) if rated_words and texts else (),
        skills=skills,
        notes=[*notes, *([] if prompts else ["no prompts.csv: no skills and no words"])],
    )


def _gecko_sheet(folder: Place, name: str) -> Sheet | None:
    file = first_that_exists(folder, [f"{name}.csv", f"{name}.parquet"])
    return read_sheet(file) if file else None


def _gecko_answers(sheet: Sheet, *names: str) -> Iterator[tuple[str, ...]]:
    """Of each row its place, the columns named, and the answer in lower case."""
    sheet.require([*names, "answer"], GECKO_LAYOUT)
    answers = [answer.strip().lower() for answer in sheet.ids("answer")]
    places = map(sheet.where, range(len(sheet)))
    return zip(places, *(sheet.ids(name) for name in names), answers, strict=True)


def _require_known(answer: str, known: Sequence[str], said: str, where: str) -> None:
    if answer not in known:
        raise SourceError(f"{where}: expected {said}, found {answer!r}; correct it")


def _gecko_likert(sheet: Sheet) -> list[Rating]:
    ratings = []
    for where, prompt_id, generator, rater, answer in _gecko_answers(sheet, "prompt_id", "generator", "rater"):
        value = None if answer in GECKO_UNSURE else rating_value(answer, where)
        if value is not None and not 1 <= value <= 5:
            raise SourceError(f"{where}: expected 1 to 5 or Unsure, found {answer!r}; correct it")
        ratings.append(Rating(f"{prompt_id}/{generator}", prompt_id, generator, rater, LIKERT, value, where))
    return ratings


def _gecko_parts(template: str, sheet: Sheet) -> Iterator[Part]:
    """Yield every answer about a word or a valid question: 1 for the first of the two sure answers, else 0."""
    about, yes, no = GECKO_SHARES[template]
    for where, *key, subject, answer in _gecko_answers(sheet, "prompt_id", "generator", "rater", about):
        prompt_id, generator, rater = key
        if template == "dsg_h" and answer == GECKO_INVALID:
            continue
        _require_known(answer, (yes, no, *GECKO_UNSURE), f"{yes}, {no} or Unsure", where)
        value = None if answer in GECKO_UNSURE else float(answer == yes)
        yield Part(f"{prompt_id}/{generator}", prompt_id, generator, rater, template, subject, value, where)


def _gecko_choices(sheet: Sheet) -> Iterator[dict[str, Any]]:
    columns = ("prompt_id", "generator_a", "generator_b", "rater")
    places: dict[tuple[str, ...], str] = {}
    for where, prompt_id, a, b, rater, answer in _gecko_answers(sheet, *columns):
        said = f"rater {rater!r} compares this pair for the second time"
        remember(places, (prompt_id, *sorted((a, b)), rater), where, said)
        _require_known(answer, GECKO_SIDES, "a, b or Unsure", where)
        images = {"image_a": f"{prompt_id}/{a}", "image_b": f"{prompt_id}/{b}"}
        ids = dict(zip(columns, (prompt_id, a, b, rater), strict=True))
        yield {**ids, **images, "preferred": answer}


def _gecko_words(sheet: Sheet, texts: Mapping[str, str]) -> Iterator[Word]:
    """The answers about words whose prompt is known; raises SourceError for a place that it does not have."""
    words = {prompt_id: words_in(text) for prompt_id, text in texts.items()}
    for where, prompt_id, generator, rater, word, answer in _gecko_answers(
        sheet, "prompt_id", "generator", "rater", "word"
    ):
        known = words.get(prompt_id)
        if known is None:
            continue
        if word not in map(str, range(len(known))):
            raise SourceError(
                f"{where}: expected a word from 0 to {len(known) - 1} of prompt {prompt_id!r}, found {word!r}; "
                f"{GECKO_LAYOUT}"
            )
        aligned = None if answer in GECKO_UNSURE else float(answer == GECKO_SHARES["wl"][1])
        yield Word(f"{prompt_id}/{generator}", prompt_id, generator, rater, *known[int(word)], aligned, where)


def _gecko_prompts(folder: Place) -> Sequence[Mapping[str, Any]]:
    file = first_that_exists(folder, GECKO_PROMPTS)
    if file is None:
        return ()
    return read_prompt_file(read_content(file), file.url, ("prompt_id", "dataset_id", "prompt", "prompt_type"))


def _gecko_skills(prompt: Mapping[str, Any]) -> list[str]:
    said = next((str(prompt[name]) for name in RELIABLE if name in prompt), "")
    return [*prompt["skills"], *(["reliable"] if said.lower() == "true" else [])]
