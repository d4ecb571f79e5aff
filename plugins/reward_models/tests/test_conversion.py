"""Released weights are converted to folders that families can load and that reproduce the original scores.

Code in a pickle is never run.
"""

import json
import os
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from plugins.reward_models.tests import tiny_rewards
from plugins.reward_models.tests.references import score_editreward_qwen3
from plumbline.jobs.command import run_job
from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import Measure, Pair
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.clip import rename_weight
from plumbline.operators.models.resolution import resolve_model
from plumbline.plugins.reward_models import conversion
from plumbline.plugins.reward_models.conversion import ConvertConfig, convert
from plumbline.plugins.reward_models.jobs.convert import COMMAND, main
from tests.bench_of import UNJUDGED_OPTIONS, run_bench, write_rows
from tests.operators import tiny
from tests.operators.models.alike import IMAGE_BEFORE, IMAGES, TEXTS
from tests.operators.tiny import rewards

PAIRS = [Pair(image, text) for image in range(len(IMAGES)) for text in TEXTS]


def compute_similarities(family: str, folder: Path, measure: Measure) -> list[float]:
    model = load(resolve_model(make_model_config(family=family, checkpoint=str(folder)), on_gpu=False), "similarity")
    features = model.encode([model.preprocess(picture) for picture in IMAGES])
    return [row.similarity for row in model.compare(features, PAIRS, measure)]


def convert_release(folder: Path, **options: Any) -> Path:
    convert(ConvertConfig(output=str(folder), **{name: str(value) for name, value in options.items()}))
    return folder


@pytest.fixture
def clip_base(tmp_path: Path) -> Path:
    return rewards.save_open_clip(tmp_path / "base", seed=5)


def make_clip_weights(**others: Any) -> dict[str, Any]:
    return {**rewards.make_open_clip().state_dict(), **others}


def save_weights(file: Path, weights: Any) -> Path:
    torch.save(weights, file)
    return file


def test_a_converted_open_clip_training_checkpoint_has_the_scores_of_its_network(
    clip_base: Path, tmp_path: Path
) -> None:
    weights = {f"module.{name}": tensor for name, tensor in make_clip_weights().items()}
    file = save_weights(
        tmp_path / "HPS.pt", {"epoch": 3, "name": "run", "state_dict": weights, "optimizer": {"state": {}}}
    )
    made = convert_release(tmp_path / "made", release="open_clip", weights=file, base=clip_base)
    reference = compute_similarities("open_clip", rewards.save_open_clip(tmp_path / "reference"), "cosine")
    assert compute_similarities("open_clip", made, "cosine") == pytest.approx(reference, abs=1e-6)
    assert compute_similarities("open_clip", clip_base, "cosine") != pytest.approx(reference, abs=1e-2), (
        "the base has other weights"
    )


