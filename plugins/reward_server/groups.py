"""Compares the images of a group, which are the images of a prompt in one request, with each other.

A judge of two images, such as the metric `pairwise`, is asked about every two images of a group. Each pair is a request
of its own, so that pairs share batches, the cache and the replicas with other images.

No trainer has a request format of its own for groups. Sources:
- X-GenGroup/Flow-Factory a0b2bc5, src/flow_factory/rewards/my_reward_remote.py (RemoteGroupwiseRewardModel) and
  reward_processor.py (_compute_groupwise_group): one request per group, in the format of single images.
- Tencent-Hunyuan/UniRL 0e713d6, unirl/reward/remote.py: requests of many samples, each with a `group_id`; the option
  `request_batch_size` splits them without regard to groups. It has no reward that compares images.
- CodeGoat24/Pref-GRPO 3e787f6, fastvideo/rewards: the trainer itself asks a chat model about every two images.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from plumbline.operators.base.errors import EMPTY_PROMPT_ERROR, RowError
from plumbline.operators.stages.comparisons import (
    NO_OTHER_IMAGE_ERROR,
    PairOutcome,
    find_lasting_error,
    format_image_name,
)
from plumbline.plugins.reward_server.serve_config import LoadConfig
from plumbline.plugins.reward_server.wires.wire import ImageAnswers, MetricAnswer, ScoreRequest, Served


class Pair(NamedTuple):
    """Two images of a group, by their positions in a request, and the request to compare them."""

    first: int
    second: int
    request: ScoreRequest
    """Request whose answers are the probabilities that the first image is better."""


def list_groups(requests: Sequence[ScoreRequest], served: Served) -> list[list[int]]:
    """Return the positions of the images to compare with each other, one list per group.

    The images of a group have the same prompt, the same requested metrics and, if the client sends it, the same
    `group_id`; edits also have the same sources. Images that no model can look at, and images without a prompt, are in
    no group.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        metrics = served.select_comparing(request.metrics)
        if metrics and request.error is None and request.prompt.strip():
            sources = request.sources if served.needs.get("sources", frozenset()) & {*metrics} else ()
            groups[metrics, request.prompt, sources, (request.identity or {}).get("group_id")].append(place)
    return [*groups.values()]


def find_group_problem(requests: Sequence[ScoreRequest], served: Served, load: LoadConfig) -> str | None:
    """Return why a request has too many images to compare with each other, or None if the limits allow it."""
    sizes = [len(group) for group in list_groups(requests, served)]
    largest, pairs = max(sizes, default=0), sum(math.comb(size, 2) for size in sizes)
    if largest > load.max_group:
        return (
            f"expected at most {load.max_group} images of a prompt, because each is compared with each other, found "
            f"{largest}, which take {largest * (largest - 1)} comparisons; send fewer, or raise max_group"
        )
    if pairs and len(requests) + pairs > load.max_waiting:
        return (
            f"expected at most {load.max_waiting} images and pairs of images in a request, found {len(requests)} "
            f"images and {pairs} pairs; send fewer groups, or raise max_waiting"
        )
    return None


def make_pairs(requests: Sequence[ScoreRequest], served: Served) -> list[Pair]:
    """Return every two images of each group once; a judge compares them in both orders."""
    pairs = []
    for group in list_groups(requests, served):
        metrics = served.select_comparing(requests[group[0]].metrics)
        for first, second in combinations(group, 2):
            request = requests[first]._replace(metrics=metrics, other=requests[second].images, identity=None)
            pairs.append(Pair(first, second, request))
    return pairs


def join_pairs(
    requests: Sequence[ScoreRequest], pairs: Sequence[Pair], answers: Sequence[ImageAnswers], served: Served
) -> list[dict[str, MetricAnswer]]:
    """Return each image's answers by metrics that compare images: its mean share of comparisons won, or an error.

    A comparison that failed for good is left out. If one may succeed later, the image gets its error until then.
    """
    outcomes: list[dict[str, list[PairOutcome]]] = [defaultdict(list) for _ in requests]
    for pair, of_pair in zip(pairs, answers, strict=True):
        places = (pair.first, pair.second)
        for metric, (share, error) in of_pair.items():
            failed = None if error is None else _find_failed_image(error)
            shares = (None, None) if share is None else (share, 1 - share)
            for index, (place, own_share) in enumerate(zip(places, shares, strict=True)):
                own = outcomes[place][metric]
                if error is None or failed is None:
                    own.append(PairOutcome(own_share, error, None))
                elif failed == index:  # the image's own fault comes before those of other images
                    own.insert(0, PairOutcome(None, rename_failed_image(error, failed, None), None))
                else:
                    own.append(PairOutcome(None, rename_failed_image(error, failed, places[failed]), None))
    return [
        {metric: _join_outcomes(request, own[metric]) for metric in served.select_comparing(request.metrics)}
        for request, own in zip(requests, outcomes, strict=True)
    ]


def _find_failed_image(error: RowError) -> int | None:
    """Return the index of the image of a pair that an error is about; None if it is about neither or both."""
    return next((index for index in (0, 1) if error.message.startswith(_make_prefix(index))), None)


def rename_failed_image(error: RowError, image: int, renamed: int | None) -> RowError:
    """Return the error with another number of the image, or none, if its message begins with this image."""
    old, new = _make_prefix(image), "" if renamed is None else _make_prefix(renamed)
    return error._replace(message=new + error.message[len(old) :]) if error.message.startswith(old) else error


def _make_prefix(image: int) -> str:
    return f"{format_image_name('', str(image))}: "


def _join_outcomes(request: ScoreRequest, outcomes: Sequence[PairOutcome]) -> MetricAnswer:
    error = request.error or find_lasting_error(outcomes)
    if error is None and not outcomes:
        error = NO_OTHER_IMAGE_ERROR if request.prompt.strip() else EMPTY_PROMPT_ERROR
    if error is not None:
        return MetricAnswer(None, error)
    shares = [outcome.p_better for outcome in outcomes if outcome.p_better is not None]
    return MetricAnswer(math.fsum(shares) / len(shares))
