"""A checkpoint loads completely or is refused with a readable one-line message; no weights are filled in at random."""

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPVisionConfig, CLIPVisionModel

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import Call, Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.families.dual_encoders import ClipSimilarity
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood, load_network, save_clip_flant5
from plumbline.operators.models.processing import load_tokenizer
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny

QUESTIONS = [Question(0, "a red circle ?", ("Yes", "No")), Question(1, "two blue star left of a square ?", ("Yes",))]


@pytest.fixture
def own_checkpoints(checkpoints: Path, tmp_path: Path) -> Path:
    """Return a copy of the `clip` and `flant5` folders that a test may change."""
    shutil.copytree(checkpoints, tmp_path / "own")
    return tmp_path / "own"


def load_flant5(folder: Path, **options: Any) -> ClipFlanT5Likelihood:
    config = make_model_config(family="clip_flant5", checkpoint=str(folder / "flant5"), **options)
    return load(resolve_model(config, on_gpu=False), "likelihood")


def load_clip(folder: Path) -> ClipSimilarity:
    return load(
        resolve_model(make_model_config(family="clip", checkpoint=str(folder / "clip")), on_gpu=False), "similarity"
    )


def compute_answers(model: ClipFlanT5Likelihood) -> list[float]:
    features = model.encode([model.preprocess(tiny.draw_image(seed)) for seed in range(2)])
    answered = model.likelihood(features, QUESTIONS)
    return [number for question in answered for choice in question for number in choice]


def rewrite_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Apply `change` to the tensors in the checkpoint's only weight file; it changes a dictionary in place."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


# Layouts of a CLIP-FlanT5


def test_a_sharded_checkpoint_gives_the_same_answers(own_checkpoints: Path, likelihood: ClipFlanT5Likelihood) -> None:
    tiny.shard_weights(own_checkpoints / "flant5", tiny.make_flant5_weights())
    assert compute_answers(load_flant5(own_checkpoints)) == compute_answers(likelihood)


def test_the_tower_in_the_neighbouring_folder_is_used_if_the_checkpoint_has_none(
    own_checkpoints: Path, likelihood: ClipFlanT5Likelihood
) -> None:
    weights = tiny.make_flant5_weights()
    tiny.save_flant5(own_checkpoints / "flant5", tiny.remove_tower(weights))
    beside = compute_answers(load_flant5(own_checkpoints))
    assert beside != pytest.approx(compute_answers(likelihood), abs=1e-4), "the CLIP next to it has other weights"
    tower = {name: tensor for name, tensor in weights.items() if name.startswith(tiny.TOWER_PREFIX)}
    renamed = {"vision_model." + name.removeprefix(tiny.TOWER_PREFIX): tensor for name, tensor in tower.items()}
    rewrite_weights(own_checkpoints / "clip", lambda clip: clip.update(renamed))
    assert compute_answers(load_flant5(own_checkpoints)) == compute_answers(likelihood)


def test_a_tower_that_transformers_saved_alone_works_too(
    own_checkpoints: Path, likelihood: ClipFlanT5Likelihood
) -> None:
    weights = tiny.make_flant5_weights()
    tower = CLIPVisionModel(CLIPVisionConfig(**tiny.VISION_FIELDS))
    tower.load_state_dict({name.removeprefix(tiny.TOWER_PREFIX): tensor for name, tensor in weights.items()
                           if name.startswith(tiny.TOWER_PREFIX)})  # fmt: skip
    tower.save_pretrained(own_checkpoints / "tower")
    tiny.save_preprocessor(own_checkpoints / "tower")
    tiny.save_flant5(own_checkpoints / "flant5", tiny.remove_tower(weights), tower_name="../tower")
    assert compute_answers(load_flant5(own_checkpoints)) == compute_answers(likelihood)


EMBEDDING_NAMES = ("embed_tokens.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
POSITION_TENSORS = {tiny.TOWER_PREFIX + "embeddings.position_ids": torch.arange(tiny.N_PATCHES + 1)[None]}
LAYOUT_CONVERSIONS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "positions that older transformers saved": lambda weights: weights.update(POSITION_TENSORS),
    **{f"{name} beside": lambda weights, name=name: weights.update({name: weights["shared.weight"].clone()})
       for name in EMBEDDING_NAMES},
    **{f"{name} alone": lambda weights, name=name: weights.update({name: weights.pop("shared.weight")})
       for name in EMBEDDING_NAMES},
}  # fmt: skip
"""Functions that convert the weights to another layout, by the layout's name.

Safetensors stores a shared tensor once, under one name; the Hub's converter keeps the alphabetically first name.
"""


@pytest.mark.parametrize("layout", LAYOUT_CONVERSIONS)
def test_aliases_of_the_embedding_and_stored_positions_are_accepted(
    own_checkpoints: Path, likelihood: ClipFlanT5Likelihood, layout: str
) -> None:
    rewrite_weights(own_checkpoints / "flant5", LAYOUT_CONVERSIONS[layout])
    assert compute_answers(load_flant5(own_checkpoints)) == compute_answers(likelihood)


def test_a_saved_network_is_the_same_after_reloading(own_checkpoints: Path, likelihood: ClipFlanT5Likelihood) -> None:
    network = load_network(own_checkpoints / "flant5", tower=own_checkpoints / "clip")
    save_clip_flant5(network, own_checkpoints / "again", tower_name="../clip")
    tiny.save_tokenizer(own_checkpoints / "again", template="$A </s>")
    saved, expected = load_file(own_checkpoints / "again" / "model.safetensors"), tiny.make_flant5_weights()
    assert set(saved) == set(expected)
    assert all(torch.equal(saved[name], expected[name]) for name in saved)
    config = make_model_config(family="clip_flant5", checkpoint=str(own_checkpoints / "again"))
    assert compute_answers(load(resolve_model(config, on_gpu=False), "likelihood")) == compute_answers(likelihood)