def test_an_open_clip_saved_by_a_package_that_wraps_it_is_converted(clip_base: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({f"model.{name}": tensor.contiguous() for name, tensor in make_clip_weights().items()}, file)
    made = convert_release(tmp_path / "made", release="open_clip", weights=file, base=clip_base)
    reference = compute_similarities("open_clip", rewards.save_open_clip(tmp_path / "reference"), "cosine")
    assert compute_similarities("open_clip", made, "cosine") == pytest.approx(reference, abs=1e-6)


def test_a_converted_pyramid_clip_has_the_original_scores(clip_base: Path, tmp_path: Path) -> None:
    tiny.write_json(clip_base / "open_clip_config.json", rewards.make_pyramid_clip_fields())
    weights = {f"module.{name}": tensor for name, tensor in rewards.make_pyramid_clip().state_dict().items()}
    file = save_weights(tmp_path / "release.pth.tar", {"epoch": 1, "state_dict": weights})
    made = convert_release(tmp_path / "made", release="pyramid_clip", weights=file, base=clip_base)
    reference = compute_similarities("pyramid_clip", rewards.save_pyramid_clip(tmp_path / "reference"), "cosine")
    assert compute_similarities("pyramid_clip", made, "cosine") == pytest.approx(reference, abs=1e-6)


BLIP_NAME_PATTERNS = (
    (r"^vision_model\.embeddings\.class_embedding$", "visual_encoder.cls_token"),
    (r"^vision_model\.embeddings\.position_embedding$", "visual_encoder.pos_embed"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "visual_encoder.patch_embed.proj."),
    (r"^vision_model\.post_layernorm\.", "visual_encoder.norm."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.self_attn\.projection\.", r"visual_encoder.blocks.\1.attn.proj."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.self_attn\.", r"visual_encoder.blocks.\1.attn."),
    (r"^vision_model\.encoder\.layers\.(\d+)\.layer_norm", r"visual_encoder.blocks.\1.norm"),
    (r"^vision_model\.encoder\.layers\.", "visual_encoder.blocks."),
    (r"^reward_head\.", "mlp."),
    (r"^(?!mlp\.)", "blip."),
)
"""Patterns and replacements that convert transformers' weight names to those in ImageReward's release."""


def rename_as_released(weights: Mapping[str, torch.Tensor], names: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return {rename_weight(name, names): tensor for name, tensor in weights.items()}


def test_a_converted_imagereward_has_the_original_scores(tmp_path: Path) -> None:
    reference = rewards.save_imagereward(tmp_path / "reference")
    weights = rename_as_released(load_file(reference / "model.safetensors"), BLIP_NAME_PATTERNS)
    assert "blip.visual_encoder.blocks.1.attn.qkv.weight" in weights and "mlp.layers.7.bias" in weights
    unused = {"blip.vision_proj.weight": torch.zeros(2, 2), "blip.text_proj.bias": torch.zeros(2)}
    unused["blip.text_encoder.embeddings.position_ids"] = torch.arange(4)[None]
    base = rewards.save_blip_itm(tmp_path / "base", seed=5, side=64)
    file = save_weights(tmp_path / "ImageReward.pt", weights | unused)
    made = convert_release(tmp_path / "made", release="imagereward", weights=file, base=base)
    expected = compute_similarities("imagereward", reference, "reward")
    assert compute_similarities("imagereward", made, "reward") == pytest.approx(expected, abs=1e-5)


def test_a_converted_hpsv3_has_the_original_scores_and_its_source_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "PIXELS_PER_IMAGE", 1024)
    reference = tiny_rewards.save_hpsv3(tmp_path / "reference")
    tiny.edit_json(reference / "preprocessor_config.json", min_pixels=1024, max_pixels=1024)
    older = ((r"^model\.visual\.", "visual."), (r"^model\.language_model\.", "model."))
    weights = rename_as_released(load_file(reference / "model.safetensors"), older)
    save_file(weights | {"lm_head.weight": torch.zeros(3, 2)}, tmp_path / "HPSv3.safetensors")
    source = tmp_path / "data_collator_qwen.py"
    before, after = tiny_rewards.INSTRUCTION.split("The rating")
    source.write_text(
        f"import os\nos.system('touch {tmp_path}/ran')\nraise SystemExit\n"
        f'INSTRUCTION = """{before}"""\nprompt_with_special_token = """The rating{after}"""\n'
    )
    made = convert_release(
        tmp_path / "made",
        release="hpsv3",
        weights=tmp_path / "HPSv3.safetensors",
        base=tiny.save_qwen2_vl(tmp_path / "base"),
        instruction=source,
    )
    assert not (tmp_path / "ran").exists()
    assert (made / "instruction.txt").read_text() == tiny_rewards.INSTRUCTION
    expected = compute_similarities("hpsv3", reference, "reward")
    assert compute_similarities("hpsv3", made, "reward") == pytest.approx(expected, abs=1e-5)


def write_editreward_release(folder: Path, *, kind: str) -> dict[str, Any]:
    """Write tiny weights as EditReward's training saves them, their base and the prompts; return convert's options."""
    reference = tiny_rewards.save_editreward(folder / "reference", kind=kind)
    following, quality = (text.split("\nThe rating")[0] for text in tiny_rewards.EDIT_INSTRUCTIONS)
    rating = tiny_rewards.EDIT_INSTRUCTIONS[0].removeprefix(following)
    (folder / "prompts.py").write_text(
        f"raise SystemExit\nINSTRUCTION_EDIT_FOLLOWING = {following!r}\nINSTRUCTION_EDIT_QUALITY = {quality!r}\n"
    )
    (folder / "data_collator_qwen_edit.py").write_text(f"prompt_with_special_token = {rating!r}\n")
    weights = {**load_file(reference / "model.safetensors"), "lm_head.weight": torch.zeros(3, 2)}
    return {
        "release": "editreward",
        "weights": save_weights(folder / "model.pth", weights),
        "base": tiny.save_qwen2_vl(folder / "base", kind=kind),
        "instruction": folder / "prompts.py",
    }


def test_a_converted_editreward_has_the_original_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "PIXELS_PER_IMAGE", 1024)
    given = write_editreward_release(tmp_path, kind="qwen2_5_vl")
    reference = tmp_path / "reference"
    tiny.edit_json(reference / "preprocessor_config.json", min_pixels=1024, max_pixels=1024)
    made = convert_release(tmp_path / "made", **given)
    texts = [(made / f"{name}.txt").read_text() for name in ("instruction_following", "visual_quality")]
    assert tuple(texts) == tiny_rewards.EDIT_INSTRUCTIONS
    expected = compute_similarities("editreward", reference, "reward")
    assert compute_similarities("editreward", made, "reward") == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ModelError, match=r"expected a Qwen2.5-VL or Qwen3-VL, found the model type qwen2_vl; set"):
        convert_release(tmp_path / "again", **given | {"base": tiny.save_qwen2_vl(tmp_path / "other")})
    (tmp_path / "data_collator_qwen_edit.py").unlink()
    with pytest.raises(ModelError, match=r"expected the published file data_collator_qwen_edit\.py"):
        convert_release(tmp_path / "again", **given)


