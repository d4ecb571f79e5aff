"""Measures the accuracy of the embedded models on held-out data."""

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from plumbline.assets.making.claims import NUMBER_WORDS, RELATIONS, SKILLS
from plumbline.assets.making.lessons import QUESTION_METRICS, GoldWriter, find_planted_claim
from plumbline.assets.making.networks import BATCH_SIZE
from plumbline.assets.making.pair_training import JUDGE_CONFIG, Contest, find_right_choice, sample_hard_contest
from plumbline.assets.making.prompts import Prompt, is_held_out
from plumbline.assets.making.questions import (
    OPEN_QUESTIONS,
    PLACE_NAMES,
    GoldQuestion,
    ask_open_question,
    ask_plain_yes_no_question,
    ask_relation_both_ways,
    ask_vqascore,
    sample_claim_prompt,
)
from plumbline.assets.making.scenes import COLOURS, PARTS, SHAPES, SIZES, Scene, draw_scene, sample_scene, to_png
from plumbline.assets.making.tables import make_prompts_table
from plumbline.assets.making.text_training import TextPair, sample_pair
from plumbline.operators.metrics.judges.pairwise import Choice, PairAnswer
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids
from plumbline.operators.models.calls import (
    EntailmentModel,
    GenerateModel,
    LikelihoodModel,
    Pair,
    Question,
    SimilarityModel,
)
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.stages.entailment import write_hypothesis
from plumbline.operators.stages.questions import write_questions

YES_NO_CHOICES = ("Yes", "No")
CHOICES_BY_TOPIC: Mapping[str, tuple[str, ...]] = {
    "color": COLOURS,
    "size": SIZES,
    "shape": SHAPES,
    "part": (*(f"a {part}" for part in PARTS), "nothing"),
    "place": tuple(name for row in PLACE_NAMES for name in row),
    "at place": tuple(f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES),
    "relation": RELATIONS,
}


