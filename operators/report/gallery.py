"""The gallery: which images to show, and how each is shown."""

import base64
import io
import json
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import pandas as pd
import pyarrow as pa
from PIL import Image

from operators.errors import RowError
from operators.images import ImageLimits, decode_image
from operators.metrics.metric import direction
from operators.report.marks import AskedQuestion, Segment, asked_questions, cut, mark_prompt
from operators.report.words import names

THUMBNAIL_SIDE = 256
THUMBNAIL_BYTES = 12_000
QUALITIES = (82, 70, 55, 40, 25, 10)

Kind = Literal["best", "worst", "disagreed"]
Place = tuple[str, str, str]
"""An image's row: its generator, its id and its prompt's."""


class ImageKey(NamedTuple):
    """Which image it is."""

    generator: str
    image_id: str


class Reason(NamedTuple):
    """Why an image is in the gallery."""

    kind: Kind
    metric: str
    text: str = ""
    """Of a disagreement, how large it is."""


class Pick(NamedTuple):
    """An image chosen for the gallery."""

    key: ImageKey
    prompt_id: str
    scores: Mapping[str, float]
    """By metric."""
    ranks: Mapping[str, float]
    """By metric, the share of images that score worse, ties half."""
    reasons: tuple[Reason, ...]


class ImageDetail(NamedTuple):
    """What the store and the sources have about a picked image."""

    thumbnail: str | None
    """A data: address."""
    missing: str
    """Why there is no thumbnail."""
    elements: Mapping[str, Sequence[Mapping[str, Any]]]
    """By metric that has any, the questions with their scores (operators/rows.py, ELEMENT)."""
    rationales: Mapping[str, str]
    """By metric that gives any, its judge's own reasons."""
    ratings: Mapping[str, Mapping[str, float]]
    """By metric whose judge gives any, its numbers by what they rate."""


NO_DETAIL = ImageDetail(None, "it was not looked for", {}, {}, {})


class MetricView(NamedTuple):
    """One metric's part of a card."""

    metric: str
    score: float
    rank: float
    questions: list[AskedQuestion]
    more: int
    """Questions that are not shown."""
    rationale: str
    ratings: list[tuple[str, str]]
    """What a judge rated, and how high."""


class Card(NamedTuple):
    """An image as the gallery shows it."""

    pick: Pick
    alt: str
    thumbnail: str | None
    missing: str
    prompt: list[Segment]
    marked_by: str
    """The metric whose questions mark the prompt; empty where none has any."""
    skills: tuple[str, ...]
    views: list[MetricView]
    search: str
    """What the text filter looks in."""

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(reason.kind for reason in self.pick.reasons))

    @property
    def why(self) -> str:
        """Why it is here, in words."""
        parts = []
        for kind, said in (("worst", "among the worst by"), ("best", "among the best by")):
            if metrics := [reason.metric for reason in self.pick.reasons if reason.kind == kind]:
                parts.append(f"{said} {names(metrics)}")
        return "; ".join([*parts, *[reason.text for reason in self.pick.reasons if reason.text][:1]])

    @property
    def reasons_json(self) -> str:
        """[[kind, metric], ...], for the filter."""
        return json.dumps([[reason.kind, reason.metric] for reason in self.pick.reasons])

    @property
    def skills_json(self) -> str:
        return json.dumps(self.skills)


def pick_images(scores: pa.Table, metrics: Sequence[str], most: int, falling: Container[str] = ()) -> list[Pick]:
    """At most `most` images: by each metric the best, the worst, and those that the metrics disagree on most.

    By the metrics `falling` a lower score is better. No prompt is taken twice for one reason, and generators share the
    places.
    """
    wide = _wide(scores, metrics)
    if wide.empty or most < 1:
        return []
    worth = wide * [direction(metric, falling) for metric in wide.columns]
    ranks = worth.rank(pct=True) - 0.5 / wide.notna().sum()
    quotas = _quotas(len(wide.columns), most)
    chosen = [_chosen(kind, metric, worth, ranks, quotas[kind]) for kind in quotas for metric in wide.columns]
    reasons: dict[Place, list[Reason]] = {}
    for choices in zip_longest(*chosen):  # the first of every kind and metric before any's second
        for place, reason in filter(None, choices):
            reasons.setdefault(place, []).append(reason)
    return [_pick(place, why, wide, ranks) for place, why in list(reasons.items())[:most]]


def _wide(scores: pa.Table, metrics: Sequence[str]) -> pd.DataFrame:
    """A row per image (generator, image_id, prompt_id) and a column per metric that scored any."""
    columns = ["generator", "image_id", "prompt_id", "metric", "score"]
    frame = scores.select(columns).to_pandas().dropna(subset=["image_id", "prompt_id", "score"])
    frame = frame.drop_duplicates(["generator", "image_id", "prompt_id", "metric"])
    wide = frame.pivot(index=["generator", "image_id", "prompt_id"], columns="metric", values="score")
    return wide[[metric for metric in metrics if metric in wide.columns]]