def test_a_sweep_with_a_converted_editreward_on_qwen3_vl_has_the_original_scores(tmp_path: Path) -> None:
    given = write_editreward_release(tmp_path, kind="qwen3_vl")
    given["output"] = tmp_path / "made"
    assert run_job(COMMAND, main, [f"{name}={value}" for name, value in given.items()]) == 0
    ids = [{"prompt_id": f"p{number}"} for number in range(len(IMAGES))]
    rows = [
        {**row, "image": tiny.encode_image(image), "before": tiny.encode_image(IMAGE_BEFORE)}
        for row, image in zip(ids, IMAGES, strict=True)
    ]
    write_rows(tmp_path / "images/editor/00000.parquet", rows)
    write_rows(tmp_path / "prompts.parquet", [{**row, "text": text} for row, text in zip(ids, TEXTS, strict=True)])
    source = "benchmark.columns.source=before"
    model = ("+model@models.editreward=editreward", f"models.editreward.checkpoint={tmp_path}/made")
    finished = run_bench(tmp_path, tmp_path / "store", *UNJUDGED_OPTIONS, "metric=[editreward]", *model, source)
    scores = {row["prompt_id"]: row["score"] for row in finished.results.read_scores().to_pylist()}
    with torch.no_grad():
        expected = {
            row["prompt_id"]: score_editreward_qwen3(tmp_path / "made", Pair(number, text), "reward").numbers[0]
            for number, (row, text) in enumerate(zip(ids, TEXTS, strict=True))
        }
    assert scores == pytest.approx(expected, abs=1e-4)


def save_released_videoalign(folder: Path, weights: Mapping[str, torch.Tensor], **settings: Any) -> Path:
    """Save VideoAlign's weights in the form in which they are published, and return the file.

    The weights have peft's names, the adapters are not merged, and the settings are in the parent folder.
    """
    older = ((r"^model\.visual\.", "visual."), (r"^model\.language_model\.", "model."))
    named = rename_as_released(weights, older) | {"lm_head.weight": torch.zeros(3, 2)}
    for name in [name for name in named if name.endswith("proj.weight") and ".layers." in name]:
        layer, whole = name.removesuffix(".weight"), named.pop(name)
        down, up = torch.randn(2, whole.shape[1]), torch.randn(whole.shape[0], 2)
        named |= {f"{layer}.lora_A.default.weight": down, f"{layer}.lora_B.default.weight": up}
        named[f"{layer}.base_layer.weight"] = whole - 1.5 * up @ down
        if (bias := named.pop(f"{layer}.bias", None)) is not None:
            named[f"{layer}.base_layer.bias"] = bias
    data = {"fps": 2.0, "num_frames": None, "eval_dim": ["VQ", "MQ", "TA"], "sample_type": "uniform"}
    data |= {"prompt_template_type": "detailed_special", "max_frame_pixels": tiny_rewards.FRAME_PIXELS, **settings}
    scores = {
        f"{dim}_{name}": values[place]
        for place, dim in enumerate(data["eval_dim"])
        for name, values in (("mean", tiny_rewards.REWARD_MEANS), ("std", tiny_rewards.REWARD_STDS))
    }
    adapter = {"lora_alpha": 3, "lora_r": 2, "use_rslora": False}
    (folder / "checkpoint-7").mkdir(parents=True)
    tiny.write_json(
        folder / "model_config.json", {"data_config": data, "peft_lora_config": adapter, "inference_config": scores}
    )
    released = {f"base_model.model.{name}": tensor for name, tensor in named.items()}
    return save_weights(folder / "checkpoint-7" / "model.pth", released)


def test_a_converted_videoalign_has_the_original_scores(tmp_path: Path) -> None:
    reference = tiny_rewards.save_videoalign(tmp_path / "reference")
    weights = load_file(reference / "model.safetensors")
    source = tmp_path / "prompt_template.py"
    template = f"DETAILED_PROMPT_WITH_SPECIAL_TOKEN = {tiny_rewards.VIDEO_INSTRUCTION!r}"
    source.write_text(f"raise SystemExit\n{template}\nSIMPLE_PROMPT = ''\n")
    given = {"release": "videoalign", "base": tiny.save_qwen2_vl(tmp_path / "base"), "instruction": source}
    made = convert_release(tmp_path / "made", weights=save_released_videoalign(tmp_path / "release", weights), **given)
    assert (made / "instruction.txt").read_text() == tiny_rewards.VIDEO_INSTRUCTION
    expected = compute_similarities("videoalign", reference, "reward")
    assert compute_similarities("videoalign", made, "reward") == pytest.approx(expected, abs=1e-3)
    other = save_released_videoalign(tmp_path / "other", weights, sample_type="multi_pts")
    with pytest.raises(
        ModelError, match=r"model_config.json: sample_type='multi_pts', but only the published settings"
    ):
        convert_release(tmp_path / "again", weights=other, **given)
    with pytest.raises(ModelError, match=r"model_config.json: expected VideoAlign's settings, found no file; keep"):
        convert_release(tmp_path / "again", weights=save_weights(tmp_path / "model.pth", weights), **given)