class GoldTrial(NamedTuple):
    """A question whose right answer is known, with its image."""

    png: bytes
    gold: GoldQuestion

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers to choose from, as strings."""
        if self.gold.form != "open":
            return YES_NO_CHOICES
        if self.gold.topic == "count":
            return (
                tuple(str(number) for number in range(len(NUMBER_WORDS)))
                if self.gold.answer.isdigit()
                else NUMBER_WORDS
            )
        return CHOICES_BY_TOPIC[self.gold.topic]


def sample_held_out_questions(seed: int, count: int) -> list[GoldTrial]:
    """Sample `count` questions of every form and topic, on scenes that were never drawn for training.

    Half of the yes/no questions have the answer Yes.
    """
    rng = Random(f"held out/{seed}")
    trials: list[GoldTrial] = []
    for skill in SKILLS:
        for index in range(count):
            truth = index % 2 == 0
            for ask in (partial(ask_vqascore, held_out=True), ask_plain_yes_no_question):
                trials.append(_make_gold_trial(rng, partial(ask, skill=skill, truth=truth)))
    for topic in OPEN_QUESTIONS:
        trials += [_make_gold_trial(rng, partial(ask_open_question, topic=topic)) for _ in range(count)]
    return trials


def _make_gold_trial(rng: Random, ask: Callable[[Random, Scene], GoldQuestion | None]) -> GoldTrial:
    while True:
        scene = sample_scene(rng)
        gold = ask(rng, scene)
        if gold is not None:
            return GoldTrial(_draw_png(rng, scene), gold)


def _draw_png(rng: Random, scene: Scene) -> bytes:
    return to_png(draw_scene(scene, rng.getrandbits(32)))


def _encode_images(model: LikelihoodModel | SimilarityModel, pngs: Sequence[bytes]) -> list[Any]:
    pixels = [model.preprocess(Image.open(io.BytesIO(png)).convert("RGB")) for png in pngs]
    batches = [pixels[first : first + BATCH_SIZE] for first in range(0, len(pixels), BATCH_SIZE)]
    return [encoded for batch in batches for encoded in model.encode(batch)]


def measure_vqa(model: LikelihoodModel, trials: Sequence[GoldTrial]) -> dict[str, dict[str, Any]]:
    """Return the number of questions and the accuracy of the likeliest choice, for each `form/topic` of questions."""
    features = _encode_images(model, [trial.png for trial in trials])
    questions = [Question(index, trial.gold.text, trial.choices) for index, trial in enumerate(trials)]
    outcomes: dict[str, list[bool]] = {}
    for trial, logprobs in zip(trials, model.likelihood(features, questions), strict=True):
        right = trial.choices[_find_likeliest_choice(logprobs)] == trial.gold.answer
        outcomes.setdefault(f"{trial.gold.form}/{trial.gold.topic}", []).append(right)
    return {name: _summarize_outcomes(group) for name, group in outcomes.items()}


def _find_likeliest_choice(logprobs: Any) -> int:
    return int(np.argmax([sum(tokens) for tokens in logprobs]))


def measure_order(model: LikelihoodModel, seed: int, count: int) -> dict[str, Any]:
    """Ask about the same two things in both orders; return how often the answers differ, and how often both are right.

    To a model that ignores word order, the two questions are the same.
    """
    rng = Random(f"held out order/{seed}")
    pngs: list[bytes] = []
    questions: list[Question] = []
    while len(pngs) < count:
        scene = sample_scene(rng)
        texts = ask_relation_both_ways(rng, scene)
        if texts is not None:
            questions += [Question(len(pngs), text, YES_NO_CHOICES) for text in texts]
            pngs.append(_draw_png(rng, scene))
    yes = [
        _find_likeliest_choice(logprobs) == 0 for logprobs in model.likelihood(_encode_images(model, pngs), questions)
    ]
    pairs = list(zip(yes[::2], yes[1::2], strict=True))
    return {
        "told_apart": average([true != swapped for true, swapped in pairs]),
        "right": average([true and not swapped for true, swapped in pairs]),
        "n": count,
    }


def measure_clip(model: SimilarityModel, seed: int, count: int) -> dict[str, dict[str, Any]]:
    """Return the number of trials and the accuracy, by skill.

    In each trial, the model must find a true statement more similar to an image than a nearly true statement.

    The wording of the statements is held out from training.
    """
    rng = Random(f"held out clip/{seed}")
    return {
        skill: _summarize_outcomes(_judge_trials(model, [_make_choice_trial(rng, skill) for _ in range(count)]))
        for skill in SKILLS
    }


def measure_judge(model: ClipFlanT5Likelihood, seed: int, pairs_per_skill: int) -> dict[str, Any]:
    """Return how often the judge is right about `pairs_per_skill` pairs of images for each skill, in both orders.

    The result contains the fraction of correct choices by skill and, as a baseline, the frequency of the most common
    correct choice. It also contains how often the judge prefers the better image, if there is one, and how often it
    makes the same choice in both orders.
    """
    rng = Random(f"held out contests/{seed}")
    contests = [sample_hard_contest(rng, skill, held_out=True) for skill in SKILLS for _ in range(pairs_per_skill)]
    right: dict[str, list[bool]] = {skill: [] for skill in SKILLS}
    truths, preferred, same = [], [], []
    for contest, answers in zip(contests, ask_judge(model, rng, contests), strict=True):
        first, second = contest.scenes[:2]
        truth = find_right_choice(contest.prompt, first, second)
        right[contest.prompt.skill] += [answers[0].choice == truth, answers[1].choice == SWAPPED_CHOICES[truth]]
        truths += [truth, SWAPPED_CHOICES[truth]]
        same.append(answers[1].choice == SWAPPED_CHOICES[answers[0].choice])
        if truth in ("first", "second"):
            preferred.append((answers[0].p_first > answers[1].p_first) == (truth == "first"))
    return {
        "by_skill": {skill: _summarize_outcomes(outcomes) for skill, outcomes in right.items()},
        "commonest": round(max(Counter(truths).values()) / len(truths), 4),
        "better_image": _summarize_outcomes(preferred),
        "same_in_both_orders": _summarize_outcomes(same),
    }


SWAPPED_CHOICES: Mapping[Choice, Choice] = {"first": "second", "second": "first", "tie": "tie", "neither": "neither"}
"""For each choice, the choice that means the same if the two images are shown in the other order."""


def ask_judge(
    model: ClipFlanT5Likelihood, rng: Random, contests: Sequence[Contest]
) -> list[tuple[PairAnswer, PairAnswer]]:
    """Return the judge's answers about the first two scenes of each contest, in both orders."""
    features: list[Any] = []
    questions = []
    for contest in contests:
        images = [Image.fromarray(draw_scene(scene, rng.getrandbits(32))) for scene in contest.scenes[:2]]
        for shown in (images, images[::-1]):
            questions.append(Question(len(features), JUDGE_CONFIG.question(contest.prompt.text), JUDGE_CONFIG.letters))
            features += model.encode([model.preprocess_several(shown)])
    answers = [JUDGE_CONFIG.combine_logprobs(logprobs) for logprobs in model.likelihood(features, questions)]
    return list(zip(answers[::2], answers[1::2], strict=True))


