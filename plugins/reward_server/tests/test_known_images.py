"""The images that jobs.check_rewards draws match their prompts."""

from plumbline.jobs.scorer import open_scorer
from plumbline.plugins.reward_server.known_images import draw_image, select_prompts


def test_signs_by_which_a_reward_of_words_is_checked_are_read() -> None:
    """Each sign shows the word in its own prompt."""
    prompts = select_prompts(["words"])
    scores = open_scorer("metric=[text]", "models=released").score_table([*map(draw_image, prompts)], prompts)["score"]
    assert scores.to_pylist() == [1.0] * len(prompts)
