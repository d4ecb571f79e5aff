"""Images are generated only once, by a pipeline or a service; failures become error rows that a sweep reports."""

import base64
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from plugins.generation.tests.pipelines import PIPELINE_BUILDERS, save_pipeline
from plumbline.pipelines.base.storage import StorageConfig
from tests.commands import run_for_output, run_refused
from tests.histories.damage import ROT_WAYS, damage_content, damage_file
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_error
from tests.operators.models.hub_server import serve_hub

ROOT = Path(__file__).parents[3]
TEXT_BY_PROMPT = {"p1": "a red circle", "p2": "two blue squares", "p3": "a green star"}
SMALL_OPTIONS = ("steps=1", "size=32x32", "cluster=here")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pipeline(tmp_path_factory.mktemp("checkpoints") / "tiny-sd")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    started = Server()
    yield started
    started.close()


def write_prompts_file(folder: Path, *ids: str) -> Path:
    file = folder / "prompts.csv"
    file.write_text("".join(["prompt_id,text\n", *(f"{one},{TEXT_BY_PROMPT[one]}\n" for one in ids)]))
    return file


def list_arguments(folder: Path, *more: str) -> tuple[str, ...]:
    return ("benchmark=own", f"prompts={folder}/prompts.csv", f"images={folder}/images", *more)


def read_images(folder: Path) -> dict[str, dict[str, Any]]:
    table = pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("*.parquet")))
    rows = {row["image_id"]: row for row in table.to_pylist()}
    assert len(rows) == len(table), "no image occurs twice"
    return rows


def decode_pixels(row: dict[str, Any]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(row["image"])).convert("RGB"), dtype=np.int16)


def sweep_images(folder: Path, *more: str, code: int = 0) -> dict[str, dict[str, Any]]:
    store = folder / "store"
    run_for_output(
        "sweep", "sweep=own_images",
        *list_arguments(folder, f"store={store}", "metric=edge_density", "cluster=here", *more), code=code,
    )  # fmt: skip
    run = (store / "runs/latest").read_text().strip()
    return {row["image_id"]: row for row in pq.read_table(store / "runs" / run / "scores.parquet").to_pylist()}


def test_only_a_new_prompts_images_are_generated_and_a_sweep_reads_all_images(tmp_path: Path, checkpoint: Path) -> None:
    write_prompts_file(tmp_path, "p1", "p2")
    job = list_arguments(tmp_path, f"image_model.checkpoint={checkpoint}", "name=tiny", "cfg=3", *SMALL_OPTIONS)
    assert "2 images, 2 of them new" in run_for_output("generate", *job, "image_model.image_batch=1")
    first = read_images(tmp_path / "images/tiny")
    assert set(first) == {"p1-0", "p2-0"}
    settings = {name: first["p1-0"][name] for name in ("prompt", "cfg", "steps", "size", "sampler", "checkpoint")}
    assert settings == {
        "prompt": "a red circle", "cfg": 3.0, "steps": 1, "size": "32x32", "sampler": "DDIMScheduler",
        "checkpoint": str(checkpoint),
    }  # fmt: skip
    write_prompts_file(tmp_path, "p3", "p1", "p2")  # p3 now comes first
    assert "6 images, 4 of them new" in run_for_output("generate", *job, "seeds=2")
    second = read_images(tmp_path / "images/tiny")
    assert set(second) == {f"{one}-{number}" for one in TEXT_BY_PROMPT for number in (0, 1)}
    assert all(second[one] == first[one] for one in first), "existing images are unchanged"
    assert len({row["seed"] for row in second.values()}) == 6
    assert "6 images, 0 of them new" in run_for_output("generate", *job, "seeds=2")
    scored = sweep_images(tmp_path)
    assert set(scored) == set(second) and all(row["score"] is not None for row in scored.values())