class ChoiceTrial(NamedTuple):
    """An image with two statements: one true, one nearly true."""

    png: bytes
    statements: tuple[str, str]
    """The true statement, followed by the false one."""


def _make_choice_trial(rng: Random, skill: str) -> ChoiceTrial:
    while True:
        scene = sample_scene(rng)
        true, false = (sample_claim_prompt(rng, scene, skill, truth=truth) for truth in (True, False))
        if true and false and is_held_out(true.text) and is_held_out(false.text):
            return ChoiceTrial(_draw_png(rng, scene), (true.text, false.text))


def _judge_trials(model: SimilarityModel, trials: Sequence[ChoiceTrial]) -> list[bool]:
    features = _encode_images(model, [trial.png for trial in trials])
    true, false = (
        model.compare(features, [Pair(image, trial.statements[place]) for image, trial in enumerate(trials)])
        for place in (0, 1)
    )
    return [nearer.similarity > other.similarity for nearer, other in zip(true, false, strict=True)]


def _summarize_outcomes(outcomes: Sequence[bool]) -> dict[str, Any]:
    return {"accuracy": average(outcomes), "n": len(outcomes)}


def average(values: Any) -> float:
    """Return the mean of numbers, or the fraction of booleans that are true, rounded to four digits."""
    return round(float(np.mean(values)), 4)


GECKO_THRESHOLD = GeckoConfig().threshold
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


class QuestionSheet(NamedTuple):
    """The questions that a language model wrote about a prompt, and the questions that it should have written."""

    prompt: Prompt
    written: list[WrittenQuestion]
    """Questions that the writer wrote; empty if a reply could not be parsed."""
    gold: list[WrittenQuestion]

    def classify(self, question: WrittenQuestion) -> Literal["planted", "right", "slip"]:
        """Return `planted` for a deliberate hallucination, `right` for a question in `gold`, and `slip` otherwise."""
        imagined = find_planted_claim(self.prompt.text)
        if imagined is not None and question.text == imagined.question:
            return "planted"
        asked = {(gold.text, gold.answer) for gold in self.gold}
        return "right" if (question.text, question.answer) in asked else "slip"


def write_sheets(model: GenerateModel, metric: str, prompts: Sequence[Prompt]) -> list[QuestionSheet]:
    """Have the model write the metric's questions about every prompt by running the questions stage."""
    records = write_questions(make_prompts_table(prompts), QUESTION_METRICS[metric], model).to_pylist()
    written = {
        prompt_id: [_read_question(record) for record in group if not record["error"]]
        for prompt_id, group in groupby(records, key=itemgetter("prompt_id"))
    }
    return [
        QuestionSheet(prompt, written[prompt.prompt_id], assign_ids(GoldWriter(prompt).write(metric).questions))
        for prompt in prompts
    ]


