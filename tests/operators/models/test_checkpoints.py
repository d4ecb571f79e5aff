"""A model is checked and identified from its files alone, before torch is imported or any weight is read."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.models.calls import Call
from plumbline.operators.models.checkpoints.parts import digest_file, read_tensor_names
from plumbline.operators.models.engines.conversation import TEMPLATE_FILES
from plumbline.operators.models.families import FAMILIES, FAMILY_LOCATIONS, make_model_config
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.families.vlm import CHAT_PROFILE, FUYU_PROFILE, LLAVA_1_5_PROFILE, PALIGEMMA_PROFILE
from plumbline.operators.models.model import Engine, ResolvedModel
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.operators.models.service_config import ServiceModel
from plumbline.operators.models.vqa_profiles import VqaProfile
from tests.operators import tiny
from tests.operators.tiny.families import KINDS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_checkpoints(checkpoints: Path, tmp_path: Path) -> Path:
    """Return a copy of the `clip` and `flant5` folders that a test may damage."""
    shutil.copytree(checkpoints, tmp_path / "own")
    return tmp_path / "own"


def resolve_flant5(folder: Path, *, on_gpu: bool = False, **options: Any) -> ResolvedModel:
    config = make_model_config(family="clip_flant5", checkpoint=str(folder / "flant5"), **options)
    return resolve_model(config, on_gpu=on_gpu)


def resolve_clip(folder: Path, **options: Any) -> ResolvedModel:
    return resolve_model(make_model_config(family="clip", checkpoint=str(folder / "clip"), **options), on_gpu=False)


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


# Parts of a model


def test_a_clip_has_its_checkpoint_and_tokenizer_in_one_folder(checkpoints: Path) -> None:
    model = resolve_clip(checkpoints)
    assert set(model.parts) == {"checkpoint", "tokenizer"}
    assert {part.folder() for part in model.parts.values()} == {(checkpoints / "clip").resolve()}
    assert {part.commit for part in model.parts.values()} == {None}


def test_a_clip_flant5_finds_its_tower_by_a_path_relative_to_itself(
    own_checkpoints: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    model = resolve_model(make_model_config(family="clip_flant5", checkpoint="own/flant5"), on_gpu=False)
    assert model.parts["vision_tower"].folder() == (own_checkpoints / "clip").resolve()
    assert model.parts["checkpoint"].folder() == (own_checkpoints / "flant5").resolve()


def test_a_configured_tower_is_used_instead_of_the_one_the_checkpoint_names(own_checkpoints: Path) -> None:
    tiny.edit_json(own_checkpoints / "flant5" / "config.json", mm_vision_tower="../nowhere")
    model = resolve_flant5(own_checkpoints, vision_tower=str(own_checkpoints / "clip"))
    assert model.parts["vision_tower"].folder() == (own_checkpoints / "clip").resolve()


def test_a_tower_without_weights_is_refused_if_the_checkpoint_has_none_either(own_checkpoints: Path) -> None:
    (own_checkpoints / "clip" / "model.safetensors").unlink()
    assert resolve_flant5(own_checkpoints).parts["vision_tower"].folder() == (own_checkpoints / "clip").resolve(), (
        "the checkpoint contains the tower's weights"
    )
    tiny.save_flant5(own_checkpoints / "flant5", tiny.remove_tower(tiny.make_flant5_weights()))
    with pytest.raises(ModelError, match=r"clip: expected \*.safetensors, found no weights"):
        resolve_flant5(own_checkpoints)


def test_a_separate_tokenizer_replaces_a_missing_one(own_checkpoints: Path) -> None:
    (own_checkpoints / "flant5" / "tokenizer.json").rename(own_checkpoints / "tokenizer.json")
    model = resolve_flant5(own_checkpoints, tokenizer=str(own_checkpoints))
    assert model.parts["tokenizer"].folder() == own_checkpoints.resolve()


# Refusals that name the location and the remedy


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def rename(name: str, other: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).rename(folder / other)


def make_config_edit(**fields: Any) -> Callable[[Path], object]:
    return lambda folder: tiny.edit_json(folder / "config.json", **fields)


def append_to_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"more")


def keep_only_spiece(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "spiece.model")
    (folder / "tokenizer_config.json").unlink()


def make_safetensors(header: bytes) -> bytes:
    """Return a safetensors file with this header and no data."""
    return struct.pack("<Q", len(header)) + header


GIT_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 99\n"
UNFIT_FILES = {
    "too long": (append_to_weights, "not a safetensors file .*, or truncated; download the checkpoint again"),
    "empty": (write("model.safetensors", b""), "not a safetensors file .*download the checkpoint again"),
    "half a length": (write("model.safetensors", b"\1\0\0"), "not a safetensors file"),
    "git lfs pointer": (write("model.safetensors", GIT_LFS_POINTER), "not a safetensors file"),
    "zeros": (write("model.safetensors", b"\0" * 64), "not a safetensors file"),
    "header of text": (write("model.safetensors", make_safetensors(b"{]")), "not a safetensors file"),
    "header of a list": (write("model.safetensors", make_safetensors(b"[]")), "not a safetensors file"),
    "header of a number": (write("model.safetensors", make_safetensors(b"7")), "not a safetensors file"),
    "entries without offsets": (write("model.safetensors", make_safetensors(b'{"a": {}}')), "not a safetensors file"),
    "offsets of text": (
        write("model.safetensors", make_safetensors(b'{"a": {"data_offsets": ["x", "y"]}}')),
        "not a safetensors file",
    ),
    "pickle only": (
        rename("model.safetensors", "pytorch_model.bin"),
        r"expected \*.safetensors, found only pickled .bin weights.*convert",
    ),
    "none": (remove("model.safetensors"), r"expected \*.safetensors, found no weights; convert"),
    "no config": (remove("config.json"), "no config.json, so it is not a checkpoint"),
    "empty config": (write("config.json", b""), "config.json is not JSON .*download the checkpoint again"),
    "half a config": (write("config.json", b'{"model_type": "cl'), "config.json is not JSON"),
    "binary config": (write("config.json", b"\xff\xfe\0"), "config.json is not JSON"),
    "list for a config": (write("config.json", b"[1]"), "has no model_type; download the checkpoint again"),
    "other model": (
        make_config_edit(model_type="bert"),
        "model_type 'bert', expected 'cl.*; no model family serves such a checkpoint",
    ),
    "no model type": (make_config_edit(model_type=None), "has no model_type"),
    "no preprocessor": (remove("preprocessor_config.json"), r"no preprocessor_config\.json or processor_config\.json"),
    "no tokenizer": (remove("tokenizer.json"), "no tokenizer.json or .*set the model's `tokenizer`"),
    "half a sentencepiece": (
        keep_only_spiece,
        "has a spiece.model but no tokenizer_config.json.*set the model's `token",
    ),
}


@pytest.mark.parametrize("damage", UNFIT_FILES)
def test_an_unfit_checkpoint_is_refused_by_name_with_its_remedy(own_checkpoints: Path, damage: str) -> None:
    apply, message = UNFIT_FILES[damage]
    apply(own_checkpoints / "clip")
    with pytest.raises(ModelError, match=message) as raised:
        resolve_clip(own_checkpoints)
    assert str(own_checkpoints / "clip") in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mm_projector_type": "linear"},
            "`mm_projector_type` is 'linear'; use a checkpoint in which it is 'mlp2x_gelu'",
        ),
        (
            {"mm_vision_select_feature": "cls_patch"},
            "`mm_vision_select_feature` is 'cls_patch'; use a checkpoint in which it is 'patch'",
        ),
        ({"mm_vision_tower": None}, "lacks `mm_vision_tower`, so it is not a CLIP-FlanT5"),
        ({"mm_vision_select_layer": None}, "lacks `mm_vision_select_layer`"),
        ({"d_model": None}, "lacks `d_model`"),
        ({"mm_vision_tower": "../nowhere"}, "nowhere': expected a folder or a hub id .*, found neither"),
        (
            {"mm_vision_tower": "../flant5"},
            "model_type 'clip_t5', but the vision tower must be a CLIP model; set the model's `v",
        ),
    ],
)
def test_a_clip_flant5_that_is_built_differently_is_refused(
    own_checkpoints: Path, fields: dict[str, Any], message: str
) -> None:
    tiny.edit_json(own_checkpoints / "flant5" / "config.json", **fields)
    with pytest.raises(ModelError, match=message):
        resolve_flant5(own_checkpoints)


def test_a_missing_shard_of_the_index_is_reported_before_loading(own_checkpoints: Path) -> None:
    tiny.shard_weights(own_checkpoints / "flant5", tiny.make_flant5_weights())
    (own_checkpoints / "flant5" / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors"):
        resolve_flant5(own_checkpoints)


def test_a_towers_missing_preprocessor_is_reported_before_loading(own_checkpoints: Path) -> None:
    (own_checkpoints / "clip" / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
        resolve_flant5(own_checkpoints)


@pytest.mark.parametrize("source", ["/no/such/folder", "./nowhere", "nowhere", "a/b/c"])
def test_a_missing_folder_is_reported_by_name(source: str) -> None:
    with pytest.raises(
        ModelError, match=f"model '{source}': expected a folder or a hub id of the form owner/name, found neither"
    ):
        resolve_model(make_model_config(family="clip", checkpoint=source), on_gpu=False)


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("clip", {"image_batch": 0}, "model image_batch: expected at least 1, got 0"),
        ("clip", {"pair_batch": -1}, "model pair_batch: expected at least 1, got -1"),
        ("clip", {"checkpoint": ""}, "model checkpoint: expected a hub id or a folder"),
        ("clpi", {}, r"^model family: expected one of .*, got 'clpi'; did you mean clip"),
        ("openai", {"endpoint": "host/v1"}, "expected an address such as https://host/v1"),
        ("openai", {"concurrency": 0}, "model concurrency: expected at least 1, got 0"),
        ("openai", {"max_retries": -1}, "model max_retries: expected 0 or more, got -1"),
        ("openai", {"timeout": 0.0}, "timeout: expected more than 0, got 0.0"),
        ("openai", {"requests_per_minute": -1.0}, "requests_per_minute: expected more than 0 or null, got -1.0"),
    ],
)
def test_a_bad_setting_is_refused_by_name(family: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model_config(**({"family": family, "checkpoint": "x"} | fields))


# Identity of a model


def test_the_same_files_elsewhere_are_the_same_model(own_checkpoints: Path, tmp_path: Path) -> None:
    before = resolve_flant5(own_checkpoints).list_key_properties()
    shutil.copytree(own_checkpoints, tmp_path / "copy")
    assert resolve_flant5(tmp_path / "copy").list_key_properties() == before
    own_checkpoints.rename(tmp_path / "moved")
    assert resolve_flant5(tmp_path / "moved").list_key_properties() == before


def append_newline(file: str) -> Callable[[Path], object]:
    return lambda root: (root / file).write_text((root / file).read_text() + "\n")


CHANGED_CHECKPOINTS = {
    "a byte of the weights": lambda root: flip_last_byte(root / "flant5/model.safetensors"),
    "a byte of the tower's": lambda root: flip_last_byte(root / "clip/model.safetensors"),
    **{
        file: append_newline(file)
        for file in ("flant5/config.json", "flant5/tokenizer.json", "flant5/tokenizer_config.json",
                     "clip/preprocessor_config.json")
    },
    "a new name": rename("flant5/model.safetensors", "flant5/other.safetensors"),
    "a chat template": lambda root: (root / "flant5/chat_template.jinja").write_text("{{ messages }}"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGED_CHECKPOINTS)
def test_changed_files_make_another_model(own_checkpoints: Path, change: str) -> None:
    before = resolve_flant5(own_checkpoints).list_key_properties()
    CHANGED_CHECKPOINTS[change](own_checkpoints)
    assert resolve_flant5(own_checkpoints).list_key_properties() != before


def test_files_that_are_never_loaded_do_not_matter(own_checkpoints: Path) -> None:
    before = resolve_clip(own_checkpoints).list_key_properties()
    for name in ("README.md", "training.log", "pytorch_model.bin"):
        (own_checkpoints / "clip" / name).write_bytes(b"anything")
    assert resolve_clip(own_checkpoints).list_key_properties() == before


def test_another_tokenizer_or_tower_makes_another_model(own_checkpoints: Path) -> None:
    before = resolve_flant5(own_checkpoints).list_key_properties()
    tiny.save_clip(own_checkpoints / "other", seed=5)
    assert resolve_flant5(own_checkpoints, vision_tower=str(own_checkpoints / "other")).list_key_properties() != before
    assert resolve_flant5(own_checkpoints, tokenizer=str(own_checkpoints / "other")).list_key_properties() != before


def test_the_revision_of_a_local_folder_is_its_label_and_part_of_its_key(own_checkpoints: Path) -> None:
    labelled = resolve_clip(own_checkpoints, revision="v2")
    assert labelled.label == "v2"
    assert labelled.list_key_properties() != resolve_clip(own_checkpoints).list_key_properties()


@pytest.mark.parametrize("left", ["refs/pr/15", "c0273606af96037e7a3b2fb0ff4ae9620b517be6"])
def test_a_folder_that_replaces_a_hub_id_ignores_the_hubs_revision(own_checkpoints: Path, left: str) -> None:
    assert (
        resolve_clip(own_checkpoints, revision=left).list_key_properties()
        == resolve_clip(own_checkpoints).list_key_properties()
    )


def test_batch_sizes_and_the_device_are_not_part_of_a_models_identity(checkpoints: Path) -> None:
    model = resolve_flant5(checkpoints, dtype="float32")
    for on_gpu in (False, True):
        other = resolve_flant5(checkpoints, on_gpu=on_gpu, dtype="float32", image_batch=3, pair_batch=5)
        assert (other.on_gpu, other.config.image_batch, other.config.pair_batch) == (on_gpu, 3, 5)
        assert other.list_key_properties() == model.list_key_properties()


@pytest.mark.parametrize(
    ("dtype", "on_gpu", "expected"),
    [
        ("auto", False, "float32"),
        ("auto", True, "bfloat16"),
        ("float32", True, "float32"),
        ("bfloat16", False, "bfloat16"),
    ],
)
def test_the_precision_follows_the_device_unless_it_is_set(
    checkpoints: Path, dtype: str, on_gpu: bool, expected: str
) -> None:
    model = resolve_flant5(checkpoints, on_gpu=on_gpu, dtype=dtype)
    assert model.dtype == expected
    assert model.list_key_properties()["dtype"] == expected


def test_a_models_identity_can_be_written_as_json(checkpoints: Path) -> None:
    semantic = resolve_flant5(checkpoints).list_key_properties()
    assert json.loads(json.dumps(semantic)) == semantic


def test_the_given_digest_function_is_used_for_every_file(checkpoints: Path) -> None:
    digested: list[str] = []

    def digest(path: Path) -> str:
        digested.append(path.name)
        return digest_file(path)

    config = make_model_config(family="clip", checkpoint=str(checkpoints / "clip"))
    model = resolve_model(config, on_gpu=False, digest=digest)
    assert sorted(digested) == sorted(path.name for path in (checkpoints / "clip").iterdir())
    assert model.list_key_properties() == resolve_model(config, on_gpu=False).list_key_properties()


def test_the_digest_of_a_file_is_its_sha256(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert digest_file(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_tensors_of_a_file_are_read_from_its_header(checkpoints: Path) -> None:
    names = read_tensor_names(checkpoints / "flant5" / "model.safetensors")
    assert sorted(names) == sorted(tiny.make_flant5_weights())


# The other families


SAVED_KINDS = ("causal_lm", "llava", "qwen2_vl", "cross_encoder", "sentences")


@pytest.fixture(scope="module")
def saved_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint of every kind in SAVED_KINDS."""
    folder = tmp_path_factory.mktemp("others")
    for name in SAVED_KINDS:
        KINDS[name].save(folder / name)
    return folder


