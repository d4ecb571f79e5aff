"""A reward for edits in TRL reads the sources from a column."""

import pytest

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.rewards.trl import trl_reward
from tests.serving import select_first_pairs


def test_trl_reads_sources_from_a_column_and_a_bad_source_has_no_reward() -> None:
    scorer, pairs = open_scorer("metric=[source_ssim]", "models=shapes"), select_first_pairs(3)
    images, texts = [pair.image for pair in pairs], [pair.prompt for pair in pairs]
    sources = [images[1], [{"bytes": images[0], "path": None}], b"no image"]
    reward = trl_reward(scorer, "source_ssim", sources="before")
    first, second, bad = reward(texts, image=images, before=sources)
    assert first == second == scorer.score_table(images[:1], texts[:1], sources=[images[1]])["score"][0].as_py()
    assert bad is None and reward(texts[:1], image=images[:1], before=[None]) == [None]
    with pytest.raises(ConfigError, match="no column is called 'before'"):
        reward(texts, image=images)
