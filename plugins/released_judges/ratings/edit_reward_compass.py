"""EditReward-Compass: pairs of edits, each labelled with the edit that is better in one respect, or as a tie."""

from collections.abc import Mapping

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import Release, released
from plumbline.pipelines.metaeval.releases.sheets import read_list, require_text

PREFERENCE_BY_LABEL: Mapping[str, str] = {"preference": "a", "tie": "unsure"}


def read_edit_reward_compass(place: Place) -> Release:
    """Return the choice for each pair, with the winner as `a`.

    EditReward-Compass (Bai et al. 2026): 2,251 pairs of edits for judges in reinforcement learning.

    Source: bxhsort/Edit-Compass-and-EditReward-Compass (read at 6ee6caa), EditReward-Compass/eval.py. Its `source_json`
    is a list of `{"dimension": "IA", "VC" or "VQ", "source_image", "prompt", "winner", "loser", "label": "preference"
    or "tie"}`. The data set itself is on the hub, and this reader has not been tried on it.

    A prompt's id is its row's number, counted from 0, and the template is the dimension. An image's id is its path in
    the file, and its generator is `winner` or `loser`. A tie is `unsure`: the release counts it as right if both scores
    are equal (protocol.unsure=tied), and counts equal scores as wrong if one edit is better
    (protocol.equal_scores=wrong).
    """
    choices = []
    for row, (where, record) in enumerate(read_list(place, "pairs")):
        label = require_text(record, "label", where)
        if label not in PREFERENCE_BY_LABEL:
            expected = " or ".join(PREFERENCE_BY_LABEL)
            raise SourceError(
                f"{where}: expected the label {expected}, found {label!r}; check that this is the released file"
            )
        images = {"image_a": require_text(record, "winner", where), "image_b": require_text(record, "loser", where)}
        sides = {"generator_a": "winner", "generator_b": "loser", "template": require_text(record, "dimension", where)}
        choices.append(
            {"prompt_id": str(row), **images, **sides, "rater": "0", "preferred": PREFERENCE_BY_LABEL[label]}
        )
    return released(preferences=choices)
