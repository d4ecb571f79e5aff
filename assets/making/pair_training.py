"""Trains the tiny pairwise judge, which starts as a copy of the tiny CLIP-FlanT5.

The judge is asked the question of the `pairwise` metric. The encoder reads each image with the question, as it does in
CLIP-FlanT5, and only the decoder sees both images. The encoder can therefore keep what it knows.
"""

from collections.abc import Callable, Mapping
from itertools import permutations
from random import Random
from typing import NamedTuple

import torch
from tokenizers import AddedToken
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from plumbline.assets.making.networks import HIDDEN_SIZE, draw_pixels
from plumbline.assets.making.prompts import Prompt, is_held_out, sample_prompt
from plumbline.assets.making.questions import make_extended_palette
from plumbline.assets.making.scenes import Palette, Scene, edit_scene, sample_scene
from plumbline.assets.making.tables import (
    MAX_OBJECTS_IN_IMAGE,
    add_dependents,
    find_violating_scene,
    make_prompt_palette,
)
from plumbline.assets.making.vqa_training import QUESTION_MIXTURES
from plumbline.operators.metrics.judges.pairwise import Choice, PairwiseConfig
from plumbline.operators.models.families.clip_flant5 import FUSION, FUSION_FIELD
from plumbline.operators.models.networks.clip_flant5 import (
    MAX_JOINT_IMAGES,
    NUMBERED_IMAGE_TEMPLATE,
    TEXT_AFTER_IMAGE,
    TEXT_BEFORE_IMAGE,
    ClipFlanT5,
)
from plumbline.operators.models.networks.encoder_decoder import EncodedQuestions, join_encodings
from plumbline.plugins.training.loop import TrainingStage

PROMPT_MARK = "PROMPT"
JUDGE_CONFIG = PairwiseConfig(answers="likelihood")
LETTERS: Mapping[Choice, str] = dict(zip(JUDGE_CONFIG.choices, JUDGE_CONFIG.letters, strict=True))
VQASCORE_PHRASES = ("Does this figure show", "Please answer yes or no.")
DECODER_PARTS = ("language_model.decoder.block", "language_model.decoder.final_layer_norm", "language_model.lm_head")
"""Parts that learn first. Until they read the answers, training the encoder would only destroy what it knows."""
SKILL_WEIGHTS = QUESTION_MIXTURES["question"].skills
SCENES_PER_PROMPT = 3
RIGHT_SHARE = 0.5
"""Probability that a scene does everything that its prompt says."""
WALK_EDITS_RANGE = (2, 12)
"""Minimum and maximum number of edits that turn the scene that a prompt was made for into another right scene."""
MAX_BREAKING_EDITS = 60
STOP_SHARE = 0.5
"""Probability that a scene that breaks a requirement is not edited further."""
HARD_SEARCH_STEPS = 200
OWN_SKILL_SHARE = 0.7
"""Probability that a single broken requirement is one of the prompt's main skill."""


def extend_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    """Add the answer letters, and the parts of the question before and after the prompt, as single tokens."""
    phrases = [text.strip() for text in JUDGE_CONFIG.question(PROMPT_MARK).split(PROMPT_MARK)]
    letters = [AddedToken(letter, normalized=False, single_word=True) for letter in LETTERS.values()]
    tokenizer.add_tokens([*(AddedToken(phrase, normalized=False) for phrase in phrases), *letters])


def extend_network(model: ClipFlanT5, tokenizer: PreTrainedTokenizerFast) -> None:
    """Add weights for the question's two new tokens, copied from VQAScore's; randomize the letters' output weights."""
    language = model.language_model
    copied = tokenizer.convert_tokens_to_ids(list(VQASCORE_PHRASES))
    letters = tokenizer.convert_tokens_to_ids(list(LETTERS.values()))
    for owner in (language.shared, language.lm_head):
        owner.weight = nn.Parameter(torch.cat([owner.weight, owner.weight[copied]]).detach())
    with torch.no_grad():
        language.lm_head.weight[letters] = torch.randn(len(letters), HIDDEN_SIZE) * HIDDEN_SIZE**-0.5
    rows = len(tokenizer)
    language.shared.num_embeddings = language.lm_head.out_features = language.config.vocab_size = rows
    for stack in (language.encoder, language.decoder):
        stack.set_input_embeddings(language.shared)
    setattr(language.config, FUSION_FIELD, FUSION)


def find_right_choice(prompt: Prompt, first: Scene, second: Scene) -> Choice:
    """Return the right choice: the better scene breaks fewer of the prompt's requirements."""
    broken = [len(prompt.list_broken_requirements(scene)) for scene in (first, second)]
    if broken[0] == broken[1]:
        return "neither" if broken[0] else "tie"
    return "first" if broken[0] < broken[1] else "second"


class Contest(NamedTuple):
    """Several scenes for one prompt, any two of which can be compared."""

    prompt: Prompt
    scenes: tuple[Scene, ...]


SampleContest = Callable[[Random, str], Contest]
"""Function that draws a contest whose prompt has this skill."""


def sample_easy_contest(rng: Random, skill: str) -> Contest:
    """Draw a prompt for the skill, and scenes made by random edits, which meet or break the prompt's requirements."""
    prompt, scene = _sample_prompt(rng, skill, held_out=False)
    palette = make_extended_palette(rng, scene)
    scenes = []
    for _ in range(SCENES_PER_PROMPT):
        right = _edit_without_breaking(rng, prompt, scene, palette)
        scenes.append(right if rng.random() < RIGHT_SHARE else _edit_until_broken(rng, prompt, right, palette))
    return Contest(prompt, tuple(scenes))


