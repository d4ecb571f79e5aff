"""How well the saved writer and NLI model do, measured through the production code on wordings held out."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from operators import rows
from operators.metrics.gecko import GeckoConfig
from operators.metrics.writing import WrittenQuestion, identified
from operators.models.calls import EntailmentModel, GenerateModel
from operators.models.checkpoints import ModelConfig, resolve_model
from operators.models.loading import load
from operators.pack.checkpoints import NLI_FOLDER, WRITER_FOLDER
from operators.pack.lessons import METRICS, GoldWriter
from operators.pack.nli_training import Pair, sample_pair
from operators.pack.prompts import Prompt
from operators.pack.tables import prompt_row
from operators.pack.writer_gold import planted
from operators.stages.entailment import hypothesis
from operators.stages.questions import write

REQUEST_BATCH = 64
THRESHOLD = GeckoConfig().threshold
EVEN = 0.5
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def load_writer(assets: Path) -> GenerateModel:
    """The saved question writer as production loads it."""
    config = ModelConfig(family="causal_lm", checkpoint=str(assets / WRITER_FOLDER), pair_batch=REQUEST_BATCH)
    return load(resolve_model(config, on_gpu=False), "generate")


def load_entailment(assets: Path) -> EntailmentModel:
    """The saved NLI model as production loads it."""
    config = ModelConfig(family="nli", checkpoint=str(assets / NLI_FOLDER), pair_batch=REQUEST_BATCH)
    return load(resolve_model(config, on_gpu=False), "entailment")


class Sheet(NamedTuple):
    """One prompt's questions as the writer wrote them and as it should have."""

    prompt: Prompt
    written: Sequence[WrittenQuestion]
    """None of them where a reply could not be read."""
    gold: Sequence[WrittenQuestion]

    @property
    def right(self) -> bool:
        return list(self.written) == list(self.gold)

    def origin(self, one: WrittenQuestion) -> Literal["planted", "right", "slip"]:
        """Whether a question is the one that was planted, one that the prompt asks for, or the writer's own mistake."""
        imagined = planted(self.prompt.text)
        if imagined is not None and one.text == imagined.question:
            return "planted"
        return "right" if (one.text, one.answer) in {(other.text, other.answer) for other in self.gold} else "slip"


def write_sheets(model: GenerateModel, metric: str, prompts: Sequence[Prompt]) -> list[Sheet]:
    """The metric's questions about every prompt, written by the model through the questions stage."""
    table = pa.Table.from_pylist([dict(prompt_row(prompt)) for prompt in prompts], schema=rows.PROMPTS)
    records = write(table, METRICS[metric], model).to_pylist()
    written = {prompt_id: list(group) for prompt_id, group in groupby(records, key=itemgetter("prompt_id"))}
    return [
        Sheet(prompt, _questions(written[prompt.prompt_id]), identified(GoldWriter(prompt).written(metric).questions))
        for prompt in prompts
    ]


def _questions(records: Sequence[Mapping[str, Any]]) -> list[WrittenQuestion]:
    fields = [{name: record[name] for name in WrittenQuestion._fields} for record in records if not record["error"]]
    return [
        WrittenQuestion(**one | {"choices": tuple(one["choices"]), "parents": tuple(one["parents"] or ())})
        for one in fields
    ]


def sheet_accuracy(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """The share of prompts whose questions are all right in every field, and of those that could be read at all."""
    return {
        "accuracy": _share([sheet.right for sheet in sheets]),
        "read": _share([bool(sheet.written) for sheet in sheets]),
        "n": len(sheets),
    }


def filtered_questions(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """What TIFA's filter, which asks the writer itself, does with planted questions, with slips and with the right."""
    kept = [[one.keep is not False for one in sheet.written] for sheet in sheets]
    return _verdicts(sheets, [not keep for row in kept for keep in row])


def entailed_questions(model: EntailmentModel, sheets: Sequence[Sheet], threshold: float) -> dict[str, Any]:
    """What the NLI model does with planted questions, with slips and with the right ones, below the threshold."""
    asked = [(sheet.prompt.text, one) for sheet in sheets for one in sheet.written]
    given = model.entailment([(text, hypothesis(one.text, one.answer or "")) for text, one in asked])
    return _verdicts(sheets, [probability < threshold for probability in given])


def _verdicts(sheets: Sequence[Sheet], dropped: Sequence[bool]) -> dict[str, Any]:
    """How many planted and otherwise wrong questions there are, how many of each a check drops, and of the right."""
    found: dict[str, list[bool]] = {"planted": [], "slip": [], "right": []}
    origins = [sheet.origin(one) for sheet in sheets for one in sheet.written]
    for origin, drop in zip(origins, dropped, strict=True):
        found[origin].append(drop)
    return {
        "planted": sum(planted(sheet.prompt.text) is not None for sheet in sheets),
        "written": len(found["planted"]),
        "caught": sum(found["planted"]),
        "slips": len(found["slip"]),
        "slips_caught": sum(found["slip"]),
        "right": len(found["right"]),
        "wrongly_dropped": sum(found["right"]),
    }


def held_out_pairs(seed: int, count: int) -> list[Pair]:
    """Pairs on prompts whose wording no training saw; half of them are entailed."""
    rng = Random(f"held out pairs/{seed}")
    return [sample_pair(rng, held_out=True) for _ in range(count)]


def pair_accuracy(model: EntailmentModel, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Accuracy at a half, what passes and fails Gecko's threshold, and quantiles of the probabilities."""
    given = np.array(model.entailment([(pair.premise, pair.hypothesis) for pair in pairs]))
    truth = np.array([pair.entailed for pair in pairs], dtype=bool)
    return {
        "accuracy": _share((given >= EVEN) == truth),
        "not_entailed_caught": _share(given[~truth] < THRESHOLD),
        "not_entailed_caught_at_half": _share(given[~truth] < EVEN),
        "entailed_dropped": _share(given[truth] < THRESHOLD),
        "entailed_dropped_at_half": _share(given[truth] < EVEN),
        "p_entailed": _quantiles(given[truth]),
        "p_not_entailed": _quantiles(given[~truth]),
        "n": len(pairs),
    }


def _quantiles(values: Any) -> dict[str, float]:
    return {str(share): float(f"{np.quantile(values, share):.3g}") for share in QUANTILES}


def _share(outcomes: Any) -> float:
    return round(float(np.mean(outcomes)), 4)