# Tokenizers


def test_a_sentencepiece_model_alone_gives_the_same_tokens(tmp_path: Path) -> None:
    """Old T5 checkpoints have only this file; the expected tokens are computed by the sentencepiece library itself."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(Path(__file__).read_text().splitlines()),
        model_writer=model,
        vocab_size=400,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    tiny.write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"})
    tokenizer, expected = load_tokenizer(tmp_path), sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for text in (
        'Does this figure show "a  red circle"? Please answer yes or no.',
        "ﬁne ＡＢＣ",
        "",
        "a\nb ASSISTANT: ",
    ):
        assert tokenizer(text).input_ids == [*expected.encode(text), tokenizer.eos_token_id]


def test_a_tokenizer_with_more_entries_than_the_embedding_has_rows_is_refused(own_checkpoints: Path) -> None:
    for name in ("shared.weight", "lm_head.weight"):
        rewrite_weights(
            own_checkpoints / "flant5", lambda weights, name=name: weights.update({name: weights[name][:-1].clone()})
        )
    tiny.edit_json(own_checkpoints / "flant5" / "config.json", vocab_size=len(tiny.VOCABULARY) - 1)
    with pytest.raises(
        ModelError, match=r"entries, but the model's embedding has only .* rows; set the model's `tokenizer`"
    ):
        load_flant5(own_checkpoints)


# Checkpoints that do not load


@pytest.mark.parametrize(
    "name",
    [
        "shared.weight",
        "lm_head.weight",
        "mm_projector.2.bias",
        "encoder.block.1.layer.0.SelfAttention.q.weight",
        "decoder.final_layer_norm.weight",
        tiny.TOWER_PREFIX + "encoder.layers.0.mlp.fc1.weight",
    ],
)
def test_a_clip_flant5_that_lacks_a_tensor_is_refused(own_checkpoints: Path, name: str) -> None:
    rewrite_weights(own_checkpoints / "flant5", lambda weights: weights.pop(name))
    with pytest.raises(ModelError, match=r"flant5: the weights do not fit its config\.json: .* is missing"):
        load_flant5(own_checkpoints)


def test_a_clip_flant5_with_an_extra_tensor_is_refused(own_checkpoints: Path) -> None:
    rewrite_weights(
        own_checkpoints / "flant5", lambda weights: weights.update({"encoder.block.9.weight": torch.ones(2)})
    )
    with pytest.raises(ModelError, match=r"unexpected .*encoder\.block\.9\.weight"):
        load_flant5(own_checkpoints)


@pytest.mark.parametrize("fields", [{"d_model": 16}, {"num_layers": 3}, {"vocab_size": 99}])
def test_a_clip_flant5_whose_weights_have_other_sizes_than_its_config_is_refused(
    own_checkpoints: Path, fields: dict[str, Any]
) -> None:
    tiny.edit_json(own_checkpoints / "flant5" / "config.json", **fields)
    with pytest.raises(ModelError, match=r"flant5: the weights do not fit its config\.json"):
        load_flant5(own_checkpoints)


def test_a_tower_of_another_size_is_refused(own_checkpoints: Path) -> None:
    tiny.edit_json(own_checkpoints / "clip" / "config.json", vision_config=tiny.VISION_FIELDS | {"image_size": 40})
    with pytest.raises(ModelError, match="do not fit"):
        load_flant5(own_checkpoints)


@pytest.mark.parametrize(
    ("family", "call"),
    [
        ("clip", "generate"),
        ("clip", "entailment"),
        ("clip_flant5", "similarity"),
        ("clip_flant5", "embedding"),
    ],
)
def test_a_call_that_the_family_does_not_serve_is_refused(checkpoints: Path, family: str, call: Call) -> None:
    folder = checkpoints / {"clip": "clip", "clip_flant5": "flant5"}[family]
    model = resolve_model(make_model_config(family=family, checkpoint=str(folder)), on_gpu=False)
    with pytest.raises(ModelError, match=f"'{family}' does not serve"):
        load(model, call)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_pool_on_a_machine_without_a_gpu_is_refused(checkpoints: Path) -> None:
    config = make_model_config(family="clip", checkpoint=str(checkpoints / "clip"))
    with pytest.raises(ModelError, match="num_gpus > 0 but torch sees no CUDA device"):
        load(resolve_model(config, on_gpu=True), "similarity")


@pytest.mark.parametrize(
    ("family", "save", "call"),
    [("causal_lm", tiny.save_causal_lm, "generate"), ("vlm", tiny.save_llava, "likelihood")],
)
def test_a_missing_vllm_is_reported_with_the_command_to_install_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    save: Callable[[Path], Path],
    call: Call,
) -> None:
    config = make_model_config(family=family, checkpoint=str(save(tmp_path / "own")), engine="vllm")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"vLLM cannot be imported .*install the extra vllm"):
        load(resolve_model(config, on_gpu=False), call)


def test_a_missing_openai_package_is_reported_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ModelError, match="install the extra 'api' of plumbline-t2i"):
        load(resolve_model(make_model_config(family="openai", checkpoint="judge"), on_gpu=False), "generate")
