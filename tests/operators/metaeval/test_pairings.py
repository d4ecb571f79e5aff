import math

import numpy as np
import pytest

from plumbline.operators.metaeval.pairings import pairing_scores


def test_a_tie_is_wrong_for_text_image_and_group_scores() -> None:
    right = [[2, 1], [1, 2]]
    text_only = [[2, 3], [1, 4]]
    image_only = [[2, 1], [3, 4]]
    tied = [[1, 1], [1, 1]]
    found = pairing_scores(np.array([right, text_only, image_only, tied], float))
    assert found.text.tolist() == [True, True, False, False]
    assert found.image.tolist() == [True, False, True, False]
    assert found.group.tolist() == [True, False, False, False]


def test_a_missing_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="leave it out"):
        pairing_scores(np.full((1, 2, 2), math.nan))
