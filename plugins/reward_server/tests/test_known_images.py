"""The images that jobs.check_rewards draws match their prompts."""

from plumbline.jobs.scorer import open_scorer
from plumbline.plugins.reward_server.known_images import draw_image, select_prompts


def test_the_text_metric_can_read_every_test_sign() -> None:
    """Each sign shows the word in its own prompt."""
    prompts = select_prompts(["words"])
    scores = open_scorer("metric=[text]", "models=released").score_table([*map(draw_image, prompts)], prompts)["score"]
    assert scores.to_pylist() == [1.0] * len(prompts)
