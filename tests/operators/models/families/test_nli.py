"""Entailment is the probability that the model itself gives to one pair at a time, by label or by the token 1."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertForSequenceClassification, T5Config
from transformers import T5ForConditionalGeneration as T5

from plumbline.operators.errors import ModelError
from plumbline.operators.models import loading
from plumbline.operators.models.calls import EntailmentModel
from plumbline.operators.models.families import model_config
from plumbline.operators.models.families.nli import entailment_label
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny

PAIRS = [
    ("a red circle", "a circle"),
    ("two blue star left of square", "a star"),
    ("a red circle", "a blue circle"),
    ("star", "a photo"),
    ("square", "yes"),
]
BUILD: dict[str, Callable[[Path], Path]] = {"labels": tiny.save_nli, "tokens": tiny.save_true_nli}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def load(folder: Path, **options: Any) -> EntailmentModel:
    return loading.load(
        resolve_model(model_config(family="nli", checkpoint=str(folder), **options), on_gpu=False), "entailment"
    )


@torch.inference_mode()
def by_label(folder: Path, premise: str, hypothesis: str, label: int) -> float:
    """The softmax over the labels, for the two texts between BERT's marks."""
    model = BertForSequenceClassification.from_pretrained(folder).eval()
    words = [tiny.VOCABULARY.get(word, tiny.VOCABULARY["<unk>"]) for word in premise.split()]
    others = [tiny.VOCABULARY.get(word, tiny.VOCABULARY["<unk>"]) for word in hypothesis.split()]
    start, end = tiny.VOCABULARY["<s>"], tiny.VOCABULARY["</s>"]
    ids = torch.tensor([[start, *words, end, *others, end]])
    kinds = torch.tensor([[0] * (len(words) + 2) + [1] * (len(others) + 1)])
    return float(model(input_ids=ids, token_type_ids=kinds).logits.softmax(-1)[0, label])


@torch.inference_mode()
def by_token(folder: Path, premise: str, hypothesis: str) -> float:
    """The probability of the byte `1` after the start, under the weights as they stand in the file."""
    weights = load_file(folder / "model.safetensors")
    size = {"vocab_size": len(tiny.BYTE_VOCABULARY), "eos_token_id": tiny.BYTE_VOCABULARY["</s>"]}
    model = T5(T5Config(**tiny.T5_FIELDS | size)).eval()
    model.lm_head.weight = torch.nn.Parameter(weights["lm_head.weight"])  # a matrix of its own
    model.load_state_dict(weights, strict=False)
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    ids = torch.tensor(
        [AutoTokenizer.from_pretrained(folder)(f"premise: {premise} hypothesis: {hypothesis}").input_ids]
    )
    logits = model(input_ids=ids, decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    return float(logits.softmax(-1)[tiny.BYTE_VOCABULARY["1"]])


# What is measured


def test_a_cross_encoder_gives_the_probability_of_its_entailment_label(tmp_path: Path) -> None:
    folder = tiny.save_nli(tmp_path / "nli")
    found = load(folder, pair_batch=2).entailment(PAIRS)
    assert found == pytest.approx([by_label(folder, *pair, 2) for pair in PAIRS], abs=1e-5)
    assert len({round(number, 4) for number in found}) == len(PAIRS)


@pytest.mark.parametrize("labels", [("entailment", "not_entailment"), ("not_entailment", "Entailment")])
def test_two_labels_serve_as_well(tmp_path: Path, labels: Sequence[str]) -> None:
    folder = tiny.save_nli(tmp_path / "nli", labels=labels)
    label = [name.lower() for name in labels].index("entailment")
    assert load(folder).entailment(PAIRS) == pytest.approx([by_label(folder, *pair, label) for pair in PAIRS], abs=1e-5)


@pytest.mark.parametrize("pair_batch", [2, 64])
def test_a_t5_gives_the_probability_of_saying_1(tmp_path: Path, pair_batch: int) -> None:
    folder = tiny.save_true_nli(tmp_path / "true")
    found = load(folder, pair_batch=pair_batch).entailment(PAIRS)
    assert found == pytest.approx([by_token(folder, *pair) for pair in PAIRS], rel=1e-3)
    assert len({f"{number:.4g}" for number in found}) == len(PAIRS)


def test_a_premise_beyond_the_context_of_a_cross_encoder_is_cut(tmp_path: Path) -> None:
    folder = tiny.save_nli(tmp_path / "nli")
    (found,) = load(folder).entailment([("red " * 30, "a circle")])
    room = tiny.CONTEXT - 3 - 2
    assert found == pytest.approx(by_label(folder, "red " * room, "a circle", 2), abs=1e-5)


def test_a_premise_beyond_the_context_of_a_t5_is_cut_and_the_hypothesis_is_not(tmp_path: Path) -> None:
    folder = tiny.save_true_nli(tmp_path / "true")
    tiny.edit_json(folder / "tokenizer_config.json", model_max_length=40)
    (found,) = load(folder).entailment([("red circle " * 10, "a star")])
    room = 40 - len("premise:  hypothesis: a star")
    assert found == pytest.approx(by_token(folder, ("red circle " * 10)[:room], "a star"), rel=1e-3)


@pytest.mark.parametrize("kind", BUILD)
def test_no_pairs_have_no_probabilities_and_empty_texts_have_some(tmp_path: Path, kind: str) -> None:
    model = load(BUILD[kind](tmp_path / kind))
    assert model.entailment([]) == []
    (found,) = model.entailment([("", "")])
    assert 0 <= found <= 1


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["contradiction", "neutral", "ENTAILMENT"], 2),
        (["entailment", "not_entailment"], 0),
        (["LABEL_0", "LABEL_1"], None),
        (["not_entailment", "non-entailment"], None),
        (["entailment", "Entailment"], None),
    ],
)
def test_the_entailment_label_is_found_by_its_name(labels: Sequence[str], expected: int | None) -> None:
    assert entailment_label({str(index): label for index, label in enumerate(labels)}) == expected


# What does not load


def test_a_tokenizer_that_cannot_tell_1_from_0_is_refused(tmp_path: Path) -> None:
    folder = tiny.save_true_nli(tmp_path / "true")
    tiny.save_tokenizer(folder, template="$A </s>")
    with pytest.raises(ModelError, match="does not tell `1` from `0`"):
        load(folder)
