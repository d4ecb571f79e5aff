"""How well the saved writer and NLI model do, measured through the production code on wordings held out."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from operators import rows
from operators.metrics.gecko import GeckoConfig, hypothesis
from operators.metrics.writing import WrittenQuestion
from operators.models.calls import EntailmentModel, GenerateModel
from operators.models.causal_lm import CausalLM, load_causal_lm
from operators.models.nli import CrossEncoderNli, Seq2SeqNli, load_nli
from operators.pack.checkpoints import NLI_FOLDER, WRITER_FOLDER
from operators.pack.lessons import METRICS, GoldWriter
from operators.pack.nli_training import Pair, sample_pair
from operators.pack.prompts import Prompt
from operators.pack.tables import prompt_row
from operators.pack.writer_gold import planted
from operators.questions import write

REQUEST_BATCH = 64
THRESHOLD = GeckoConfig().threshold
EVEN = 0.5
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


def load_writer(assets: Path) -> CausalLM:
    """The saved question writer as production loads it."""
    folder = assets / WRITER_FOLDER
    return load_causal_lm(folder, tokenizer=folder, device="cpu", dtype=torch.float32, pair_batch=REQUEST_BATCH)


def load_entailment(assets: Path) -> CrossEncoderNli | Seq2SeqNli:
    """The saved NLI model as production loads it."""
    folder = assets / NLI_FOLDER
    return load_nli(folder, tokenizer=folder, device="cpu", dtype=torch.float32, pair_batch=REQUEST_BATCH)


class Sheet(NamedTuple):
    """One prompt's questions as the writer wrote them and as it should have."""

    prompt: Prompt
    written: Sequence[WrittenQuestion]
    """None of them where a reply could not be read."""
    gold: Sequence[WrittenQuestion]

    @property
    def right(self) -> bool:
        return list(self.written) == list(self.gold)


def write_sheets(model: GenerateModel, metric: str, prompts: Sequence[Prompt]) -> list[Sheet]:
    """The metric's questions about every prompt, written by the model through the questions stage."""
    table = pa.Table.from_pylist([dict(prompt_row(prompt)) for prompt in prompts], schema=rows.PROMPTS)
    records = write(table, METRICS[metric], model).to_pylist()
    written = {prompt_id: list(group) for prompt_id, group in groupby(records, key=itemgetter("prompt_id"))}
    return [
        Sheet(prompt, _questions(written[prompt.prompt_id]), GoldWriter(prompt).written(metric).questions)
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


def imagined_questions(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """How many prompts have a planted question, and in how many the writer did ask it."""
    wanted = [(sheet, claim.question) for sheet in sheets if (claim := planted(sheet.prompt.text))]
    asked = sum(any(one.text == question for one in sheet.written) for sheet, question in wanted)
    return {"planted": len(wanted), "written": asked}


def filtered_questions(sheets: Sequence[Sheet]) -> dict[str, Any]:
    """What TIFA's filter, which asks the writer itself, does with planted questions and with the others."""
    kept = [(one.text == _planted_text(sheet), one.keep is not False) for sheet in sheets for one in sheet.written]
    return {
        **imagined_questions(sheets),
        "caught": sum(not keep for imagined, keep in kept if imagined),
        "wrongly_dropped": _share([not keep for imagined, keep in kept if not imagined]),
    }


def entailed_questions(model: EntailmentModel, sheets: Sequence[Sheet]) -> dict[str, Any]:
    """What the NLI model does with the planted questions and with the others, at Gecko's threshold and at a half."""
    asked = [(sheet, one) for sheet in sheets for one in sheet.written]
    pairs = [(sheet.prompt.text, hypothesis(one.text, one.answer or "")) for sheet, one in asked]
    imagined = np.array([one.text == _planted_text(sheet) for sheet, one in asked], dtype=bool)
    entailed = np.array(model.entailment(pairs))
    return {
        **imagined_questions(sheets),
        "caught": int((entailed[imagined] < THRESHOLD).sum()),
        "caught_at_half": int((entailed[imagined] < EVEN).sum()),
        "wrongly_dropped": _share(entailed[~imagined] < THRESHOLD),
        "wrongly_dropped_at_half": _share(entailed[~imagined] < EVEN),
    }


def _planted_text(sheet: Sheet) -> str | None:
    claim = planted(sheet.prompt.text)
    return claim.question if claim else None


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
