"""Multimodal RewardBench 2: pairs of responses by image models and agents, each judged by three experts."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.release import (
    SIDE_BY_SIDE,
    Release,
    group_skills,
    record_unique_key,
    released,
)
from plumbline.pipelines.metaeval.releases.scores import Score, make_scores
from plumbline.pipelines.metaeval.releases.sheets import (
    exists,
    is_folder,
    list_files,
    read_json,
    read_objects,
    require_list,
    require_text,
)

TASKS = ("t2i", "edit", "interleaved", "reasoning")
JUDGEMENTS_FOLDER = "evaluate/generate_judgements/outputs"
PREFERENCE_BY_CHOICE: Mapping[Any, str] = {"A": "a", "B": "b"}
MIN_FIRST_RATING, MAX_RATING = 4, 6
"""Lowest rating that means that the first response is better, and the highest rating; the lowest one is 1."""


def read_mmrb2(place: Place) -> Release:
    """Return experts' choices, with the first response as `a`, and judges' verdicts as scores.

    MMRB2 (Hu et al. 2025): 1,000 pairs for each of text-to-image, edits, interleaved texts and images, and reasoning.

    Source: a checkout of facebookresearch/MMRB2 (read at 7ff0552, CC BY-NC 4.0), or one of its files:
    - benchmark/<task>_response_only.json, or <task>.json as its build scripts write it: `{"pairs": [{"id",
      "prompt_source", "chosen": "A" or "B", "human_annotations": [1-6, ...]}]}`. An annotation of 4 to 6 prefers A.
      Pairs of the task `reasoning` have other annotations, so only `chosen` is read there, as one rater's choice;
    - evaluate/generate_judgements/outputs/*.json: `{id: {"forward": [{"judgement", "evaluator"}], "reverse": [...]}}`.

    A pair's prompt has the pair's id, and its images are `<id>/a` and `<id>/b` by the generators `a` and `b`. The
    template is the task, so that tasks are judged separately. A prompt's skill is the benchmark that the prompt is
    from. A judge's score for an image is the share of its two verdicts that prefer the image. So the accuracy equals
    the release's (compute_accuracy.py) if equal scores count half.
    """
    folder = is_folder(place)
    files = _find_benchmarks(place) if folder else [place]
    choices, sources = list[dict[str, Any]](), list[tuple[str, str | None]]()
    places: dict[Any, str] = {}
    for file in files:
        pairs = require_object(read_json(file), file.url).get("pairs")
        for row, pair in enumerate(require_list(pairs, "pairs", file.url)):
            where = f"{file.url}, row {row}"
            record = require_object(pair, where)
            pair_id = require_text(record, "id", where)
            record_unique_key(places, pair_id, where, f"pair {pair_id} occurs twice")
            ids = {
                "template": _get_task_name(file),
                "image_a": f"{pair_id}/a",
                "image_b": f"{pair_id}/b",
                "generator_a": "a",
                "generator_b": "b",
            }
            for rater, preferred in enumerate(_read_choices(record, where)):
                choices.append({"prompt_id": pair_id, **ids, "rater": str(rater), "preferred": preferred})
            sources.append((pair_id, str(record.get("prompt_source") or "") or None))
    judged = list_files(place / JUDGEMENTS_FOLDER, ".json") if folder and is_folder(place / JUDGEMENTS_FOLDER) else []
    scores = [score for file in judged for score in _read_judgements(file, places)]
    return released(preferences=choices, scores=make_scores(scores), skills=group_skills(sources))


def _find_benchmarks(place: Place) -> list[Place]:
    """Return the files of all tasks in a checkout; raise SourceError if there are none."""
    names = [f"benchmark/{task}_response_only.json" for task in TASKS]
    files = [place / name for name in names if exists(place / name)]
    if not files:
        raise SourceError(
            f"{place.url}: expected a checkout of facebookresearch/MMRB2, found no {names[0]}; check the path"
        )
    return files


def _get_task_name(file: Place) -> str:
    name = file.url.rpartition("/")[2].removesuffix(".json").removesuffix("_response_only")
    return name if name in TASKS else SIDE_BY_SIDE


def _read_choices(record: Mapping[str, Any], where: str) -> list[str]:
    """Return each rater's choice, `a` or `b`; if the record has no list of ratings, only the final choice."""
    ratings, chosen = record.get("human_annotations"), PREFERENCE_BY_CHOICE.get(record.get("chosen"))
    if chosen is None:
        found = record.get("chosen")
        raise SourceError(
            f"{where}: expected chosen to be A or B, found {found!r}; check that this is the released file"
        )
    if not isinstance(ratings, list):
        return [chosen]
    for rating in require_list(ratings, "annotations", where):
        if isinstance(rating, bool) or not isinstance(rating, int) or not 1 <= rating <= MAX_RATING:
            raise SourceError(f"{where}: expected annotations from 1 to {MAX_RATING}, found {rating!r}; check the file")
    return ["a" if rating >= MIN_FIRST_RATING else "b" for rating in ratings]


def _read_judgements(file: Place, pairs: Mapping[Any, str]) -> Iterator[Score]:
    """Yield judges' scores for both images of each pair; the scores are None if no verdict is A or B."""
    for pair_id, record in read_objects(file).items():
        if pair_id not in pairs:
            continue
        verdicts: dict[str, list[float]] = {}
        for order, first in (("forward", "A"), ("reverse", "B")):
            for judged in record.get(order) or ():
                verdict = require_object(judged, f"{file.url}, {pair_id}, {order}")
                shares = verdicts.setdefault(str(verdict.get("evaluator")), [])
                shares += [float(verdict["judgement"] == first)] if verdict.get("judgement") in ("A", "B") else []
        for judge, shares in verdicts.items():
            share = fmean(shares) if shares else None
            other = None if share is None else 1 - share
            yield Score(judge, f"{pair_id}/a", pair_id, "a", share)
            yield Score(judge, f"{pair_id}/b", pair_id, "b", other)