def test_an_image_does_not_depend_on_its_batch_or_order(tmp_path: Path, checkpoint: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder, ids, batch in ((alone, ("p1", "p2", "p3"), 1), (together, ("p3", "p2", "p1"), 3)):
        folder.mkdir()
        write_prompts_file(folder, *ids)
        job = list_arguments(
            folder, f"image_model.checkpoint={checkpoint}", f"image_model.image_batch={batch}", *SMALL_OPTIONS
        )
        run_for_output("generate", *job, "sampler=EulerAncestralDiscreteScheduler", "steps=2")
    ones, others = read_images(alone / "images/tiny-sd"), read_images(together / "images/tiny-sd")
    assert all(np.abs(decode_pixels(ones[one]) - decode_pixels(others[one])).max() <= 1 for one in ones)
    assert np.abs(decode_pixels(ones["p1-0"]) - decode_pixels(ones["p2-0"])).max() > 10


def test_a_black_image_is_an_error_row_that_a_sweep_reports(tmp_path: Path, checkpoint: Path) -> None:
    broken = tmp_path / "black"
    subprocess.run(["cp", "-r", checkpoint, broken], check=True)
    weights = broken / "vae/diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    tensors["decoder.conv_out.weight"].zero_()
    tensors["decoder.conv_out.bias"].fill_(-9.0)
    save_file(tensors, weights, {"format": "pt"})
    write_prompts_file(tmp_path, "p1")
    job = list_arguments(tmp_path, f"image_model.checkpoint={broken}", *SMALL_OPTIONS)
    assert "1 images could not be generated: 1 blank_picture" in run_for_output("generate", *job, code=1).replace(
        "\n", " "
    )
    (row,) = read_images(tmp_path / "images/black").values()
    assert row["image"] is None and row["error"]["kind"] == "blank_picture"
    assert "0 of them new" in run_for_output("generate", *job, code=1), "an image that failed is not generated again"
    (scored,) = sweep_images(tmp_path, code=1).values()
    assert scored["score"] is None
    assert scored["error"]["kind"] == "blank_picture" and "entirely black" in scored["error"]["message"]


def test_the_memory_space_and_time_that_images_need_are_shown_before_they_are_generated(
    tmp_path: Path, checkpoint: Path
) -> None:
    write_prompts_file(tmp_path, "p1", "p2")
    job = list_arguments(tmp_path, f"image_model.checkpoint={checkpoint}", "steps=1", "cluster=here")
    planned = run_for_output("generate", *job, "dry_run=true")
    weights = [load_file(file) for file in checkpoint.glob("*/*.safetensors")]
    count = sum(tensor.numel() for tensors in weights for tensor in tensors.values())
    assert "to generate: 2 of 2 images of 32x32 pixels, about 3.7 kB (" in planned, "the pipeline's own size"
    assert f"for {count:,} weights in float32 (counted in the headers" in planned
    assert "time: unknown until the first images" in planned
    run_for_output("generate", *job)
    assert "to generate" not in run_for_output("generate", *job, "dry_run=true"), "nothing is missing"
    again = run_for_output("generate", *job, "dry_run=true", "name=again", "seeds=2")
    assert "to generate: 4 of 4 images" in again
    assert "if an image takes as long as the last 2 images of tiny-sd (" in again


def test_a_plan_of_a_hub_pipeline_names_the_download_and_counts_the_weights_in_their_headers(
    tmp_path: Path, checkpoint: Path
) -> None:
    write_prompts_file(tmp_path, "p1")
    local = list_arguments(tmp_path, f"image_model.checkpoint={checkpoint}", "dry_run=true", "cluster=here")
    (memory,) = (line for line in run_for_output("generate", *local).splitlines() if line.startswith("memory: "))
    with serve_hub({"acme/tiny-sd": checkpoint}) as hub:
        words = list_arguments(tmp_path, "image_model.checkpoint=acme/tiny-sd", "dry_run=true", "cluster=here")
        ended = subprocess.run(
            [sys.executable, "-m", "jobs.generate", *words], cwd=ROOT, capture_output=True, text=True,
            env={**os.environ, **hub.environment(tmp_path / "hf")}, check=True,
        )  # fmt: skip
    size = int(re.findall(r"^downloads acme/tiny-sd: (\d+) bytes$", ended.stdout, re.MULTILINE)[0])
    weights = [file.stat().st_size for file in checkpoint.glob("*/*.safetensors")]
    assert sum(weights) < size <= sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    assert memory in ended.stdout and "2 images" not in ended.stdout and "32x32 pixels" in ended.stdout
    served = [count for name, count in hub.served.items() if name.endswith(".safetensors")]
    assert sum(served) < sum(weights), "only headers were read"


def test_images_that_do_not_fit_on_the_disk_are_refused_before_any_is_generated(
    tmp_path: Path, checkpoint: Path
) -> None:
    write_prompts_file(tmp_path, "p1")
    job = list_arguments(tmp_path, f"image_model.checkpoint={checkpoint}", "size=99999x99999", "seeds=5000")
    line = run_refused("generate", *job, "cluster=here", code=1)
    assert line.startswith(f"error: {tmp_path}/images/tiny-sd: 5,000 images of 99999x99999 pixels need about 90.0 TB")
    assert line.endswith(
        "free some space, set another folder with images=FOLDER, or generate fewer images with limit=N"
    )


def test_a_generator_name_with_images_is_refused_for_other_weights_or_settings(
    tmp_path: Path, checkpoint: Path
) -> None:
    write_prompts_file(tmp_path, "p1")
    other = save_pipeline(tmp_path / "other", seed=1)
    keep = (*list_arguments(tmp_path, "name=tuesday", *SMALL_OPTIONS), "pictures.replace=false")
    run_for_output("generate", f"image_model.checkpoint={checkpoint}", *keep)
    first = read_images(tmp_path / "images/tuesday")
    line = run_refused("generate", f"image_model.checkpoint={other}", *keep, code=1)
    assert (
        f"{tmp_path}/images/tuesday: the images of tuesday were generated by other weights (from {checkpoint})" in line
    )
    line = run_refused("generate", f"image_model.checkpoint={checkpoint}", *keep, "steps=2", code=1)
    assert "were generated with other settings, another LoRA or another precision" in line
    assert line.endswith("with name=NAME, or set pictures.replace=true to generate them again")
    moved = tmp_path / "moved"
    shutil.copytree(checkpoint, moved)
    assert "0 of them new" in run_for_output("generate", f"image_model.checkpoint={moved}", *keep), "the same weights"
    assert read_images(tmp_path / "images/tuesday") == first


def _remove_index(folder: Path) -> None:
    (folder / "model_index.json").unlink()


def _pickle_weights(folder: Path) -> None:
    weights = folder / "unet/diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))


def _truncate_weights(folder: Path) -> None:
    weights = folder / "vae/diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def _add_custom_code(folder: Path) -> None:
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace('"diffusers",\n    "UNet2D', '"evil",\n    "UNet2D'))
    (folder / "unet/evil.py").write_text("raise SystemExit")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_remove_index, "no model_index.json, so it is not a diffusers pipeline; name the folder that contains it"),
        (
            _pickle_weights,
            "only pickled .bin weights, which are never loaded; if you trust them, load the pipeline yourself and",
        ),
        (_truncate_weights, "or truncated; download the checkpoint again"),
        (_add_custom_code, "names Python code from the checkpoint, which is never run"),
    ],
)
def test_an_unsafe_or_incomplete_pipeline_is_refused_in_one_line(
    damage: Any, says: str, tmp_path: Path, checkpoint: Path
) -> None:
    subprocess.run(["cp", "-r", checkpoint, tmp_path / "bad"], check=True)
    damage(tmp_path / "bad")
    write_prompts_file(tmp_path, "p1")
    line = run_refused("generate", *list_arguments(tmp_path, f"image_model.checkpoint={tmp_path}/bad", *SMALL_OPTIONS))
    assert says in line and str(tmp_path / "bad") in line


