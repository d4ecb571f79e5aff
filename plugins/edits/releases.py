"""Human judgements of edited images: ImagenHub's ratings as published by VIEScore, and GenAI-Bench's votes."""

import math
import re
from collections.abc import Iterator
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.metaeval.releases.release import (
    Rating,
    Release,
    group_skills,
    parse_rating,
    record_unique_key,
    released,
)
from plumbline.pipelines.metaeval.releases.scores import Score, make_scores
from plumbline.pipelines.metaeval.releases.sheets import (
    Sheet,
    name_row,
    read_list,
    read_objects,
    read_sheet,
    require_list,
    require_text,
)

RATINGS_FOLDER = "paper_implementation/_human_annotations/ImagenHub_human_eval_results"
ANSWERS_FOLDER = "paper_implementation/_answers"
RATER_FILE_PATTERN = re.compile(r"ImagenHub_([^/]+_IE)/[^/]+_rater(\d+)\.tsv")
JUDGE_FILE_PATTERN = re.compile(r"results_([^/]+)/ImagenHub_([^/]+_IE)/([^/]+)/SC\.json")
MEASURES_FILE_PATTERN = re.compile(r"results_autometrics/ImagenHub_([^/]+_IE)/([^/]+)\.json")
RATING_PAIR_PATTERN = re.compile(r"\[\s*([^,\s]+)\s*,\s*([^,\s]+)\s*\]")


def read_imagenhub(place: Place) -> Release:
    """Return human ratings of edits (SC, PQ and O), and the scores from judges and from measures such as LPIPS.

    ImagenHub: edits by nine text-guided, four mask-guided and three subject-driven editors. Three people rated the
    semantic consistency (SC) and the perceptual quality (PQ) of each edit as 0, 0.5 or 1.

    Source: a checkout of TIGER-AI-Lab/VIEScore (read at 2cbea4e). In paper_implementation:
    - _human_annotations/ImagenHub_human_eval_results/ImagenHub_<task>_IE/*_rater<n>.tsv: the column uid, and for each
      editor a column of `[SC, PQ]`;
    - _answers/results_<judge>/ImagenHub_<task>_IE/<editor>/SC.json and PQ.json: `{uid: {"score": [0-10, ...]}}`;
    - _answers/results_autometrics/ImagenHub_<task>_IE/<editor>.json: `{uid: {"LPIPS": number}}`.

    As in upstream's analyze_json.ipynb, a judge's SC and PQ are the lowest of the reply's ratings, truncated, divided
    by ten and clipped to the range from 0 to 1. Edits without replies for both are skipped. For people and judges
    alike, O is the square root of SC times PQ.

    Metrics are named `<judge>_SC` and so on; measures keep the names in their files. A prompt's skill is its task. An
    image is named `<task>/<editor>/<uid>`, and its prompt `<task>/<uid>`. Generation tasks are not read.
    """
    ratings = [
        rating
        for file, task, rater in _find_files(place / RATINGS_FOLDER, RATER_FILE_PATTERN)
        for rating in _read_ratings(read_sheet(file), task, rater)
    ]
    if not ratings:
        raise SourceError(
            f"{place.url}: expected a checkout of TIGER-AI-Lab/VIEScore, found no ratings of edits in "
            f"{RATINGS_FOLDER}; check "
            "the path"
        )
    skills = group_skills((rating.prompt_id, str(rating.prompt_id).partition("/")[0]) for rating in ratings)
    return released(ratings=ratings, scores=make_scores(_read_scores(place / ANSWERS_FOLDER)), skills=skills)


