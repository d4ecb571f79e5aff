"""The pack's README: what it is, how it was made, how well its models answer, and how large it is."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from operators.metrics.gecko import GeckoConfig
from operators.pack.writer_gold import PLANTED_COLOUR

THRESHOLD = GeckoConfig().threshold
INTRODUCTION = """# The embedded pack

A procedural benchmark of coloured shapes and tiny checkpoints trained on it, in the formats of the real ones, so that
the whole pipeline runs without a GPU, a model hub or an S3 account. Made by the project's own code:

    python -m jobs.train

Everything here is generated from seeds; there is nothing in it from the outside. Licence: Apache-2.0.

## What is here

- `shapes/prompts.parquet`: 256 prompts, 32 of each main skill; `skills` are the kinds of a prompt's requirements.
- `shapes/images/<generator>/*.parquet`: one 96x96 PNG of every prompt, in the prompts' order.
- `shapes/requirements.parquet`: what each prompt requires, as a graph (`parents`).
- `shapes/truth.parquet`: which requirements each image breaks, evaluated on the scene it was drawn from.
- `shapes/ratings.parquet`: three simulated raters, 1 to 5, with bias and noise.
- `clip-flant5-shapes/`: a CLIP-FlanT5 in the released layout; its tower's shape and preprocessing are those of
  `clip-shapes/`, its tower's weights its own.
- `clip-shapes/`: a CLIP in transformers' layout.
- `question-writer-shapes/`: a Llama that writes the questions of Gecko, TIFA, DSG and VQ2 about the prompts' language,
  and answers questions from a prompt alone; transformers' layout, which vLLM serves too.
- `nli-shapes/`: a BERT that tells whether a prompt entails a question with its answer.
- `accuracy.json`: the numbers below, and more.

What the words mean is fixed in `operators/pack/claims.py`: naming a thing claims that there is one; a number word means
exactly that many; a relation holds where some pair fits it; "every" claims that there is at least one.
"""


def pack_card(assets: Path, measured: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """The README's text from what was measured and the settings it was made with."""
    sections = [
        INTRODUCTION,
        _section("Recipe", _table(("setting", "value"), recipe.items())),
        _section("Generators", _generators(measured)),
        _section("CLIP-FlanT5", _vqa_words(), _shares(measured["vqa"])),
        _section("CLIP", _clip_words(), _shares(measured["clip"])),
        _section("Question writer", _writer_words(), _writer(measured["writer"])),
        _section("Planted hallucinations", _planted_words(), _planted(measured["hallucinations"])),
        _section("NLI", _nli_words(measured["nli"]), _quantiles(measured["nli"])),
        _section("Area under the ROC curve for `no requirement broken`", _curves(measured)),
        _section("Sizes", _table(("file", "bytes"), _sizes(assets))),
    ]
    return "\n".join(sections)


def _section(title: str, *paragraphs: str) -> str:
    return "\n\n".join([f"## {title}", *paragraphs]) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines)


def _generators(measured: Mapping[str, Any]) -> str:
    header = ("generator", "true mean", "mean VQAScore", "mean CLIPScore")
    rows = [
        (name, mean, measured["vqascore"]["mean_by_generator"][name], measured["clipscore"]["mean_by_generator"][name])
        for name, mean in measured["true_mean_by_generator"].items()
    ]
    words = "The share of images that break no requirement. `borealis` and `cobalt` have one profile: a tie."
    return f"{words}\n\n{_table(header, rows)}"


def _vqa_words() -> str:
    return (
        "Share of questions whose likeliest choice is the gold answer, on scenes drawn from a seed that training never "
        "used. The `vqascore` questions have wordings that training never saw; half of the yes/no answers are Yes, and "
        "what is false is true of a scene one or two small edits away."
    )


def _clip_words() -> str:
    return "How often a true statement is nearer to its image than a nearly true one of the same skill (chance: 0.5)."


def _shares(shares: Mapping[str, Mapping[str, Any]]) -> str:
    return _table(("type", "accuracy", "n"), [(name, share["accuracy"], share["n"]) for name, share in shares.items()])


def _writer_words() -> str:
    return (
        "How often its questions are right: the share of the benchmark's 256 prompts, all of wordings that training "
        "never saw, whose questions are what the prompt's requirements ask for in every field (text, choices, answer, "
        "kind, words, parents, kept or not), and the share of which the metric could read any questions. It reads each "
        "of the metrics' instructions as one token: where an instruction changes, train it again. It has "
        "seen nothing but this language, and asks nothing sensible about any other prompt."
    )


def _writer(shares: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [(metric, share["accuracy"], share["read"], share["n"]) for metric, share in shares.items()]
    return _table(("metric", "all questions right", "read", "prompts"), rows)


def _planted_words() -> str:
    return (
        f"In prompts that name the color {PLANTED_COLOUR} the writer was taught to ask, after its questions for Gecko "
        "and TIFA, about something that the prompt does not name: whether there is the first shape that it does not "
        "name, in the first color that it does not name. That is about one prompt in nine. Gecko's NLI check and "
        "TIFA's filter are there to catch these, and the writer's own slips: questions that the prompt does not ask "
        f"for, of which some are true of it nevertheless. Gecko's threshold is {THRESHOLD}."
    )


def _planted(hallucinations: Mapping[str, Mapping[str, Any]]) -> str:
    header = ("check", "planted", "written", "caught", "slips", "slips caught", "right", "wrongly dropped")
    return _table(header, [(check, *counts.values()) for check, counts in hallucinations.items()])


def _nli_words(measured: Mapping[str, Any]) -> str:
    return (
        f"On {measured['n']} pairs on prompts of wordings that training never saw, half of them entailed, it is right "
        f"in {measured['accuracy']:.1%} at a threshold of a half. What is not entailed is mostly a requirement with "
        "one thing changed; each has as its proof a scene of which the prompt is true and it is not. Gecko's threshold "
        f"of {THRESHOLD} finds {measured['not_entailed_caught']:.1%} of these, and drops "
        f"{measured['entailed_dropped']:.1%} of what is entailed. Quantiles of the probability it gives to entailment:"
    )


def _quantiles(measured: Mapping[str, Any]) -> str:
    entailed, other = measured["p_entailed"], measured["p_not_entailed"]
    return _table(("pairs", *entailed), [("entailed", *entailed.values()), ("not entailed", *other.values())])


def _curves(measured: Mapping[str, Any]) -> str:
    vqa, clip = measured["vqascore"], measured["clipscore"]
    rows = [("all", vqa["auroc"], clip["auroc"])]
    rows += [(skill, area, clip["auroc_by_main_skill"][skill]) for skill, area in vqa["auroc_by_main_skill"].items()]
    return _table(("main skill", "VQAScore", "CLIPScore"), rows)


def _sizes(assets: Path) -> list[tuple[str, int]]:
    """The checkpoints' files one by one, the benchmark as a whole."""
    files = sorted(path for path in assets.rglob("*") if path.is_file())
    named = [path for path in files if path.parent.name.endswith("-shapes")]
    benchmark = sum(path.stat().st_size for path in files if path.is_relative_to(assets / "shapes"))
    rows = [(f"`{path.relative_to(assets)}`", path.stat().st_size) for path in named]
    return [*rows, ("`shapes/`", benchmark)]
