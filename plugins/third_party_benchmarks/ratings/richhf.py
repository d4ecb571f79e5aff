"""RichHF-18K: scores for images, and the words of their prompts that the images do not show."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import (
    Rating,
    Release,
    WordRating,
    parse_rating,
    released,
    split_words,
)
from plumbline.pipelines.metaeval.releases.sheets import exists, is_folder, list_files, read_sheet
from plumbline.plugins.third_party_benchmarks.ratings.tfrecords import read_examples

SCORE_NAMES = ("aesthetics", "artifact", "misalignment", "overall")
LABEL_FEATURE = "prompt_misalignment_label"
PROMPT_TABLE_FILES = ("prompts.csv", "prompts.parquet", "prompts.jsonl")
WORD_SEPARATORS = r'[,.?!":; ]+'
RATER_NAME = "mean"
WRONG_FILE_HINT = "is this RichHF-18K's file?"


def read_richhf(place: Place) -> Release:
    """Read four scores per image from a file or a folder's files and, if there is a prompt table, the word ratings.

    RichHF-18K: 17,760 images from Pick-a-Pic with four scores each, and the words of the prompt that are not shown.

    Source: google-research-datasets/richhf-18k, {train,dev,test}.tfrecord: TensorFlow Examples with filename,
    aesthetics_score, artifact_score, misalignment_score and overall_score (floats; higher is better for all of them;
    means of three raters), prompt_misalignment_label (1 or 0 for each word, separated by spaces; 0 means not aligned)
    and two heatmaps, which are not read. The files do not contain the prompts, because they belong to Pick-a-Pic. The
    prompt table has our own format: a file `prompts` (.csv, .parquet or .jsonl) next to the records, with the columns
    filename and prompt. Prompts are split into words at commas, full stops, question and exclamation marks, double
    quotes, colons, semicolons and spaces (google-research, richhf_18k, match_label_to_token.py).

    An image is identified by its file name without folder and suffix, which is its name in Pick-a-Pic. A prompt is
    identified by its text.
    """
    folder = is_folder(place)
    files = list_files(place, ".tfrecord") if folder else [place]
    if not files:
        raise SourceError(
            f"{place.url}: expected a .tfrecord file or a folder with .tfrecord files, found none; check the path"
        )
    prompts = _read_prompts([place / name if folder else place.parent / name for name in PROMPT_TABLE_FILES])
    ratings: list[Rating] = []
    words: list[WordRating] = []
    unknown = 0
    for file in files:
        for number, example in enumerate(read_examples(file)):
            where = f"{file.url}, record {number}"
            name = _get_feature_text(example, "filename", where)
            image_id, prompt = PurePosixPath(name).stem, prompts.get(name)
            ratings += [
                Rating(
                    image_id,
                    prompt,
                    None,
                    RATER_NAME,
                    score,
                    parse_rating(_get_feature(example, f"{score}_score", where), where),
                    where,
                )
                for score in SCORE_NAMES
            ]
            unknown += prompt is None
            if prompt is not None:
                words += _read_labelled_words(image_id, prompt, _get_feature_text(example, LABEL_FEATURE, where), where)
    notes = (
        [f"{unknown} images have no prompt in a {PROMPT_TABLE_FILES[0]} next to the records, so no word ratings"]
        if unknown
        else []
    )
    return released(ratings=ratings, words=words, notes=notes)


def _read_prompts(files: Sequence[Place]) -> dict[str, str]:
    """Return prompts by the file names of their images, from the first table that exists; empty if none exists."""
    file = next(filter(exists, files), None)
    if file is None:
        return {}
    sheet = read_sheet(file).require(("filename", "prompt"), "name the columns so")
    return dict(zip(sheet.ids("filename"), sheet.ids("prompt"), strict=True))


def _get_feature(example: Mapping[str, Sequence[Any]], name: str, where: str) -> Any:
    values = example.get(name)
    if not values:
        raise SourceError(
            f"{where}: expected {name}, found {', '.join(map(repr, example)) or 'nothing'}; {WRONG_FILE_HINT}"
        )
    return values[0]


def _get_feature_text(example: Mapping[str, Sequence[Any]], name: str, where: str) -> str:
    value = _get_feature(example, name, where)
    try:
        return str(value, "utf-8")
    except (TypeError, UnicodeDecodeError) as error:
        raise SourceError(f"{where}: expected {name} as text, found {value!r}; {WRONG_FILE_HINT}") from error


def _read_labelled_words(image_id: str, prompt: str, label: str, where: str) -> Iterator[WordRating]:
    words, labels = split_words(prompt, WORD_SEPARATORS), label.split()
    if len(words) != len(labels) or not set(labels) <= {"0", "1"}:
        raise SourceError(
            f"{where}: expected a 1 or a 0 for each of the {len(words)} words of {prompt!r}, found {label!r}; "
            "check that the prompt table has the rated prompt"
        )
    for (word, start, end), aligned in zip(words, labels, strict=True):
        yield WordRating(image_id, prompt, None, RATER_NAME, word, start, end, float(aligned), where)
