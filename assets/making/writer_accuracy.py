"""How well the saved writer and NLI model do, measured through the production code on wordings held out."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np

from plumbline.assets.making.accuracy import rounded_mean
from plumbline.assets.making.lessons import METRICS, GoldWriter
from plumbline.assets.making.nli_training import Pair, sample_pair
from plumbline.assets.making.prompts import Prompt
from plumbline.assets.making.tables import prompts_table
from plumbline.assets.making.writer_gold import planted
from plumbline.operators.metrics.gecko import GeckoConfig
from plumbline.operators.metrics.writing import WrittenQuestion, identified
from plumbline.operators.models.calls import EntailmentModel, GenerateModel
from plumbline.operators.stages.entailment import hypothesis
from plumbline.operators.stages.questions import write

THRESHOLD = GeckoConfig().threshold
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


class Sheet(NamedTuple):
    """One prompt's questions as the writer wrote them and as it should have."""

    prompt: Prompt
    written: list[WrittenQuestion]
    """None of them where a reply could not be read."""
    gold: list[WrittenQuestion]

    def origin(self, question: WrittenQuestion) -> Literal["planted", "right", "slip"]:
        """Whether a question is the one that was planted, one that the prompt asks for, or the writer's own mistake."""
        imagined = planted(self.prompt.text)
        if imagined is not None and question.text == imagined.question:
            return "planted"
        asked = {(gold.text, gold.answer) for gold in self.gold}
        return "right" if (question.text, question.answer) in asked else "slip"


def write_sheets(model: GenerateModel, metric: str, prompts: Sequence[Prompt]) -> list[Sheet]:
    """The metric's questions about every prompt, written by the model through the questions stage."""
    records = write(prompts_table(prompts), METRICS[metric], model).to_pylist()
    written = {
        prompt_id: [_question(record) for record in group if not record["error"]]
        for prompt_id, group in groupby(records, key=itemgetter("prompt_id"))
    }
    return [
        Sheet(prompt, written[prompt.prompt_id], identified(GoldWriter(prompt).written(metric).questions))
        for prompt in prompts
    ]


def _question(record: Mapping[str, Any]) -> WrittenQuestion:
    fields = {name: record[name] for name in WrittenQuestion._fields}
    return WrittenQuestion(**fields | {name: tuple(fields[name] or ()) for name in ("choices", "parents")})


def sheet_accuracy(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """The share of prompts whose questions are all right in every field, and of those that could be read at all."""
    return {
        "accuracy": rounded_mean([sheet.written == sheet.gold for sheet in sheets]),
        "read": rounded_mean([bool(sheet.written) for sheet in sheets]),
        "n": len(sheets),
    }


def filtered_questions(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """What TIFA's filter, which asks the writer itself, does with planted questions, with slips and with the right."""
    return _verdicts(sheets, [question.keep is False for sheet in sheets for question in sheet.written])


def entailed_questions(model: EntailmentModel, sheets: Sequence[Sheet]) -> dict[str, Any]:
    """What the NLI model does at Gecko's threshold with planted questions, with slips and with the right ones."""
    pairs = [
        (sheet.prompt.text, hypothesis(question.text, question.answer or ""))
        for sheet in sheets
        for question in sheet.written
    ]
    return _verdicts(sheets, [probability < THRESHOLD for probability in model.entailment(pairs)])


def _verdicts(sheets: Sequence[Sheet], dropped: Sequence[bool]) -> dict[str, Any]:
    """How many planted and otherwise wrong questions there are, how many of each a check drops, and of the right."""
    verdicts: dict[str, list[bool]] = {"planted": [], "slip": [], "right": []}
    origins = [sheet.origin(question) for sheet in sheets for question in sheet.written]
    for origin, drop in zip(origins, dropped, strict=True):
        verdicts[origin].append(drop)
    return {
        "planted": sum(planted(sheet.prompt.text) is not None for sheet in sheets),
        "written": len(verdicts["planted"]),
        "caught": sum(verdicts["planted"]),
        "slips": len(verdicts["slip"]),
        "slips_caught": sum(verdicts["slip"]),
        "right": len(verdicts["right"]),
        "wrongly_dropped": sum(verdicts["right"]),
    }


def held_out_pairs(seed: int, count: int) -> list[Pair]:
    """Pairs on prompts whose wording no training saw; half of them are entailed."""
    rng = Random(f"held out pairs/{seed}")
    return [sample_pair(rng, held_out=True) for _ in range(count)]


def pair_accuracy(model: EntailmentModel, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accuracy at a half, what passes and fails Gecko's threshold, and quantiles of the probabilities."""
    probabilities = np.array(model.entailment([(pair.premise, pair.hypothesis) for pair in pairs]))
    truth = np.array([pair.entailed for pair in pairs], dtype=bool)
    return {
        "accuracy": rounded_mean((probabilities >= 0.5) == truth),
        "not_entailed_caught": rounded_mean(probabilities[~truth] < THRESHOLD),
        "entailed_dropped": rounded_mean(probabilities[truth] < THRESHOLD),
        "p_entailed": _quantiles(probabilities[truth]),
        "p_not_entailed": _quantiles(probabilities[~truth]),
        "n": len(pairs),
    }


def _quantiles(values: Any) -> dict[str, float]:
    return {str(share): float(f"{np.quantile(values, share):.3g}") for share in QUANTILES}