def make_png(side: int = 32, *, blank: bool = False) -> str:
    image = Image.new("RGB", (side, side), "white")
    if not blank:
        image.paste("red", (4, 4, 20, 20))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def make_answer(encoded: str) -> Answer:
    return Answer(body={"created": 0, "data": [{"b64_json": encoded}]})


def list_service_arguments(folder: Path, server: Server, *more: str) -> tuple[str, ...]:
    return list_arguments(
        folder, "image_model=images_api", "image_model.checkpoint=painter", f"image_model.endpoint={server.url}",
        f"image_model.key_variable={KEY_VARIABLE}", "image_model.max_retries=0", "image_model.concurrency=1",
        "cluster=here",
        *more,
    )  # fmt: skip


def test_a_services_refusal_is_final_and_temporary_errors_are_retried(tmp_path: Path, server: Server) -> None:
    refused = Answer(400, {"error": {"message": "not that", "code": "content_policy_violation"}})
    answers = {
        TEXT_BY_PROMPT["p1"]: make_answer(make_png()),
        TEXT_BY_PROMPT["p2"]: refused,
        TEXT_BY_PROMPT["p3"]: make_error(503),
    }
    server.script = lambda number, body: answers[body["prompt"]]
    write_prompts_file(tmp_path, "p1", "p2", "p3")
    settings = ("size=32x32", "cfg=4", "image_model.takes=[cfg,seed]")
    job = list_service_arguments(tmp_path, server, *settings)
    told = run_for_output("generate", *job, code=1)
    assert "3 images, 1 of them new" in told and "1 reply_refused, 1 model_unavailable" in told
    first = read_images(tmp_path / "images/painter")
    body = server.bodies[0]
    assert body == {
        "model": "painter", "prompt": TEXT_BY_PROMPT["p1"], "n": 1, "size": "32x32", "response_format": "b64_json",
        "guidance_scale": 4.0, "seed": first["p1-0"]["seed"],
    }  # fmt: skip
    assert [first[one]["error"] and first[one]["error"]["kind"] for one in sorted(first)] == [
        None, "reply_refused", "model_unavailable",
    ]  # fmt: skip
    server.bodies.clear()
    answers[TEXT_BY_PROMPT["p3"]] = Answer(body={"created": 0, "data": [{"url": f"{server.url}/elsewhere.png"}]})
    run_for_output("generate", *job, code=1)
    assert [body["prompt"] for body in server.bodies] == [TEXT_BY_PROMPT["p3"]], (
        "one request is sent, and the address in its reply is not followed"
    )
    errors = {
        one: row["error"]["kind"] for one, row in read_images(tmp_path / "images/painter").items() if row["error"]
    }
    assert errors == {"p2-0": "reply_refused", "p3-0": "request_refused"}
    scored = sweep_images(tmp_path, code=1)
    assert {one: row["error"]["kind"] for one, row in scored.items() if row["error"]} == errors