def resolve(family: str, folder: Path, *, on_gpu: bool = False, **options: Any) -> ResolvedModel:
    return resolve_model(make_model_config(family=family, checkpoint=str(folder), **options), on_gpu=on_gpu)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llava", {"is_encoder_decoder": True}, "decoder-only"),
        ("llava", {"text_config": {"model_type": "t5"}}, "decoder-only"),
        ("llava", {"vision_config": None}, "with a vision_config"),
        (
            "llava",
            {"vision_config": {"model_type": "pixtral"}},
            "clip_vision_model or siglip_vision_model, not 'pixtral'",
        ),
        ("llava", {"model_type": "mllama"}, "supports llava.* not 'mllama'; choose another"),
        ("causal_lm", {"architectures": None}, "names the architecture none"),
        ("causal_lm", {"architectures": "LlamaForCausalLM"}, "names the architecture none"),
        ("cross_encoder", {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, "but none for entailment"),
        ("cross_encoder", {"id2label": None}, "but none for entailment"),
        ("cross_encoder", {"id2label": {"0": "entailment"}}, "but none for entailment"),
        ("cross_encoder", {"id2label": ["entailment", "neutral"]}, "but none for entailment"),
        ("sentences", {"architectures": ["BertForMaskedLM"]}, "an encoder such as BertModel"),
    ],
)
def test_a_checkpoint_in_another_form_is_refused(
    saved_checkpoints: Path, tmp_path: Path, kind: str, fields: dict[str, Any], message: str
) -> None:
    shutil.copytree(saved_checkpoints / kind, tmp_path / "own")
    tiny.edit_json(tmp_path / "own" / "config.json", **fields)
    with pytest.raises(ModelError, match=message):
        resolve(KINDS[kind].family, tmp_path / "own")


