"""The pictures that jobs.check_rewards draws."""

from plumbline.jobs.scorer import open_scorer
from plumbline.plugins.reward_server.known_pictures import known_prompts, picture_of


def test_signs_by_which_a_reward_of_words_is_checked_are_read() -> None:
    """Each shows its own prompt's word."""
    prompts = known_prompts(["words"])
    scores = open_scorer("metric=[text]", "models=released").score_table([*map(picture_of, prompts)], prompts)["score"]
    assert scores.to_pylist() == [1.0] * len(prompts)