def _read_question(record: Mapping[str, Any]) -> WrittenQuestion:
    fields = {name: record[name] for name in WrittenQuestion._fields}
    return WrittenQuestion(**fields | {name: tuple(fields[name] or ()) for name in ("choices", "parents")})


def measure_sheets(sheets: Sequence[QuestionSheet]) -> dict[str, Any]:
    """Return the fraction of prompts with exactly the gold questions, the fraction with any, and the prompt count."""
    return {
        "accuracy": average([sheet.written == sheet.gold for sheet in sheets]),
        "read": average([bool(sheet.written) for sheet in sheets]),
        "n": len(sheets),
    }


def count_filtered_questions(sheets: Sequence[QuestionSheet]) -> dict[str, Any]:
    """Count the planted, mistaken and correct questions, and how many of each kind are dropped by TIFA's filter.

    The filter drops a question if the model that wrote it does not give the expected answer.
    """
    return _count_dropped_questions(sheets, [question.keep is False for sheet in sheets for question in sheet.written])


def count_dropped_questions(model: EntailmentModel, sheets: Sequence[QuestionSheet]) -> dict[str, Any]:
    """Count the planted, mistaken and correct questions, and how many of each kind are dropped by the NLI model.

    A question is dropped if its probability is below Gecko's threshold.
    """
    pairs = [
        (sheet.prompt.text, write_hypothesis(question.text, question.answer or ""))
        for sheet in sheets
        for question in sheet.written
    ]
    return _count_dropped_questions(sheets, [probability < GECKO_THRESHOLD for probability in model.entailment(pairs)])


def _count_dropped_questions(sheets: Sequence[QuestionSheet], dropped: Sequence[bool]) -> dict[str, Any]:
    verdicts: dict[str, list[bool]] = {"planted": [], "slip": [], "right": []}
    origins = [sheet.classify(question) for sheet in sheets for question in sheet.written]
    for origin, drop in zip(origins, dropped, strict=True):
        verdicts[origin].append(drop)
    return {
        "planted": sum(find_planted_claim(sheet.prompt.text) is not None for sheet in sheets),
        "written": len(verdicts["planted"]),
        "caught": sum(verdicts["planted"]),
        "slips": len(verdicts["slip"]),
        "slips_caught": sum(verdicts["slip"]),
        "right": len(verdicts["right"]),
        "wrongly_dropped": sum(verdicts["right"]),
    }


def sample_held_out_pairs(seed: int, count: int) -> list[TextPair]:
    """Sample pairs about prompts with held-out wording; half of the pairs are entailed."""
    rng = Random(f"held out pairs/{seed}")
    return [sample_pair(rng, held_out=True) for _ in range(count)]


def measure_pairs(model: EntailmentModel, pairs: Sequence[TextPair]) -> dict[str, Any]:
    """Return how well the model separates entailed pairs from other pairs.

    The result contains the number of pairs and the accuracy at a threshold of 0.5 and, for entailed and other pairs
    separately, the fraction below Gecko's threshold and quantiles of the probabilities.
    """
    probabilities = np.array(model.entailment([(pair.premise, pair.hypothesis) for pair in pairs]))
    truth = np.array([pair.entailed for pair in pairs], dtype=bool)
    return {
        "accuracy": average((probabilities >= 0.5) == truth),
        "not_entailed_caught": average(probabilities[~truth] < GECKO_THRESHOLD),
        "entailed_dropped": average(probabilities[truth] < GECKO_THRESHOLD),
        "p_entailed": _compute_quantiles(probabilities[truth]),
        "p_not_entailed": _compute_quantiles(probabilities[~truth]),
        "n": len(pairs),
    }


def _compute_quantiles(values: Any) -> dict[str, float]:
    return {str(share): float(f"{np.quantile(values, share):.3g}") for share in QUANTILES}