def sample_hard_contest(rng: Random, skill: str, *, held_out: bool = False) -> Contest:
    """Draw a prompt and scenes as the embedded benchmark does: most wrong scenes break a single requirement."""
    prompt = _sample_prompt(rng, skill, held_out=held_out)[0]
    palette = make_prompt_palette(prompt)
    own = [node.requirement_id for node in prompt.requirements if node.claim.kind == skill]
    every = [node.requirement_id for node in prompt.requirements]
    scenes = []
    for _ in range(SCENES_PER_PROMPT):
        start = sample_scene(rng, palette, max_entities=MAX_OBJECTS_IN_IMAGE)
        scene = find_violating_scene(prompt, frozenset(), start, rng, steps=HARD_SEARCH_STEPS)
        if rng.random() >= RIGHT_SHARE:
            broken = rng.choice(own if own and rng.random() < OWN_SKILL_SHARE else every)
            wanted = add_dependents(prompt, [broken])
            scene = find_violating_scene(prompt, wanted, scene, rng, steps=HARD_SEARCH_STEPS)
        scenes.append(scene)
    return Contest(prompt, tuple(scenes))


def _sample_prompt(rng: Random, skill: str, *, held_out: bool) -> tuple[Prompt, Scene]:
    """Draw a prompt for the skill, with or without held-out wording, and the scene that it was made for."""
    while True:
        scene = sample_scene(rng)
        prompt = sample_prompt(rng, scene, skill)
        if prompt is not None and is_held_out(prompt.text) == held_out:
            return prompt, scene


def _edit_without_breaking(rng: Random, prompt: Prompt, scene: Scene, palette: Palette) -> Scene:
    """Make random edits to the scene; undo each edit after which the prompt is no longer true."""
    for _ in range(rng.randint(*WALK_EDITS_RANGE)):
        edited = edit_scene(rng, scene, palette)
        if prompt.holds(edited):
            scene = edited
    return scene


def _edit_until_broken(rng: Random, prompt: Prompt, scene: Scene, palette: Palette) -> Scene:
    """Edit the scene until it breaks a requirement of the prompt; sometimes keep editing after that."""
    for _ in range(MAX_BREAKING_EDITS):
        scene = edit_scene(rng, scene, palette)
        if not prompt.holds(scene) and rng.random() < STOP_SHARE:
            break
    return scene


class ContestBatch(NamedTuple):
    """Input of a training step: images for several prompts, and all ordered pairs of images of the same prompt."""

    pixels: torch.Tensor
    """Images (n, 3, side, side)."""
    openings: tuple[torch.Tensor, ...]
    """Token ids of the texts before the first and before the second image."""
    after: torch.Tensor
    """Token ids of each image's question (n, tokens), right-padded."""
    shown: torch.Tensor
    """Indices of the first and the second image of each comparison (comparisons, 2)."""
    labels: torch.Tensor
    """Token ids of the right letters, each with the end token (comparisons, 2)."""


class ContestMaker:
    """Draws fresh contests and turns them into batches."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random, sample: SampleContest) -> None:
        self.tokenizer = tokenizer
        self.rng = rng
        self.sample = sample
        texts = [TEXT_BEFORE_IMAGE + NUMBERED_IMAGE_TEMPLATE.format(number + 1) for number in range(MAX_JOINT_IMAGES)]
        self.openings = tuple(torch.tensor(tokenizer(text).input_ids) for text in texts)

    def make_batch(self, stage: TrainingStage, step: int = 0) -> ContestBatch:
        """Draw fresh contests with the stage's number of images in total; `step` is ignored."""
        skills = self.rng.choices(list(SKILL_WEIGHTS), list(SKILL_WEIGHTS.values()), k=stage.size // SCENES_PER_PROMPT)
        contests = [self.sample(self.rng, skill) for skill in skills]
        scenes: list[Scene] = []
        shown, labels, asked = [], [], []
        for contest in contests:
            start = len(scenes)
            scenes += contest.scenes
            asked += [TEXT_AFTER_IMAGE.format(question=JUDGE_CONFIG.question(contest.prompt.text))] * len(
                contest.scenes
            )
            for first, second in permutations(range(len(contest.scenes)), 2):
                shown.append((start + first, start + second))
                labels.append(LETTERS[find_right_choice(contest.prompt, contest.scenes[first], contest.scenes[second])])
        return ContestBatch(
            pixels=draw_pixels(self.rng, scenes),
            openings=self.openings,
            after=self.tokenizer(asked, padding=True, return_tensors="pt").input_ids,
            shown=torch.tensor(shown),
            labels=self.tokenizer(labels, return_tensors="pt").input_ids,
        )


def compute_contest_loss(model: ClipFlanT5, batch: ContestBatch) -> torch.Tensor:
    """Return the mean cross-entropy over the correct letters and their end tokens.

    Each image is encoded twice with its question: as the first and as the second image.
    """
    parts = []
    with torch.autocast("cpu", dtype=torch.bfloat16):  # takes 60% of float32's time
        features = model.encode_images(batch.pixels)
        for shown, opening in zip(batch.shown.unbind(1), batch.openings, strict=True):
            states, mask = model.encode_questions(features, opening, batch.after)
            parts.append(EncodedQuestions(states[shown], mask[shown]))
        logits = model.decode(join_encodings(parts), batch.labels)
    return cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten())