def _quotas(n_metrics: int, most: int) -> dict[Kind, int]:
    """How many images each metric gives for each reason; the worst teach most."""
    share = most / n_metrics
    if n_metrics == 1:
        worst = max(1, round(0.6 * share))
        return {"worst": worst, "disagreed": 0, "best": max(0, int(share) - worst)}
    worst = max(1, int(0.45 * share))
    best = max(1, int(0.25 * share))
    return {"worst": worst, "disagreed": max(1, int(share) - worst - best), "best": best}


def _chosen(
    kind: Kind, metric: str, worth: pd.DataFrame, ranks: pd.DataFrame, count: int
) -> list[tuple[Place, Reason]]:
    """A metric's choices of one kind; `worth` are the scores so turned that more is better."""
    if kind == "disagreed":
        places = _spread(_disagreement(ranks, metric), count)
        return [(place, Reason(kind, metric, _disagreement_text(ranks.loc[place], metric))) for place in places]
    column = worth[metric].dropna().sort_values(ascending=kind == "worst", kind="stable")
    return [(place, Reason(kind, metric)) for place in _spread(column, count)]


def _disagreement(ranks: pd.DataFrame, metric: str) -> pd.Series:
    """How far one metric's rank of an image is from the other metrics' median, the farthest first."""
    others = ranks.drop(columns=metric)
    if others.empty:
        return pd.Series(dtype=float, index=ranks.index[:0])
    return (ranks[metric] - others.median(axis=1)).abs().dropna().sort_values(ascending=False, kind="stable")


def _disagreement_text(ranks: pd.Series, metric: str) -> str:
    others = float(ranks.drop(metric).median())
    return f"{metric} puts it above {ranks[metric]:.0%} of the images, the other metrics above {others:.0%}"


def _spread(ordered: pd.Series, count: int) -> list[Place]:
    """The first `count` of the series, each prompt once, and no generator before its turn."""
    generators = ordered.index.get_level_values("generator").nunique() if len(ordered) else 0
    share = -(-count // generators) if generators else 0
    taken: Counter[str] = Counter()
    places: dict[str, Place] = {}
    for generator, image_id, prompt_id in ordered.index[: 200 * max(count, 1)]:
        if len(places) < count and prompt_id not in places and taken[generator] < share:
            places[prompt_id] = (generator, image_id, prompt_id)
            taken[generator] += 1
    return list(places.values())


def _pick(place: Place, reasons: Sequence[Reason], wide: pd.DataFrame, ranks: pd.DataFrame) -> Pick:
    generator, image_id, prompt_id = place
    scores = {str(metric): float(score) for metric, score in wide.loc[place].dropna().items()}
    own_ranks = {metric: float(ranks.loc[place][metric]) for metric in scores}
    return Pick(ImageKey(generator, image_id), prompt_id, scores, own_ranks, tuple(reasons))


def make_card(pick: Pick, detail: ImageDetail, prompt: str | None, skills: Sequence[str]) -> Card:
    """The card of a picked image; its prompt is marked by the first of its reasons' metrics that has questions."""
    text = prompt if prompt is not None else f"(the text of prompt {pick.prompt_id} cannot be read)"
    metrics = [*(reason.metric for reason in pick.reasons), *detail.elements] if prompt is not None else []
    marked_by = next((metric for metric in metrics if detail.elements.get(metric)), "")
    return Card(
        pick=pick,
        alt=f"Image by {pick.key.generator} for the prompt: {cut(text, 200)}",
        thumbnail=detail.thumbnail,
        missing=cut(detail.missing),
        prompt=mark_prompt(text, detail.elements.get(marked_by, ())),
        marked_by=marked_by,
        skills=tuple(skills),
        views=[_view(metric, pick, detail) for metric in pick.scores],
        search=" ".join((cut(text, 1000), pick.key.generator, pick.key.image_id, pick.prompt_id)).lower(),
    )


def _view(metric: str, pick: Pick, detail: ImageDetail) -> MetricView:
    elements = detail.elements.get(metric) or ()
    questions = asked_questions(elements)
    return MetricView(
        metric=metric,
        score=pick.scores[metric],
        rank=pick.ranks[metric],
        questions=questions,
        more=len(elements) - len(questions),
        rationale=cut(detail.rationales.get(metric), 2000),
        ratings=[(cut(name, 80), f"{value:g}") for name, value in detail.ratings.get(metric, {}).items()],
    )


def make_thumbnail(row: Mapping[str, Any], limits: ImageLimits, fetch: Callable[[str], bytes]) -> str | RowError:
    """The row's image, small, as a data: address of at most `THUMBNAIL_BYTES` encoded bytes."""
    image = decode_image(row, limits, fetch)
    if isinstance(image, RowError):
        return image
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.LANCZOS)
    return f"data:image/webp;base64,{base64.b64encode(_small(image)).decode()}"


def _small(image: Image.Image) -> bytes:
    """The image as WebP of the best quality that is small enough, at half the size where none is."""
    for quality in QUALITIES:
        buffer = io.BytesIO()
        image.save(buffer, "WEBP", quality=quality, method=4)
        if buffer.tell() <= THUMBNAIL_BYTES:
            return buffer.getvalue()
    return _small(image.resize((max(1, image.width // 2), max(1, image.height // 2))))
