"""VideoFeedback: people's ratings of generated videos on five aspects, and models' ratings of the same videos."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.release import Rating, Release, parse_rating, released
from plumbline.pipelines.metaeval.releases.scores import Score, make_scores
from plumbline.pipelines.metaeval.releases.sheets import (
    is_folder,
    list_files,
    read_list,
    read_sheet,
    require_list,
    require_text,
)

ASPECTS = (
    "visual_quality",
    "temporal_consistency",
    "dynamic_degree",
    "text_to_video_alignment",
    "factual_consistency",
)
RATING_PATTERN = re.compile(r": (\d{1,6})")
PROMPT_PATTERN = re.compile(r'text prompt is "(.{1,5000}?)",\n', re.DOTALL)
RESULT_FILE_PATTERN = re.compile(r"eval_.*_([^_/]+)\.json")


def read_video_feedback(place: Place) -> Release:
    """Return people's ratings from 1 to 4 for each of five aspects, and models' ratings as scores.

    VideoFeedback (He et al. 2024, VideoScore): 37,600 videos by 11 generators; its test set is in VideoScore-Bench.

    Source: TIGER-AI-Lab/VideoScore (read at 8e44973, MIT), benchmark/eval_videoscore.py and get_spearman_corr.py, which
    say how the data set and the results are laid out. The reader has not been tried on either. It reads one of

    - a .json or .parquet file of TIGER-Lab/VideoFeedback or VideoScore-Bench (video_feedback): rows of `{"id",
      "conversations": [{"value": question}, {"value": answer}]}`. The question contains the prompt, and the answer has
      the five ratings after colons, in the order of the aspects;
    - a folder with results, eval_<benchmark>_<model>.json: lists of `{"id", "text", "ref": "[3, ...]", "ans": "[2.8,
      ...]"}`, with people's ratings in `ref` and the model's in `ans`. Its scores are called `<model>_<aspect>`.

    A video is identified by its id, and a prompt by its text. Each aspect is a separate template.
    """
    if not is_folder(place):
        return released(ratings=_read_answers(place))
    files = [name for name in list_files(place, ".json") if RESULT_FILE_PATTERN.fullmatch(_get_file_name(name))]
    if not files:
        raise SourceError(
            f"{place.url}: expected results such as eval_video_feedback_MODEL.json, found none; check the path"
        )
    ratings: dict[tuple[str, str], Rating] = {}
    scores: list[Score] = []
    for file in files:
        found = RESULT_FILE_PATTERN.fullmatch(_get_file_name(file))
        for where, record in read_list(file, "results"):
            video, prompt = require_text(record, "id", where), require_text(record, "text", where)
            for aspect, value in zip(ASPECTS, _parse_numbers(record, "ref", where), strict=True):
                rating = Rating(video, prompt, None, "0", aspect, value, where)
                known = ratings.setdefault((video, aspect), rating)
                if known.rating != value:
                    raise SourceError(f"{where}: {aspect} of {video} is {value}, but {known.rating} in {known.where}")
            names = (f"{found[1] if found else ''}_{aspect}" for aspect in ASPECTS)
            for name, value in zip(names, _parse_numbers(record, "ans", where), strict=True):
                scores.append(Score(name, video, prompt, None, value))
    return released(ratings=ratings.values(), scores=make_scores(scores))


def _get_file_name(file: Place) -> str:
    return file.url.rpartition("/")[2]


def _parse_numbers(record: Mapping[str, Any], name: str, where: str) -> Sequence[float | None]:
    """Return the five numbers that a field contains as text; a missing number is None."""
    text = require_text(record, name, where)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != len(ASPECTS):
        expected = f"expected a list of {len(ASPECTS)} numbers in {name}"
        raise SourceError(f"{where}: {expected}, found {text[:80]!r}; check that this is the released file")
    return [parse_rating(value, where) for value in values]


def _read_answers(place: Place) -> Iterator[Rating]:
    """Yield the ratings in a file of the data set."""
    for where, record in _read_conversations(place):
        video = require_text(record, "id", where)
        turns = require_list(record.get("conversations"), "turns", where)
        texts = [require_object(turn, where).get("value") for turn in turns]
        question, answer = (text if isinstance(text, str) else "" for text in (*texts, None, None)[:2])
        values = RATING_PATTERN.findall(answer)
        if len(values) != len(ASPECTS):
            raise SourceError(
                f"{where}: expected ratings for {len(ASPECTS)} aspects in the second turn, found {len(values)}; "
                "check that this is the released file"
            )
        named = PROMPT_PATTERN.search(question)
        for aspect, value in zip(ASPECTS, values, strict=True):
            yield Rating(video, named[1] if named else video, None, "0", aspect, float(value), where)


def _read_conversations(place: Place) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not place.url.endswith(".parquet"):
        yield from read_list(place, "videos")
        return
    sheet = read_sheet(place, ("id", "conversations")).require(
        ("id", "conversations"), "check that this is the released file"
    )
    for row, record in enumerate(sheet.table.to_pylist()):
        yield sheet.where(row), record
