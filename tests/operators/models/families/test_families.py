"""Every model family meets the common requirements, tested on a tiny checkpoint of each kind of network."""

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import Call, Measure
from plumbline.operators.models.families import FAMILIES, image_to_text, make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.operators.models.alike import (
    CHOICE_QUESTIONS,
    IMAGES,
    MAX_DIFFERENCE,
    QUESTIONS,
    prepare_call,
    require_batch_invariance,
)
from tests.operators.models.families import library
from tests.operators.tiny import detectors
from tests.operators.tiny.families import KINDS
from tests.plugin_tests import merge_test_data

ROOT = Path(__file__).parents[4]
KINDS_AND_CALLS = [(name, call) for name, kind in KINDS.items() for call in sorted(FAMILIES[kind.family].loads)]
FITS_TINY_CONTEXT = {"owlv2": lambda wanted: len(wanted.phrase) < 11}
"""Functions that return True if an input fits into a tiny model's context, by kind of network."""
TESTED_ELSEWHERE = {
    "clip_flant5": "tests/parity",
    "llava": "test_vlm.py",
    "qwen2_vl": "test_vlm.py",
    "gemma3": "test_vlm.py",
}
"""Test files or folders that compare networks with their references, for the kinds that this file leaves out."""
TOLERANCES: Mapping[str, float] = {"logit": 1e-3, "detect": 1e-2, "entailment": 1e-9}
"""Tolerances for numbers larger or smaller than most: logits, pixel coordinates, and the probability of a word."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    return {name: kind.save(tmp_path_factory.mktemp("kinds") / name) for name, kind in KINDS.items()}


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the maximum length of texts read from images, because tiny models generate until they reach it."""
    monkeypatch.setattr(image_to_text, "MAX_READ_TOKENS", 12)
    monkeypatch.setattr(image_to_text, "MAX_REGION_TOKENS", 40)


def load_model(name: str, folder: Path, call: Call, **options: Any) -> Any:
    if call == "ocr" and KINDS[name].family == "vlm":
        options |= {"reading": "Read", "reading_tokens": 12}  # no more fits into a tiny context
    config = make_model_config(family=KINDS[name].family, checkpoint=str(folder), **options)
    return load(resolve_model(config, on_gpu=False), call)


@cache
def load_default(name: str, folder: Path, call: Call) -> Any:
    """Return a model with default options, which tests must not change."""
    return load_model(name, folder, call)


def find_first_call(name: str) -> Call:
    return next(iter(FAMILIES[KINDS[name].family].loads))


def select_inputs(name: str, call: Call) -> Sequence[Any]:
    """Return the inputs for a call to one kind of network, without those that are too long for its tiny checkpoint.

    For likelihoods, models that only compare images with texts get questions with choices.
    """
    if call == "likelihood":
        return CHOICE_QUESTIONS if "embedding" in FAMILIES[KINDS[name].family].loads else QUESTIONS
    return [one for one in prepare_call(call)[0] if name not in FITS_TINY_CONTEXT or FITS_TINY_CONTEXT[name](one)]


def has_config(family: Any) -> bool:
    """Return True if the checkpoints of this family have a config.json.

    Image generators are tested as pipelines (plugins/generation/tests/test_generate_job.py).
    """
    return family.local and "draw" not in family.calls


def test_every_family_with_weights_has_a_tiny_checkpoint() -> None:
    assert {kind.family for kind in KINDS.values()} == {name for name, family in FAMILIES.items() if has_config(family)}


@pytest.mark.parametrize(("name", "call"), KINDS_AND_CALLS)
def test_an_answer_is_the_same_alone_and_in_any_batch(folders: dict[str, Path], name: str, call: Call) -> None:
    small, alone = (
        load_model(name, folders[name], call, pair_batch=3, image_batch=3),
        load_default(name, folders[name], call),
    )
    require_batch_invariance(small, call, measure=KINDS[name].measure, inputs=select_inputs(name, call), alone=alone)
    assert prepare_call(call, KINDS[name].measure)[1](small, IMAGES, []) == []


REFERENCES: Mapping[tuple[str, Call], library.Reference] = {
    **library.REFERENCES,
    **merge_test_data("references", "REFERENCES"),
}
WITHOUT_REFERENCE = [(name, call) for name, call in KINDS_AND_CALLS if (name, call) not in REFERENCES]
COMPARED_ANSWERS = [
    (name, call, measure)
    for name, call in REFERENCES
    for measure in (FAMILIES[KINDS[name].family].measures if call == "similarity" else ("cosine",))
]


def test_every_call_is_compared_with_the_library() -> None:
    """All other calls are tested in their own files, except `embedding`, which `similarity` covers."""
    left = [(name, call) for name, call in WITHOUT_REFERENCE if name not in TESTED_ELSEWHERE and call != "embedding"]
    assert left == [("causal_lm", "generate")], "test_causal_lm.py tests it"


@pytest.mark.parametrize(("name", "call", "measure"), COMPARED_ANSWERS)
def test_an_answer_equals_the_librarys(folders: dict[str, Path], name: str, call: Call, measure: Measure) -> None:
    require_equal_to_library(load_default(name, folders[name], call), folders[name], name, call, measure)