def test_no_remedy_suggests_a_family_for_an_unsupported_architecture(saved_checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(saved_checkpoints / "causal_lm", tmp_path / "own")
    tiny.edit_json(tmp_path / "own" / "config.json", architectures=["WhisperForSpeech"], model_type="whisper")
    for family in [name for name, family in FAMILIES.items() if family.local and "draw" not in family.calls]:
        with pytest.raises(ModelError, match=r"; no model family serves such a checkpoint$"):
            resolve(family, tmp_path / "own")


# Models that think first


THINKING_TEMPLATE = tiny.QWEN_TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
HYBRID_TEMPLATE = tiny.QWEN_TEMPLATE.replace("assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif")


def save_template(folder: Path, template: str, file: str) -> None:
    """Save the chat template in `file`, one of the three files that may contain it."""
    if file.endswith(".jinja"):
        (folder / file).write_text(template)
    elif file == "chat_template.json":
        tiny.write_json(folder / file, {"chat_template": template})
    else:
        tiny.edit_json(folder / file, chat_template=template)


@pytest.mark.parametrize("engine", get_args(Engine))
@pytest.mark.parametrize("file", TEMPLATE_FILES)
def test_a_model_that_always_thinks_is_refused_and_a_model_that_may_skip_thinking_is_accepted(
    saved_checkpoints: Path, tmp_path: Path, file: str, engine: Engine
) -> None:
    shutil.copytree(saved_checkpoints / "qwen2_vl", tmp_path / "own")
    save_template(tmp_path / "own", HYBRID_TEMPLATE, file)
    resolve("vlm", tmp_path / "own", engine=engine)
    save_template(tmp_path / "own", THINKING_TEMPLATE, file)
    with pytest.raises(
        ModelError, match="own: a thinking model, which would be scored on the first token of a thought"
    ):
        resolve("vlm", tmp_path / "own", engine=engine)


@pytest.mark.parametrize(
    ("name", "thinks"), [("Kimi-VL-A3B-Thinking-2506", True), ("GLM-4.1V-9B-Thinking", True), ("rethinking-vl", False)]
)
def test_a_model_whose_name_contains_thinking_is_refused(
    saved_checkpoints: Path, tmp_path: Path, name: str, thinks: bool
) -> None:
    shutil.copytree(saved_checkpoints / "qwen2_vl", tmp_path / name)
    if not thinks:
        resolve("vlm", tmp_path / name)
        return
    with pytest.raises(ModelError, match="a thinking model"):
        resolve("vlm", tmp_path / name)


def test_an_architecture_that_only_vllm_supports_is_accepted_on_vllm(saved_checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(saved_checkpoints / "llava", tmp_path / "own")
    tiny.edit_json(tmp_path / "own" / "config.json", model_type="mllama")
    assert resolve("vlm", tmp_path / "own", engine="vllm").profile == CHAT_PROFILE


@pytest.mark.parametrize("profile", [PALIGEMMA_PROFILE, FUYU_PROFILE])
def test_a_model_that_only_reads_questions_is_refused_on_vllm(
    saved_checkpoints: Path, tmp_path: Path, profile: VqaProfile
) -> None:
    shutil.copytree(saved_checkpoints / "llava", tmp_path / "own")
    tiny.edit_json(tmp_path / "own" / "config.json", model_type=profile.name)
    assert resolve("vlm", tmp_path / "own").profile == profile
    with pytest.raises(ModelError, match="that does not occur in conversations; set engine=transformers"):
        resolve("vlm", tmp_path / "own", engine="vllm")


def test_both_names_of_a_vision_language_models_preprocessor_are_accepted(
    saved_checkpoints: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved_checkpoints / "llava", tmp_path / "own")
    (tmp_path / "own" / "preprocessor_config.json").rename(tmp_path / "own" / "processor_config.json")
    assert resolve("vlm", tmp_path / "own").profile == resolve("vlm", saved_checkpoints / "llava").profile


@pytest.mark.parametrize("kind", ["cross_encoder", "sentences"])
def test_small_models_are_float32_on_a_gpu_too_unless_set(saved_checkpoints: Path, kind: str) -> None:
    family = KINDS[kind].family
    assert resolve(family, saved_checkpoints / kind, on_gpu=True).dtype == "float32"
    assert resolve(family, saved_checkpoints / kind, on_gpu=True, dtype="bfloat16").dtype == "bfloat16"


# Kinds of VQA model


def test_padding_is_part_of_the_key_of_llava_1_5_and_not_of_other_chat_models(saved_checkpoints: Path) -> None:
    released, processor = (
        resolve("vlm", saved_checkpoints / "llava", padding=padding) for padding in ("released", "processor")
    )
    assert (released.list_key_properties()["padding"], processor.list_key_properties()["padding"]) == (
        "released",
        "processor",
    )
    plain, other = (
        resolve("vlm", saved_checkpoints / "qwen2_vl", padding=padding) for padding in ("released", "processor")
    )
    assert plain.list_key_properties() == other.list_key_properties()
    assert "padding" not in plain.list_key_properties()


def test_the_vqa_profile_is_found_without_reading_any_weights(saved_checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(saved_checkpoints / "llava", tmp_path / "own")
    (tmp_path / "own" / "model.safetensors").unlink()
    assert find_vqa_profile(make_model_config(family="vlm", checkpoint=str(tmp_path / "own"))) == LLAVA_1_5_PROFILE


# Engines


def test_vllm_options_do_not_affect_a_model_that_runs_on_transformers(saved_checkpoints: Path) -> None:
    """A model's file may contain vLLM options even if the sweep uses the other engine."""
    folder, options = saved_checkpoints / "causal_lm", {"max_model_len": 8192}
    model = resolve("causal_lm", folder, engine="transformers", engine_options=options)
    assert model.list_key_properties()["engine_options"] == {}
    assert model.list_key_properties() == resolve("causal_lm", folder).list_key_properties()


def test_the_engine_and_options_that_change_results_are_part_of_a_models_identity(saved_checkpoints: Path) -> None:
    folder = saved_checkpoints / "causal_lm"
    plain = resolve("causal_lm", folder).list_key_properties()
    served = resolve("causal_lm", folder, engine="vllm").list_key_properties()
    fast = {"tensor_parallel_size": 2, "gpu_memory_utilization": 0.5, "enforce_eager": True, "max_num_seqs": 9}
    longer = {"max_model_len": 99, "mm_processor_kwargs": {"max_pixels": 99}}
    assert served != plain
    assert resolve("causal_lm", folder, engine="vllm", engine_options=fast).list_key_properties() == served
    assert resolve("causal_lm", folder, engine="vllm", engine_process=True).list_key_properties() == served
    changed = resolve("causal_lm", folder, engine="vllm", engine_options=fast | longer)
    assert changed.list_key_properties() == served | {"engine_options": longer}
    assert json.loads(json.dumps(changed.list_key_properties())) == changed.list_key_properties()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "other"}, "engine_options.model: this option cannot be set; set the model's `checkpoint`"),
        ({"trust_remote_code": True}, "engine_options.trust_remote_code: .* a checkpoint's code is never run"),
        (
            {"hf_overrides": {"a": 1}},
            "engine_options.hf_overrides: .* edit the config.json in a copy of the checkpoint",
        ),
        ({"seed": 1}, "each request has its own seed"),
        ({"worker_cls": "mine.Worker"}, "engine_options.worker_cls: this option cannot be set"),
        ({"max_model_length": 9}, "did you mean max_model_len"),
        ({"distributed_executor_backend": "mine.Executor"}, "expected a number, .* got 'mine.Executor'"),
        ({"quantization": "/tmp/code"}, "expected a number"),
        ({"mm_processor_kwargs": {"trust_remote_code": True}}, "expected a number"),
        ({"mm_processor_kwargs": {"max_pixels": "a.b"}}, "expected a number"),
        ({"max_model_len": [1]}, "expected a number"),
    ],
)
def test_an_engine_option_that_could_run_code_or_change_the_model_is_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model_config(family="causal_lm", checkpoint="x", engine="vllm", engine_options=options)