def _find_files(folder: Place, pattern: re.Pattern[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the files below a folder whose paths match, each with the matched groups; none if the folder is missing."""
    with convert_read_errors(folder, "release"):
        names = sorted(name for name, _ in folder.files()) if folder.is_folder() else []
    for found in filter(None, map(pattern.fullmatch, names)):
        yield folder / found.string, *found.groups()


def _make_ids(task: str, editor: str, uid: str) -> tuple[str, str, str]:
    return f"{task}/{editor}/{uid}", f"{task}/{uid}", editor


def _read_ratings(sheet: Sheet, task: str, rater: str) -> Iterator[Rating]:
    uids = sheet.require(["uid"], "check that this is one of VIEScore's rater files").ids("uid")
    for editor in (name for name in sheet.names if name != "uid"):
        for row, (uid, cell) in enumerate(zip(uids, sheet.texts(editor), strict=True)):
            where = sheet.where(row)
            for template, value in zip(("SC", "PQ", "O"), _parse_ratings(cell, editor, where), strict=True):
                yield Rating(*_make_ids(task, editor, uid), rater, template, value, where)


def _parse_ratings(cell: str | None, editor: str, where: str) -> tuple[float, float, float]:
    """Return a person's SC and PQ ratings, and the square root of their product."""
    found = RATING_PAIR_PATTERN.fullmatch(cell or "")
    values = [parse_rating(text, where) for text in found.groups()] if found else []
    shares = [value for value in values if value is not None and 0 <= value <= 1]
    if len(shares) != 2:
        raise SourceError(
            f"{where}: expected two ratings of {editor}, each from 0 to 1, such as [0.5, 1], "
            f"found {cell!r}; correct them"
        )
    return shares[0], shares[1], math.sqrt(shares[0] * shares[1])


def _read_scores(folder: Place) -> Iterator[Score]:
    for file, judge, task, editor in _find_files(folder, JUDGE_FILE_PATTERN):
        consistency, quality = _read_replies(file), _read_replies(file.parent / "PQ.json")
        for uid in (uid for uid in consistency if uid in quality):
            sc, pq = consistency[uid], quality[uid]
            overall = None if sc is None or pq is None else math.sqrt(sc * pq)
            for aspect, score in {"SC": sc, "PQ": pq, "O": overall}.items():
                yield Score(f"{judge}_{aspect}", *_make_ids(task, editor, uid), score)
    for file, task, editor in _find_files(folder, MEASURES_FILE_PATTERN):
        for row, (uid, measures) in enumerate(read_objects(file).items()):
            for measure, value in measures.items():
                number = parse_rating(value, name_row(file.url, row, uid))
                yield Score(measure, *_make_ids(task, editor, uid), number)


def _read_replies(file: Place) -> dict[str, float | None]:
    records = enumerate(read_objects(file).items())
    return {
        uid: _find_lowest_rating(record.get("score"), name_row(file.url, row, uid)) for row, (uid, record) in records
    }


def _find_lowest_rating(reply: Any, where: str) -> float | None:
    """Return the lowest of a reply's ratings, truncated, divided by 10 and clipped to the range from 0 to 1.

    Returns None if the reply lacks any of its ratings.
    """
    values = require_list(reply if isinstance(reply, list) else [reply], "scores", where)
    numbers = [parse_rating(value, where) for value in values]
    whole = [int(number) for number in numbers if number is not None]
    return min(1.0, max(0.0, min(whole) / 10)) if len(whole) == len(numbers) else None


VOTES_FILE_PATTERN = re.compile(r"([^/]+)/pairwise\.json")
PREFERENCE_BY_VOTE = {"leftvote": "a", "rightvote": "b", "tievote": "unsure", "bothbad_vote": "unsure"}
A_BETTER, B_BETTER, EQUALLY_GOOD = (1.0, 0.0), (0.0, 1.0), (0.5, 0.5)
CHOICE_BY_VERDICT = {
    "[[A>B]]": A_BETTER,
    "[[A>>B]]": A_BETTER,
    "[[B>A]]": B_BETTER,
    "[[B>>A]]": B_BETTER,
    "[[A=B]]": EQUALLY_GOOD,
    "[[A=B=Good]]": EQUALLY_GOOD,
    "[[A=B=Bad]]": EQUALLY_GOOD,
}


def read_genai_arena(place: Place) -> Release:
    """Return people's votes, with the left image as `a`, and the models' votes as scores.

    The image that a model prefers gets the score 1 and the other 0; both get 0.5 if the model finds them equal.

    TIGER-AI-Lab's GenAI-Bench contains people's votes in GenAI-Arena between two edits of an image, and models' votes.

    Source: the folder results/image_edition of TIGER-AI-Lab/GenAI-Bench (read at f0b0334), or its image_generation
    folder, which has the same layout: <model>/pairwise.json, `[{"idx", "human_vote", "model_vote"}]`. A pair is named
    by its `idx`, its position in the split test_v1 on the Hugging Face Hub, and its images are `<idx>/left` and
    `<idx>/right`. Ties are `unsure`, whether both images are good or both are bad. A reply in which upstream's code
    found no verdict yields no score.
    """
    votes: dict[str, str] = {}
    places: dict[tuple[str, str], str] = {}
    scores: list[Score] = []
    for file, model in _find_files(place, VOTES_FILE_PATTERN):
        for where, record in read_list(file, "votes"):
            pair, vote = require_text(record, "idx", where), require_text(record, "human_vote", where)
            record_unique_key(places, (model, pair), where, f"pair {pair} occurs twice")
            if vote not in PREFERENCE_BY_VOTE or votes.setdefault(pair, vote) != vote:
                wanted = votes.get(pair) or " or ".join(PREFERENCE_BY_VOTE)
                raise SourceError(
                    f"{where}: expected the human_vote {wanted}, found {vote!r}; check that this is the released file"
                )
            verdict = CHOICE_BY_VERDICT.get(str(record.get("model_vote")), (None, None))
            for side, score in zip(("left", "right"), verdict, strict=True):
                scores.append(Score(model, f"{pair}/{side}", pair, None, score))
    if not votes:
        raise SourceError(
            f"{place.url}: expected the folder results/image_edition of TIGER-AI-Lab/GenAI-Bench, found no "
            "MODEL/pairwise.json; check the path"
        )
    choices = [
        {
            "prompt_id": pair,
            "image_a": f"{pair}/left",
            "image_b": f"{pair}/right",
            "rater": "0",
            "preferred": PREFERENCE_BY_VOTE[vote],
        }
        for pair, vote in votes.items()
    ]
    return released(preferences=choices, scores=make_scores(scores))