class CommandOnUnpickle:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.file}",)


@pytest.mark.parametrize("how", ["among the weights", "as a plain pickle"])
def test_a_pickle_with_code_is_refused_and_none_of_its_code_runs(how: str, clip_base: Path, tmp_path: Path) -> None:
    file, ran = tmp_path / "evil.pt", tmp_path / "ran"
    if how == "among the weights":
        torch.save({"state_dict": make_clip_weights(evil=CommandOnUnpickle(ran))}, file)
    else:
        file.write_bytes(pickle.dumps(CommandOnUnpickle(ran)))
    with pytest.raises(ModelError, match=r"found other objects .*; none of its code was executed") as refused:
        convert_release(tmp_path / "made", release="open_clip", weights=file, base=clip_base)
    assert "\n" not in str(refused.value)
    assert not ran.exists() and not (tmp_path / "made").exists()
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            {"ln_final.weight": None},
            "lacks text_model.final_layer_norm.weight; check that these are",
        ),
        ({"head.weight": torch.zeros(2)}, "also has head.weight; check that these are the published weights"),
        ({"logit_scale": torch.zeros(2)}, r"logit_scale has the shape \(2,\), but \(\) in `base`"),
    ],
)
def test_weights_that_do_not_match_the_base_are_refused_by_name(
    others: dict[str, Any], message: str, clip_base: Path, tmp_path: Path
) -> None:
    weights = {name: tensor for name, tensor in make_clip_weights(**others).items() if tensor is not None}
    file = save_weights(tmp_path / "clip.pt", weights)
    with pytest.raises(ModelError, match=message):
        convert_release(tmp_path / "made", release="open_clip", weights=file, base=clip_base)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not weights", "expected a weights file, found|expected a pickle of tensors, found"),
        (
            {"state_dict": {"epoch": 3}},
            "expected tensors by name, at the top level or under state_dict or model, found none",
        ),
        ([torch.zeros(2)], "expected a mapping from names to weights, found a list"),
    ],
)
def test_a_file_without_weights_is_refused(content: Any, message: str, clip_base: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.pt"
    file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
    with pytest.raises(ModelError, match=message):
        convert_release(tmp_path / "made", release="open_clip", weights=file, base=clip_base)


def test_a_base_in_another_layout_and_a_source_without_the_instruction_are_refused(tmp_path: Path) -> None:
    file = save_weights(tmp_path / "clip.pt", make_clip_weights())
    with pytest.raises(ModelError, match=re.escape("has no open_clip_config.json; choose a base in OpenCLIP's layout")):
        convert_release(
            tmp_path / "made", release="open_clip", weights=file, base=rewards.save_pickscore(tmp_path / "pickscore")
        )
    (tmp_path / "source.py").write_text("INSTRUCTION = 'rate {text_prompt}'\n")
    for source, message in (("source.py", "expected INSTRUCTION and prompt_with"), ("none.py", "set instruction")):
        given = {"release": "hpsv3", "base": tmp_path / "pickscore", "instruction": tmp_path / source}
        with pytest.raises(ModelError, match=message):
            convert_release(tmp_path / "made", weights=file, **given)


def test_the_job_lists_the_written_files_and_refuses_an_existing_output(
    clip_base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_weights(tmp_path / "clip.pt", make_clip_weights())
    given = ["release=open_clip", f"weights={file}", f"base={clip_base}", f"output={tmp_path}/made"]
    assert run_job(COMMAND, main, given) == 0
    told = capsys.readouterr().out
    assert f"{tmp_path}/made/open_clip_model.safetensors" in told and "tokenizer.json" in told
    assert json.loads((tmp_path / "made/open_clip_config.json").read_text()) == rewards.make_open_clip_fields(
        quick=False
    )
    assert run_job(COMMAND, main, given) == 1
    assert "already exists; choose another output" in capsys.readouterr().err
    assert run_job(COMMAND, main, [*given[:1], "weights=none.pt", *given[2:3], "output=other"]) == 1
    assert "none.pt: expected the published weights, found no file; download them first" in capsys.readouterr().err