def test_an_engine_in_its_own_process_has_only_one() -> None:
    with pytest.raises(ConfigError, match=r"engine_process: .*data_parallel_size=2 .*; leave it out"):
        make_model_config(
            family="vlm", checkpoint="x", engine="vllm", engine_process=True, engine_options={"data_parallel_size": 2}
        )


SERVICE_FAMILIES = " and ".join(name for name, family in FAMILIES.items() if issubclass(family.config, ServiceModel))
"""Model families that run at a service, as listed in error messages."""


@pytest.mark.parametrize(
    ("family", "option", "having"),
    [
        ("nli", {"engine": "vllm"}, "causal_lm and vlm"),
        ("clip", {"engine_options": {"max_model_len": 9}}, "causal_lm and vlm"),
        ("causal_lm", {"endpoint": "http://host/v1"}, SERVICE_FAMILIES),
        ("causal_lm", {"concurrency": 2}, SERVICE_FAMILIES),
        ("causal_lm", {"max_retries": 2}, SERVICE_FAMILIES),
        ("vlm", {"key_variable": "KEY"}, SERVICE_FAMILIES),
        ("vlm", {"vision_tower": "clip"}, "clip_flant5"),
        ("clip", {"vision_tower_revision": "main"}, "clip_flant5"),
        ("clip", {"padding": "processor"}, "clip_flant5 and vlm"),
        ("clip", {"system": ""}, "clip_flant5 and vlm"),
        ("openai", {"tokenizer": "x"}, " and ".join(name for name, other in FAMILIES.items() if other.local)),
    ],
)
def test_an_option_of_another_family_is_refused_and_its_default_is_not(
    family: str, option: dict[str, Any], having: str
) -> None:
    (name,) = option
    default = getattr(make_model_config(family=having.split()[0], checkpoint="x"), name)
    assert make_model_config(family=family, checkpoint="x", **{name: default}) == make_model_config(
        family=family, checkpoint="x"
    )
    message = f"^model {name}: this option belongs to {having}; remove it from this {family} model$"
    with pytest.raises(ConfigError, match=message):
        make_model_config(family=family, checkpoint="x", **option)


# The table


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_is_read_as_the_options_of_its_family(family: str) -> None:
    adapter = TypeAdapter(AnyModel)
    read = adapter.validate_python({"family": family, "checkpoint": "x", "pair_batch": 3}, extra="forbid")
    assert read == make_model_config(family=family, checkpoint="x", pair_batch=3)
    assert type(read) is FAMILIES[family].config
    with pytest.raises(ValidationError, match="batch_pair"):
        adapter.validate_python({"family": family, "checkpoint": "x", "batch_pair": 3}, extra="forbid")
    with pytest.raises(ConfigError, match="model batch_pair: not a model option; did you mean pair_batch"):
        make_model_config(family=family, checkpoint="x", batch_pair=3)


def test_every_call_is_served_by_a_family() -> None:
    served = set().union(*(family.calls for family in FAMILIES.values()))
    assert served | {"draw"} == set(get_args(Call)), "the generation plugin has the families that draw"


def test_all_models_except_services_are_local() -> None:
    """A pool assigns a GPU to local models only."""
    assert [name for name in FAMILY_LOCATIONS if not FAMILIES[name].local] == ["openai"]