def require_equal_to_library(model: Any, folder: Path, name: str, call: Call, measure: Measure = "cosine") -> None:
    """Fail if an answer differs from its reference in REFERENCES, which is computed for one input at a time.

    If a reference has only words, numbers are not compared.
    """
    inputs = select_inputs(name, call)
    with torch.no_grad():
        expected = [REFERENCES[name, call](folder, one, measure) for one in inputs]
    answers = prepare_call(call, measure)[1](model, IMAGES, inputs)
    assert [answer.words for answer in answers] == [answer.words for answer in expected]
    near = TOLERANCES.get(measure if call == "similarity" else call, MAX_DIFFERENCE)
    for answer, wanted in zip(answers, expected, strict=True):
        assert not wanted.numbers or answer.numbers == pytest.approx(wanted.numbers, abs=near, rel=10 * MAX_DIFFERENCE)
    assert len({(one.words, tuple(f"{number:.2g}" for number in one.numbers)) for one in expected}) > 1


def pad_left(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.tokenizer.padding_side = "left"


def pad_to_the_longest(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model, "padded", False)


def treat_padding_as_words(model: Any, patch: pytest.MonkeyPatch) -> None:
    tokenize = model.tokenize

    def remove_mask(*texts: Any, **options: Any) -> Any:
        read = tokenize(*texts, **options)
        read["attention_mask"] = torch.ones_like(read["attention_mask"])
        return read

    patch.setattr(model, "tokenize", remove_mask)


def encode_padding(model: Any, patch: pytest.MonkeyPatch) -> None:
    read = model.read

    def remove_mask(*given: Any) -> Any:
        encoded = read(*given)
        return encoded._replace(mask=torch.ones_like(encoded.mask))

    patch.setattr(model, "read", remove_mask)


def attend_to_padding_in_a_qformer(model: Any, patch: pytest.MonkeyPatch) -> None:
    forward = model.model.qformer.forward
    patch.setattr(
        model.model.qformer,
        "forward",
        lambda **given: forward(**given | {"attention_mask": torch.ones_like(given["attention_mask"])}),
    )


def attend_to_padding_before_a_blind_model(model: Any, patch: pytest.MonkeyPatch) -> None:
    network = model.language.model
    forward = network.forward
    patch.setattr(
        network,
        "forward",
        lambda **given: forward(**given | {"attention_mask": torch.ones_like(given["attention_mask"])}),
    )


def remove_end_token(model: Any, patch: pytest.MonkeyPatch) -> None:
    model.end_id = -1


def swap_image_features(model: Any, patch: pytest.MonkeyPatch) -> None:
    encode = model.encode
    patch.setattr(model, "encode", lambda pixels: encode(pixels)[::-1])


def pad_images_to_one_canvas(model: Any, patch: pytest.MonkeyPatch) -> None:
    shape, whole = (3, detectors.LONGEST_SIDE, detectors.LONGEST_SIDE), model.preprocess

    def pad(image: Any) -> Any:
        tensor, canvas = whole(image).tensor, torch.zeros(shape)
        canvas[:, : tensor.shape[1], : tensor.shape[2]] = tensor
        return whole(image)._replace(tensor=canvas)

    patch.setattr(model, "preprocess", pad)


PLANTED_FAULTS: list[tuple[str, Call, Callable[[Any, pytest.MonkeyPatch], None]]] = [
    ("pickscore", "similarity", pad_left),
    ("siglip", "similarity", pad_to_the_longest),
    ("align", "similarity", treat_padding_as_words),
    ("blip_itm", "similarity", treat_padding_as_words),
    ("blip2_itm", "similarity", treat_padding_as_words),
    ("imagereward", "similarity", treat_padding_as_words),
    ("blip2", "likelihood", encode_padding),
    ("instructblip", "likelihood", encode_padding),
    ("instructblip", "likelihood", attend_to_padding_in_a_qformer),
    ("blip_vqa", "likelihood", encode_padding),
    ("causal_lm", "likelihood", attend_to_padding_before_a_blind_model),
    ("git", "generate_from_images", remove_end_token),
    ("florence2", "generate_from_images", swap_image_features),
    ("grounding_dino", "detect", pad_images_to_one_canvas),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call", "plant"), PLANTED_FAULTS)
def test_a_planted_bug_makes_the_comparison_with_the_library_fail(
    folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: Call,
    plant: Callable[[Any, pytest.MonkeyPatch], None],
) -> None:
    model = load_model(name, folders[name], call)
    plant(model, monkeypatch)
    inputs, alone = select_inputs(name, call), load_default(name, folders[name], call)
    with pytest.raises(AssertionError):
        require_batch_invariance(model, call, measure=KINDS[name].measure, inputs=inputs, alone=alone)


RESAVED_KINDS = ("clip", "siglip2", "siglip2_naflex", "align", "blip_itm", "blip2_itm", "blip", "gemma3", "llava")


@pytest.mark.parametrize("name", RESAVED_KINDS)
def test_a_processor_saved_by_transformers_5_scores_like_the_released_one(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    """Transformers 5 saves the image processor inside processor_config.json."""
    folder, call = copy_folder(folders[name], tmp_path), find_first_call(name)
    given, ask = prepare_call(call, KINDS[name].measure)
    shown = [one for one in given if one.image == 0]
    released = ask(load_model(name, folder, call), IMAGES, shown)
    AutoProcessor.from_pretrained(folder).save_pretrained(folder)
    (folder / "preprocessor_config.json").unlink()
    assert ask(load_model(name, folder, call), IMAGES, shown) == released


@pytest.mark.parametrize("name", KINDS)
def test_bfloat16_is_close_to_float32(folders: dict[str, Path], name: str) -> None:
    call = find_first_call(name)
    ask, inputs = prepare_call(call, KINDS[name].measure)[1], select_inputs(name, call)
    models = load_default(name, folders[name], call), load_model(name, folders[name], call, dtype="bfloat16")
    whole, half = (ask(model, IMAGES, inputs) for model in models)
    exact, rounded = ([number for answer in answers for number in answer.numbers] for answers in (whole, half))
    if call in ("detect", "generate", "generate_from_images"):  # a small rounding error can change the reply
        assert all(map(math.isfinite, rounded))
    elif exact:
        assert 0 < fmean(abs(one - other) for one, other in zip(exact, rounded, strict=True)) < np.ptp(exact) / 4


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_that_lacks_a_tensor_is_refused_and_not_filled_with_random_numbers(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = copy_folder(folders[name], tmp_path)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    of_layers = [tensor for tensor in sorted(weights) if re.search(r"(layers?|blocks?)\.\d|slice\d|Mixed_\d", tensor)]
    heads = [tensor for tensor in weights if tensor.endswith(("lm_head.weight", "classifier.weight"))]
    for lost in [of_layers[-1], *heads]:
        save_file({tensor: weights[tensor] for tensor in weights if tensor != lost}, file, metadata={"format": "pt"})
        with pytest.raises(ModelError, match=str(folder)):
            load_model(name, folder, find_first_call(name))


@pytest.mark.parametrize("name", KINDS)
def test_truncated_weights_are_refused_before_they_are_read(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = copy_folder(folders[name], tmp_path)
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="or truncated; download the checkpoint again"):
        resolve(KINDS[name].family, folder)


@pytest.mark.parametrize("content", ["{not json", pytest.param("[]", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KINDS)
def test_a_garbled_file_gives_a_readable_error(
    folders: dict[str, Path], tmp_path: Path, name: str, content: str
) -> None:
    files = [file for file in ("tokenizer.json", "preprocessor_config.json") if (folders[name] / file).is_file()]
    assert files or not FAMILIES[KINDS[name].family].files
    for file in files:
        folder = copy_folder(folders[name], tmp_path / file)
        (folder / file).write_text(content)
        with pytest.raises(ModelError, match=str(folder)):
            load_model(name, folder, find_first_call(name))


def copy_folder(folder: Path, place: Path) -> Path:
    """Copy a folder and the folders next to it, so that a test may damage the copy; return the copied folder."""
    shutil.copytree(folder.parent, place / "kinds")
    return place / "kinds" / folder.name


@pytest.mark.parametrize("name", KINDS)
def test_a_family_accepts_its_own_checkpoints_and_other_families_name_it(folders: dict[str, Path], name: str) -> None:
    own = KINDS[name].family
    model = resolve(own, folders[name])
    assert {"checkpoint", "tokenizer"} <= set(model.parts)
    file = folders[name] / "config.json"
    message = f"is served by family .*{own}" if file.is_file() else "no config.json"
    fields = json.loads(file.read_text()) if file.is_file() else {"model_type": ""}
    for family in (other for other in FAMILIES if has_config(FAMILIES[other]) and not FAMILIES[other].suits(fields)):
        if family != own:
            with pytest.raises(ModelError, match=message) as error:
                resolve(family, folders[name])
            assert str(folders[name]) in str(error.value)


def resolve(family: str, folder: Path) -> Any:
    return resolve_model(make_model_config(family=family, checkpoint=str(folder)), on_gpu=False)


def test_resolving_a_family_and_importing_the_stages_import_no_model_library(folders: dict[str, Path]) -> None:
    places = [(KINDS[name].family, str(folder)) for name, folder in folders.items()]
    script = (
        "import json, sys; import plumbline.operators.models.loading, plumbline.operators.models.engines.conversation; "
        "import plumbline.operators.stages.table, plumbline.operators.metrics.table; "
        "import plumbline.operators.results.summary; "
        "from plumbline.operators.models.families import make_model_config; "
        "from plumbline.operators.models.resolution import resolve_model; "
        "configs = [make_model_config(family=f, checkpoint=c) for f, c in json.loads(sys.argv[1])]; "
        "[resolve_model(config, on_gpu=on_gpu) for config in configs for on_gpu in (False, True)]; "
        "print(*sorted({n.split('.')[0] for n in sys.modules}))"
    )
    arguments = json.dumps([*places, ("openai", "judge")])
    done = subprocess.run([sys.executable, "-c", script, arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & {"torch", "transformers", "huggingface_hub", "ray", "openai"}