def test_a_sweep_generates_missing_images_and_scores_them_and_a_dry_run_only_plans(
    tmp_path: Path, server: Server
) -> None:
    server.script = lambda number, body: make_answer(make_png())
    write_prompts_file(tmp_path, "p1")
    job = list_service_arguments(
        tmp_path, server, "pictures.name=tuesday", f"store={tmp_path}/store", "metric=edge_density"
    )
    planned = run_for_output("sweep", "sweep=own_images", *job, "dry_run=true")
    assert "then, to score these images:" in planned and "image_statistics" in planned and not server.bodies
    ended = run_for_output("sweep", "sweep=own_images", *job)
    assert "1 images, 1 of them new" in ended and "tuesday" in ended
    again = run_for_output("sweep", "sweep=own_images", *job)
    assert "0 of them new" in again and "nothing changed since run" in again
    assert len(server.bodies) == 1
    assert "generates no images" in run_refused("nightly", "sweep=own_images", *job, "dry_run=true")
    assert "choose another folder" in run_refused("sweep", "sweep=shapes", *job[3:])


DAMAGE_KINDS = ("flip", "truncate", "empty", "delete", *ROT_WAYS)


def list_tables(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


def assert_repaired(job: tuple[str, ...], whole: dict[str, dict[str, Any]], path: Path, images: Path) -> str:
    """Assert that a job that finds a damaged file keeps the earlier images; return its output.

    The job must also name the file, unless the file is in a folder named `wanted`.
    """
    told = run_for_output("generate", *job)
    assert read_images(images / "painter") == whole, path
    assert "wanted" in path.parts or path.name in told.replace("\n", ""), path
    return told


@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_damage_to_any_file_of_a_generation_changes_no_image(count: int, tmp_path: Path, server: Server) -> None:
    """The damaged file may keep its size and modification time.

    The cell and its file may be hard links to the same data.
    """
    server.script = lambda number, body: make_answer(make_png(8 + len(body["prompt"])))
    write_prompts_file(tmp_path, "p1", "p2", "p3")
    job, images, chance = (
        list_service_arguments(tmp_path, server, "shard_rows=2", "seeds=2"),
        tmp_path / "images",
        Random(count),
    )
    run_for_output("generate", *job)
    whole, kept = read_images(images / "painter"), tmp_path / "kept"
    subprocess.run(["cp", "-a", images, kept], check=True)
    for way in islice(cycle(DAMAGE_KINDS), count):
        shutil.rmtree(images)
        subprocess.run(["cp", "-a", kept, images], check=True)
        path = chance.choice(list_tables(images))
        if damage_file(path, way, chance):
            if way == "delete":
                run_for_output("generate", *job)
            else:
                assert_repaired(job, whole, path, images)
        assert (
            "6 images, 0 of them new" in run_for_output("generate", *job) and read_images(images / "painter") == whole
        )


def test_a_damaged_file_is_restored_from_its_copy_or_else_generated_again(tmp_path: Path, server: Server) -> None:
    server.script = lambda number, body: make_answer(make_png())
    write_prompts_file(tmp_path, "p1", "p2", "p3")
    job, images, chance = list_service_arguments(tmp_path, server, "shard_rows=1"), tmp_path / "images", Random(7)
    run_for_output("generate", *job)
    whole = read_images(images / "painter")
    file = sorted((images / "painter").iterdir())[1]
    (cell,) = (images / ".generate/pictures").rglob(file.name)
    for path in (cell, file):  # a new file, so that a hard link still has the old content
        assert damage_file(path, "flip", chance)
        assert "0 of them new" in assert_repaired(job, whole, path, images)
    assert len(server.bodies) == 3
    assert damage_file(file, "rot", chance) and file.read_bytes() == cell.read_bytes()
    assert "1 of them new" in assert_repaired(job, whole, file, images)
    assert [body["prompt"] for body in server.bodies] == [*TEXT_BY_PROMPT.values(), TEXT_BY_PROMPT["p2"]]


def test_a_damaged_file_in_a_bucket_is_restored_from_its_copy(tmp_path: Path, server: Server, bucket: str) -> None:
    server.script = lambda number, body: make_answer(make_png())
    write_prompts_file(tmp_path, "p1", "p2")
    job = [*list_service_arguments(tmp_path, server, "shard_rows=1"), f"images={bucket}/images"]
    run_for_output("generate", *job)
    images, chance = StorageConfig().locate(f"{bucket}/images"), Random(3)
    whole = {path: (images / path).read() for path, _ in images.files() if path.endswith(".parquet")}
    file = next(path for path in whole if path.startswith("painter/"))
    cell = next(path for path in whole if path != file and path.endswith(file.partition("/")[2]))
    for path in (file, cell):
        (images / path).write(damage_content(whole[path], "truncate", chance) or b"")
        told = run_for_output("generate", *job)
        assert f"{images}/{path}: was damaged and has been replaced" in told.replace("\n", "")
        assert {path: (images / path).read() for path in whole} == whole
    assert len(server.bodies) == 2


def test_a_setting_that_the_service_is_not_configured_to_accept_is_refused(tmp_path: Path, server: Server) -> None:
    write_prompts_file(tmp_path, "p1")
    assert "pictures.steps" in run_for_output("generate", *list_service_arguments(tmp_path, server, "steps=9"), code=1)
    assert not server.bodies


def test_a_killed_generation_continues_and_generates_nothing_twice(tmp_path: Path, server: Server) -> None:
    third, release = threading.Event(), threading.Event()

    def answer_request(number: int, body: dict[str, Any]) -> Answer:
        if number == 2:
            third.set()
            release.wait(60)
        return make_answer(make_png())

    server.script = answer_request
    write_prompts_file(tmp_path, "p1", "p2", "p3")
    job = list_service_arguments(tmp_path, server, "shard_rows=1")
    process = subprocess.Popen([sys.executable, "-m", "jobs.generate", *job], cwd=ROOT, env=dict(os.environ))
    assert third.wait(240)
    process.send_signal(signal.SIGKILL)
    process.wait()
    release.set()
    assert "3 images, 1 of them new" in run_for_output("generate", *job)
    assert [body["prompt"] for body in server.bodies] == [*TEXT_BY_PROMPT.values(), TEXT_BY_PROMPT["p3"]]
    assert set(read_images(tmp_path / "images/painter")) == {"p1-0", "p2-0", "p3-0"}


def test_tables_not_made_by_the_job_are_left_alone(tmp_path: Path, server: Server) -> None:
    (tmp_path / "images/painter").mkdir(parents=True)
    pq.write_table(pa.table({"prompt_id": ["p1"]}), tmp_path / "images/painter/mine.parquet")
    write_prompts_file(tmp_path, "p1")
    assert "only images made by jobs.generate, found mine.parquet" in run_refused(
        "generate", *list_service_arguments(tmp_path, server)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(PIPELINE_BUILDERS))
def test_every_kind_of_pipeline_applies_the_settings(kind: str, tmp_path: Path) -> None:
    write_prompts_file(tmp_path, "p1", "p2")
    save_pipeline(tmp_path / kind, kind)
    run_for_output(
        "generate",
        *list_arguments(tmp_path, f"image_model.checkpoint={tmp_path / kind}", "cfg=2", "seeds=2", *SMALL_OPTIONS),
    )
    rows = read_images(tmp_path / "images" / kind)
    assert len(rows) == 4 and all(row["error"] is None for row in rows.values())
    assert {(row["cfg"], row["steps"], row["size"]) for row in rows.values()} == {(2.0, 1, "32x32")}


@pytest.mark.slow
def test_a_lora_is_merged_with_its_scale(tmp_path: Path, checkpoint: Path) -> None:
    from diffusers import StableDiffusionPipeline  # takes seconds to import, as peft does
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipeline = StableDiffusionPipeline.from_pretrained(checkpoint)
    torch.manual_seed(0)
    pipeline.unet.add_adapter(LoraConfig(target_modules=["to_q", "to_v", "to_out.0"], init_lora_weights=False))
    layers = get_peft_model_state_dict(pipeline.unet)
    StableDiffusionPipeline.save_lora_weights(tmp_path / "lora", unet_lora_layers=layers)
    write_prompts_file(tmp_path, "p1")
    file = tmp_path / "lora/pytorch_lora_weights.safetensors"
    drawn = {}
    for name, more in {"plain": (), "none": (file, 0.0), "whole": (file.parent, 1.0)}.items():
        lora = [f"image_model.lora={more[0]}", f"image_model.lora_scale={more[1]}"] if more else []
        run_for_output(
            "generate",
            *list_arguments(tmp_path, f"image_model.checkpoint={checkpoint}", f"name={name}", *lora, *SMALL_OPTIONS),
        )
        (drawn[name],) = map(decode_pixels, read_images(tmp_path / "images" / name).values())
    assert np.abs(drawn["none"] - drawn["plain"]).max() <= 1
    assert np.abs(drawn["whole"] - drawn["plain"]).max() > 1


@pytest.mark.slow
def test_ray_workers_generate_into_a_bucket(tmp_path: Path, server: Server, bucket: str) -> None:
    server.script = lambda number, body: make_answer(make_png())
    write_prompts_file(tmp_path, "p1", "p2", "p3")
    job = [
        f"images={bucket}/images" if word.startswith("images=") else word
        for word in list_service_arguments(tmp_path, server, "shard_rows=2", "seeds=2")
        if word != "cluster=here"
    ]
    assert "6 images, 6 of them new" in run_for_output("generate", *job, "cluster=local")
    assert "6 images, 0 of them new" in run_for_output("generate", *job, "cluster=here")
    assert sorted(body["prompt"] for body in server.bodies) == sorted([*TEXT_BY_PROMPT.values()] * 2)
    place = StorageConfig().locate(f"{bucket}/images/painter")
    rows = [row for name in place.list() for row in pq.read_table(io.BytesIO((place / name).read())).to_pylist()]
    assert {row["image_id"] for row in rows} == {f"{one}-{number}" for one in TEXT_BY_PROMPT for number in (0, 1)}
