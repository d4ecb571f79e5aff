"""What every model family holds, on a tiny checkpoint of each kind of network that it serves."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from plumbline.operators.errors import ModelError
from plumbline.operators.models.calls import Call
from plumbline.operators.models.families import FAMILIES, florence2, got_ocr2, model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.operators.models.alike import CHOOSING, PICTURES, asked, require_alike
from tests.operators.tiny.families import KINDS

ROOT = Path(__file__).parents[4]
CALLS = [(name, call) for name, kind in KINDS.items() for call in sorted(FAMILIES[kind.family].loads)]
TIED = ("t5", "blip2", "instructblip")
"""Kinds whose T5 takes its embedding for a head that its checkpoint lacks."""
SHORT = {"owlv2": lambda wanted: len(wanted.phrase) < 11}
"""Of the inputs, those that a tiny model's context takes."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    return {name: kind.save(tmp_path_factory.mktemp("kinds") / name) for name, kind in KINDS.items()}


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader writes on to its limit: tiny models have nothing to say."""
    monkeypatch.setattr(got_ocr2, "MAX_TOKENS", 12)
    monkeypatch.setattr(florence2, "REGION_TOKENS", 40)


def loaded(name: str, folder: Path, call: Call, **options: Any) -> Any:
    config = model_config(family=KINDS[name].family, checkpoint=str(folder), **options)
    return load(resolve_model(config, on_gpu=False), call)


def first_call(name: str) -> Call:
    return next(iter(FAMILIES[KINDS[name].family].loads))


def test_every_family_with_weights_is_in_the_table() -> None:
    assert {kind.family for kind in KINDS.values()} == {name for name, family in FAMILIES.items() if family.local}


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_an_answer_is_the_same_alone_and_in_any_batch(folders: dict[str, Path], name: str, call: Call) -> None:
    small, alone = (loaded(name, folders[name], call, pair_batch=rows, image_batch=rows) for rows in (3, 64))
    chosen = [one for one in asked(call)[0] if name not in SHORT or SHORT[name](one)]
    inputs = CHOOSING if call == "likelihood" else chosen
    require_alike(small, call, measure=KINDS[name].measure, inputs=inputs, alone=alone)


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_nothing_is_answered_where_nothing_is_asked(folders: dict[str, Path], name: str, call: Call) -> None:
    assert asked(call, KINDS[name].measure)[1](loaded(name, folders[name], call), PICTURES, []) == []


@pytest.mark.parametrize("name", KINDS)
def test_bfloat16_is_close_to_float32(folders: dict[str, Path], name: str) -> None:
    call = first_call(name)
    given, ask = asked(call, KINDS[name].measure)
    inputs = CHOOSING if call == "likelihood" else [one for one in given if name not in SHORT or SHORT[name](one)]
    whole, half = (
        ask(loaded(name, folders[name], call, dtype=dtype), PICTURES, inputs) for dtype in ("float32", "bfloat16")
    )
    exact, rounded = ([number for answer in answers for number in answer.numbers] for answers in (whole, half))
    if call in ("detect", "generate", "generate_from_images"):  # what is said changes by a little rounding
        assert all(map(math.isfinite, rounded))
    elif exact:
        assert 0 < fmean(abs(one - other) for one, other in zip(exact, rounded, strict=True)) < np.ptp(exact) / 4


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_that_lacks_a_tensor_is_refused_and_not_filled_in_at_random(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = copied(folders[name], tmp_path)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    of_layers = [tensor for tensor in sorted(weights) if re.search(r"(layers?|blocks?)\.\d", tensor)]
    heads = [] if name in TIED else ["lm_head.weight", "classifier.weight"]
    for lost in [of_layers[-1], *(head for head in heads if head in weights)]:
        save_file({tensor: weights[tensor] for tensor in weights if tensor != lost}, file, metadata={"format": "pt"})
        with pytest.raises(ModelError, match=str(folder)):
            loaded(name, folder, first_call(name))


@pytest.mark.parametrize("name", KINDS)
def test_truncated_weights_are_refused_before_they_are_read(
    folders: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = copied(folders[name], tmp_path)
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="it is truncated: download it again"):
        resolved(KINDS[name].family, folder)


@pytest.mark.parametrize("content", ["{not json", "[]"])
@pytest.mark.parametrize("name", KINDS)
def test_a_garbled_file_is_a_readable_error(folders: dict[str, Path], tmp_path: Path, name: str, content: str) -> None:
    files = [file for file in ("tokenizer.json", "preprocessor_config.json") if (folders[name] / file).is_file()]
    assert files
    for file in files:
        folder = copied(folders[name], tmp_path / file)
        (folder / file).write_text(content)
        with pytest.raises(ModelError, match=str(folder)):
            loaded(name, folder, first_call(name))


def copied(folder: Path, place: Path) -> Path:
    """A copy that a test may damage, with what lies beside it."""
    shutil.copytree(folder.parent, place / "kinds")
    return place / "kinds" / folder.name


@pytest.mark.parametrize("name", KINDS)
def test_a_family_takes_its_own_checkpoints_and_another_names_it(folders: dict[str, Path], name: str) -> None:
    own = KINDS[name].family
    model = resolved(own, folders[name])
    assert {"checkpoint", "tokenizer"} <= set(model.parts)
    file = folders[name] / "config.json"
    message = f"is served by family .*{own}" if file.is_file() else "no config.json"
    fields = json.loads(file.read_text()) if file.is_file() else {"model_type": ""}
    for family in (other for other in FAMILIES if FAMILIES[other].local and not FAMILIES[other].suits(fields)):
        if family != own:
            with pytest.raises(ModelError, match=message) as error:
                resolved(family, folders[name])
            assert str(folders[name]) in str(error.value)


def resolved(family: str, folder: Path) -> Any:
    return resolve_model(model_config(family=family, checkpoint=str(folder)), on_gpu=False)


def test_resolving_any_family_imports_no_model_library(folders: dict[str, Path]) -> None:
    places = [(KINDS[name].family, str(folder)) for name, folder in folders.items()]
    script = (
        "import json, sys; import plumbline.operators.models.loading, plumbline.operators.models.engines.conversation; "
        "from plumbline.operators.models.families import model_config; "
        "from plumbline.operators.models.resolution import resolve_model; "
        "[resolve_model(model_config(family=f, checkpoint=c), on_gpu=False) for f, c in json.loads(sys.argv[1])]; "
        "print(*sorted({n.split('.')[0] for n in sys.modules}))"
    )
    arguments = json.dumps([*places, ("openai", "judge")])
    done = subprocess.run([sys.executable, "-c", script, arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & {"torch", "transformers", "huggingface_hub", "safetensors", "ray", "openai"}
