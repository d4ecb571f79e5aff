"""One command scores any images whose rows contain their prompts, without a benchmark."""

import io
import json
import os
import random
import re
import shlex
from collections import Counter
from importlib import metadata
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.jobs.table import JOBS
from plumbline.operators.base.errors import format_install_remedy
from plumbline.operators.base.extensions import find_missing_packages
from tests.bench_of import (
    CAPTIONED_OPTIONS,
    SMALL_OPTIONS,
    list_captioned_images,
    read_image_rows,
    read_prompt_rows,
    write_rows,
)
from tests.commands import find_newest_run_folder, run, run_for_output, run_refused
from tests.files import make_tar, write_files


def test_one_command_scores_a_file_and_prints_coverage_and_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list_captioned_images("atlas", 6)
    rows[5]["caption"] = None
    write_rows(tmp_path / "mine.parquet", rows)
    given = [f"images={tmp_path}/mine.parquet", "metrics=[vqascore,clipscore]", "models=shapes", "cluster=here"]
    given += [f"store={tmp_path}/store", "max_failed=0.2", "verbose=true", "benchmark.columns.extra=[seed]"]
    given += [*CAPTIONED_OPTIONS, *SMALL_OPTIONS]
    said = run_for_output("score", *given, code=2)
    folder = find_newest_run_folder(tmp_path / "store")
    scores = pq.read_table(folder / "scores.parquet").to_pylist()
    assert [row["seed"] for row in scores] == [*range(6), *range(6)]
    assert [row["error"] and row["error"]["kind"] for row in scores] == [*[None] * 5, "empty_prompt"] * 2
    for metric in ("vqascore", "clipscore"):
        mean = sum(row["score"] for row in scores if row["metric"] == metric and row["score"] is not None) / 5
        board = said.split(f"{metric}: overall")[1]
        assert re.search(rf"mine\s+│\s+{mean:.3f}\s+│\s+(?:no interval|[\d.]+ to [\d.]+)\s+│\s+5\s+│\s+83.3%", board)
    assert {file.name for file in folder.iterdir()} >= {
        "scores.parquet", "summary.parquet", "errors.parquet", "manifest.json"
    }  # fmt: skip
    assert "0 cells to compute" in run_for_output("score", *given, code=2)


def write_folder(folder: Path) -> Path:
    """Write images by two generators and a list of their prompts, as a user's script would; return the folder."""
    texts = {row["prompt_id"]: row["text"] for row in read_prompt_rows(4)}
    for generator in ("atlas", "flint"):
        (folder / generator).mkdir(parents=True)
        for number, row in enumerate(read_image_rows(generator, 4)):
            (folder / generator / f"{number:05d}.png").write_bytes(row["image"])
    (folder / "prompts.txt").write_text("\n".join(texts[row["prompt_id"]] for row in read_image_rows("atlas", 4)))
    return folder


def test_a_table_that_names_image_files_is_scored(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine")
    prompts = (folder / "prompts.txt").read_text().splitlines()
    lines = [f"atlas/{number:05d}.png,{prompt}" for number, prompt in enumerate(prompts)]
    (folder / "best.csv").write_text("\n".join(["file,prompt", *reversed(lines)]))
    given = [f"{folder}/best.csv", "models=shapes", "metric=clipscore", f"store={tmp_path}/store", "--dry-run"]
    assert "4 prompts x 1 generators = 4 images, metrics clipscore" in run_for_output("score", *given)


def test_accepted_and_ignored_files_are_listed_before_the_plan(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine")
    (folder / "flint/cover.png").write_bytes(b"no number")
    given = [f"images={folder}", "models=shapes", f"store={tmp_path}/store", "dry_run=true", "max_failed=0.2"]
    said = run_for_output("score", *given)
    assert "8 images ingested" in said and "4 prompts x 2 generators = 8 images" in said
    assert "models=shapes only knows coloured shapes" in said
    assert "1 rows rejected: empty_prompt" in said and "flint/cover.png: its name has no number" in said


def test_the_pairs_in_a_plan_are_the_pairs_that_are_scored(tmp_path: Path) -> None:
    """The plan lists the first, middle and last image with their prompts, even if `limit` leaves out prompts."""
    folder = write_folder(tmp_path / "mine")
    texts = (folder / "prompts.txt").read_text().splitlines()
    given = [f"images={folder}", "models=shapes", "metric=[edge_density]", f"store={tmp_path}/store", "cluster=here"]
    said = run_for_output("score", *given)
    shown = [f"pair: {image} of {image[:5]}: {texts[int(image[6:11])]!r}"
             for image in ("atlas/00000.png", "flint/00000.png", "flint/00003.png")]  # fmt: skip
    assert re.findall("^pair: .*", said, re.MULTILINE) == shown
    assert said.index("8 found = 8 ingested") < said.index(shown[0]) < said.index("computed")
    part = run_for_output("score", *given, "limit=1", "dry_run=true")
    [text] = {pair.partition(": ")[2].partition(": ")[2] for pair in re.findall("^pair: .*", part, re.MULTILINE)}
    assert "1 of 4 prompts" in part and text in map(repr, texts)


def test_if_every_image_is_rejected_the_job_ends_with_the_reasons(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine")
    (folder / "images.csv").write_text("file,prompt\ngone.png,a circle\n")
    given = [f"images={folder}", "models=shapes", f"store={tmp_path}/store", "dry_run=true"]
    code, out, err = run("score", *given)
    assert code == 1 and "1 rows rejected: missing_image" in out and "8 rows rejected: empty_prompt" in out
    assert err == f"error: images {folder}: every image was rejected; the reasons are above\n"


@pytest.mark.parametrize("name", ["our prompts.csv", "prompts.json", "by id.json", "captions.jsonl", "prompts.txt"])
def test_the_command_in_the_error_scores_prompts_next_to_the_folder(name: str, tmp_path: Path) -> None:
    """If `images` has no prompts, the error suggests a command that reads a file of prompts next to the folder.

    The name `by id.json` does not suggest prompts, so this file is not suggested, and the test passes it directly.
    """
    texts = ["a lighthouse at dusk", "two foxes", "three lemons in a bowl", "a blue chair"]
    ids = [f"{number}" if name.endswith(".txt") else f"scene-{number}" for number in range(len(texts))]
    for place, (generator, prompt_id) in enumerate(product(("alpha", "beta v2"), ids)):
        file = tmp_path / f"my outputs/{generator}/{prompt_id}_seed{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (place, 0, 99)).save(file)
    rows = [{"id": prompt_id, "prompt": text} for prompt_id, text in zip(ids, texts, strict=True)]
    (tmp_path / name).write_text({
        "our prompts.csv": "prompt,id\n" + "".join(f"{row['prompt']},{row['id']}\n" for row in reversed(rows)),
        "prompts.json": json.dumps(rows),
        "by id.json": json.dumps({row["id"]: row["prompt"] for row in rows}),
        "captions.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "prompts.txt": "\n".join(texts),
    }[name])  # fmt: skip
    given = ["metric=[edge_density]", "cluster=here", f"store={tmp_path}/store", "dry_run=true"]
    if name == "by id.json":  # not a file name that is recognised as prompts
        words = [f"images={tmp_path}/my outputs", f"prompts={tmp_path}/{name}"]
    else:
        said = run_refused("score", f"images={tmp_path}/my outputs", *given)
        [command] = re.findall(r"plumbline score (.*?)\. Add", said)
        words = shlex.split(command)
    said = run_for_output("score", *words, *given)
    pairs = re.findall(r"^pair: .*/(.*)_seed\d\.png of (alpha|beta v2): '(.*)'", said, re.MULTILINE)
    assert len(pairs) == 3 and all(texts[ids.index(prompt_id)] == text for prompt_id, _, text in pairs)
    assert "4 prompts x 2 generators = 8 images" in said and "warning" not in said


PROMPT_TEXTS = ["a lighthouse at dusk", "two foxes", "a lighthouse at dusk", "a blue chair"]
PROMPTS_WITHOUT_IDS = {
    "p.txt": "\n".join(PROMPT_TEXTS),
    "p.json": json.dumps(PROMPT_TEXTS),
    "rows.json": json.dumps([{"prompt": text} for text in PROMPT_TEXTS]),
    "p.csv": "prompt\n" + "".join(f"{text}\n" for text in PROMPT_TEXTS),
    "p.tsv": "skill\tcaption\n" + "".join(f"x\t{text}\n" for text in PROMPT_TEXTS),
    "p.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in PROMPT_TEXTS),
}


@pytest.mark.parametrize("name", PROMPTS_WITHOUT_IDS)
@pytest.mark.parametrize("pattern", ["{generator}/{number:05d}.png", "{generator}_{number:03d}.png"])
def test_prompts_without_ids_outside_the_folder_are_numbered_by_line(name: str, pattern: str, tmp_path: Path) -> None:
    pairs = list(product(("flux", "sdxl"), range(len(PROMPT_TEXTS))))
    random.Random(name).shuffle(pairs)
    first = random.Random(name + pattern).randrange(2)
    names = {pattern.format(generator=generator, number=line + first): (generator, line) for generator, line in pairs}
    write_files(tmp_path / "mine", {file: read_image_rows("atlas", 1)[0]["image"] for file in names})
    (tmp_path / name).write_text(PROMPTS_WITHOUT_IDS[name])
    given = [f"images={tmp_path}/mine", f"prompts={tmp_path}/{name}", "metric=[edge_density]", "cluster=here"]
    said = run_for_output("score", *given, f"store={tmp_path}/store")
    assert "3 prompts x 2 generators = 8 images" in said and "warning" not in said
    scores = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
    prompts_table = pq.read_table(next((tmp_path / "store/ingested").glob("*/prompts.parquet"))).to_pylist()
    texts = {row["prompt_id"]: row["text"] for row in prompts_table}
    assert {row["image_id"]: (row["generator"], texts[row["prompt_id"]]) for row in scores} == {
        file: (generator, PROMPT_TEXTS[line]) for file, (generator, line) in names.items()
    }
    assert all(row["error"] is None for row in scores)


@pytest.mark.parametrize(
    "names, prompts_file, reason",
    [
        (["flux/p1.png", "flux/p2.png"], {"x7": "a cube", "x8": "a cat"}, "none of its ids, such as x7, is in the "),
        (["flux/01.png", "flux/02.png"], {"0": "a cube", "1": "a cat"}, "flux/02.png: no prompt has the number 2"),
        (["flux_1.png", "sdxl_1.png"], {"1": "a cube", "2": "a cat"}, "sdxl_1.png in its folder has the number 1 too"),
        (["flux_0.png", "sdxl_0.png"], ["a cube", "a cat"], "sdxl_0.png in its folder has the number 0 too"),
        (["flux/cat.png", "flux/dog.png"], ["a cube", "a cat"], "its name has no number for the line"),
    ],
)
def test_prompts_outside_the_folder_that_match_no_image_end_the_job_before_any_model_loads(
    names: list[str], prompts_file: object, reason: str, tmp_path: Path
) -> None:
    write_files(tmp_path / "mine", {name: read_image_rows("atlas", 1)[0]["image"] for name in names})
    (tmp_path / "p.json").write_text(json.dumps(prompts_file))
    given = [f"images={tmp_path}/mine", f"prompts={tmp_path}/p.json", "models=shapes", f"store={tmp_path}/store"]
    code, out, err = run("score", *given)
    assert code == 1 and reason in out + err and "plan" not in out
    assert len(err.splitlines()) == 1 and err.startswith(f"error: images {tmp_path}/mine: ")


def test_an_error_about_a_path_names_its_key_and_mentions_buckets_only_for_s3(tmp_path: Path) -> None:
    given = ["metric=[edge_density]", "cluster=here", f"store={tmp_path}/store"]
    for key in ("images", "prompts"):
        said = run_refused("score", f"images={tmp_path}", f"{key}=", *given)
        assert said == f"error: benchmark.{key}: expected a path or an address, got ''; write {key}=PATH"
    assert run_refused("score", f"images={tmp_path}/gone", *given).endswith("/gone: not found; check the path")


def test_a_missing_extra_is_reported_in_one_line_and_in_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a plain `pip install .`, which leaves out the packages of the extra."""
    real = metadata.version

    def version(package: str) -> str:
        if package == "uvicorn":
            raise metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(metadata, "version", version)
    find_missing_packages.cache_clear()
    try:
        for job in {"view", "rate"} & {*JOBS}:
            needs = f"jobs.{job} needs uvicorn; {format_install_remedy('view')}"
            assert needs in run_for_output(job, "--help").splitlines()
            assert run_refused(job, *(["study=x"] if job == "rate" else [f"store={tmp_path}"])) == f"error: {needs}"
    finally:
        find_missing_packages.cache_clear()


def test_the_folders_current_content_is_scored_after_any_earlier_attempt(tmp_path: Path) -> None:
    """The earlier attempt found no image, scored other generators, damaged the store, or read other kinds of input."""
    folder = write_folder(tmp_path / "mine")
    given = [f"images={folder}", "metric=[edge_density]", "cluster=here", f"store={tmp_path}/store"]

    def count_scored_images() -> dict[str, int]:
        run_for_output("score", *given)
        rows = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
        assert all(row["score"] is not None for row in rows)
        return Counter(row["generator"] for row in rows)

    (folder / "images.csv").write_text("file,prompt,model\ngone.png,a circle,atlas\n")
    assert "every image was rejected" in run_refused("score", *given, code=1)
    (folder / "images.csv").unlink()
    assert count_scored_images() == {"atlas": 4, "flint": 4}
    (folder / "flint").rename(folder / "Flint v2")
    assert count_scored_images() == {"atlas": 4, "Flint v2": 4}
    (folder / "atlas").rename(tmp_path / "elsewhere")
    assert count_scored_images() == {"Flint v2": 4}
    [shard] = (tmp_path / "store/ingested").glob("mine-*/Flint v2/00000.parquet")
    for damaged in (shard, shard.parent.parent / "manifest.json"):
        damaged.write_bytes(b"damaged")
        (tmp_path / "elsewhere").rename(folder / "atlas")
        assert count_scored_images() == {"atlas": 4, "Flint v2": 4}
        (folder / "atlas").rename(tmp_path / "elsewhere")
    rows = list_captioned_images("flint", 3)
    write_rows(folder / "all.parquet", [{"image": row["picture"], "prompt": row["caption"]} for row in rows])
    assert count_scored_images() == {"mine": 3}


def test_a_name_that_is_not_utf8_costs_only_its_own_file(tmp_path: Path) -> None:
    """Images are also refused if the name of their generator's folder is not UTF-8; other images are scored."""
    write_rows(
        tmp_path / "rows.parquet",
        [{"image": row["image"], "prompt": "a circle"} for row in read_image_rows("atlas", 2)],
    )
    content = (tmp_path / "rows.parquet").read_bytes()
    for name in (b"atlas/good", b"atlas/caf\xe9", b"caf\xe9/good"):
        write_files(tmp_path / "mine", {os.fsdecode(name + b".parquet"): content})
    given = [f"images={tmp_path}/mine", "models=shapes", "metric=[edge_density]", "cluster=here"]
    said = run_for_output("score", *given, f"store={tmp_path}/store", code=1)
    for file in ("atlas/caf\\xe9", "caf\\xe9/good"):
        assert f"mine/{file}.parquet: the file's name, or a folder's, is not UTF-8; rename it" in said
    scores = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
    assert [row["generator"] for row in scores if row["score"] is not None] == ["atlas", "atlas"]


def write_faulty_table(folder: Path, rng: random.Random) -> list[tuple[str, str, str]]:
    """Write images by two generators and a shuffled table of their prompts, some of whose lines are invalid.

    Return the generator, the kind of error and the start of its message for each invalid line.
    """
    folder.mkdir(parents=True)
    lines: list[tuple[str, str, str, str]] = []
    for generator, count in (("flint", rng.randint(4, 9)), ("atlas", rng.randint(2, 5))):
        for number in range(count):
            write_files(folder, {f"{generator}{number}.png": draw_noise(rng)})
            lines.append((f"prompt {number}", f"{generator}{number}.png", generator, ""))
        lines += [("prompt 0", f"gone{number}.png", generator, "missing_image") for number in range(rng.randint(1, 3))]
        lines += [("", f"{generator}0.png", generator, "empty_prompt")] * rng.randint(1, 3)
    rng.shuffle(lines)
    rows = [",".join(line[:3]) for line in lines]
    (folder / "images.csv").write_text("\n".join(["prompt,file,generator", *rows]))
    return [
        (generator, kind, f"images.csv, line {number}: ")
        for number, (_, _, generator, kind) in enumerate(lines, start=2)
        if kind
    ]


def draw_noise(rng: random.Random) -> bytes:
    """Return a small PNG with random pixels."""
    sink = io.BytesIO()
    Image.frombytes("RGB", (16, 16), rng.randbytes(16 * 16 * 3)).save(sink, "PNG")
    return sink.getvalue()


@pytest.mark.parametrize("seed", range(2))
def test_a_rejected_row_has_no_score_and_affects_the_exit_code(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bad = write_faulty_table(tmp_path / "mine", rng)
    given = [f"images={tmp_path}/mine/images.csv", "metric=[edge_density]", f"store={tmp_path}/store", "cluster=here"]
    given.append("benchmark.require_every_prompt=false")
    rows = len((tmp_path / "mine/images.csv").read_text().splitlines()) - 1
    reason = f"{len(bad)} of {rows} rows ({len(bad) / rows:.2%}) have no score"
    said = run_for_output("score", *given, code=1)
    folder = find_newest_run_folder(tmp_path / "store")
    assert said.splitlines()[-1].endswith(f", exit code 1: {reason}, above max_failed=1%")
    assert f"{rows} found = {rows - len(bad)} ingested + {len(bad)} rejected + 0 skipped" in said
    assert f" the report counts {rows - len(bad)} + {len(bad)} = {rows} images" in said
    assert f"{rows} images" in (folder / "report.html").read_text()
    errors = pq.read_table(folder / "errors.parquet").to_pylist()
    found = sorted((row["generator"], row["kind"], row["message"].partition("mine/")[2]) for row in errors)
    assert len(found) == len(bad)
    assert all(
        one[:2] == other[:2] and one[2].startswith(other[2]) for one, other in zip(found, sorted(bad), strict=True)
    )
    counts = {row["generator"]: row["n_null"] for row in pq.read_table(folder / "summary.parquet").to_pylist()}
    assert counts == Counter(generator for generator, _, _ in bad)
    assert json.loads((folder / "manifest.json").read_text())["exit_code"] == 1
    assert f"{len(bad)} of {rows} rows" in (folder / "report.html").read_text()
    again = run_for_output("score", *given, code=1)
    assert "nothing changed since run" in again and again.splitlines()[-1].endswith("above max_failed=1%")
    within = run_for_output("score", *given, "max_failed=0.9", code=2)
    assert within.splitlines()[-1].endswith(f", exit code 2: {reason}, within max_failed=90%")


@pytest.mark.parametrize("named", ["the folder", "the table"])
def test_an_error_row_names_the_users_file_and_line(named: str, tmp_path: Path) -> None:
    folder, rng = tmp_path / "mine", random.Random(named)
    bad = write_faulty_table(folder, rng)
    (folder / "atlas0.png").write_bytes(b"no image")
    table = f"{folder}/images.csv"
    lines = [line.split(",") for line in Path(table).read_text().splitlines()]
    given = [f"images={folder if named == 'the folder' else table}", "metric=[edge_density]", "cluster=here"]
    run_for_output("score", *given, f"store={tmp_path}/store", "benchmark.require_every_prompt=false", code=1)
    errors = pq.read_table(find_newest_run_folder(tmp_path / "store") / "errors.parquet").to_pylist()
    [corrupt] = [row for row in errors if row["kind"] == "corrupt_image"]
    assert (corrupt["file"], corrupt["row"], corrupt["image_id"]) == (f"{folder}/atlas0.png", None, "atlas0.png")
    places = [(table, int(place.split()[2].strip(":")), kind) for _, kind, place in bad]
    rejected = [row for row in errors if row is not corrupt]
    assert sorted((row["file"], row["row"], row["kind"]) for row in rejected) == sorted(places)
    assert all(row["image_id"] == lines[row["row"] - 1][1] for row in rejected)
    [kept] = (tmp_path / "store/ingested").glob("*/rejected.parquet")
    assert sorted((row["file"], row["line"], row["kind"]) for row in pq.read_table(kept).to_pylist()) == sorted(places)


def test_the_error_names_the_file_that_lacks_a_prompt_and_moved_lines_rewrite_no_shard(tmp_path: Path) -> None:
    """The prompt is missing from a text file, a JSON file or a line of a list.

    In a table, moving a row to another line does not cause its shard to be written again.
    """
    image = draw_noise(random.Random(3))
    beside = write_files(
        tmp_path / "beside",
        {"a.png": image, "a.txt": "a cat", "b.png": image, "b.txt": " \n", "c.png": image,
         "c.json": '{"text": "", "seed": 3}'},
    )  # fmt: skip
    numbered = write_files(
        tmp_path / "list", {"0.png": image, "1.png": image, "2.png": image, "prompts.txt": "cat\n\ndog"}
    )
    given = ["metric=[edge_density]", "cluster=here", "dry_run=true", "max_failed=0.9"]
    said = run_for_output("score", f"images={beside}", *given, f"store={tmp_path}/store")
    assert "beside/b.txt: the .txt is empty; write the prompt of its image into it" in said
    assert "beside/c.json: the .json has neither a prompt nor a prompt_id; add one" in said
    said = run_for_output("score", f"images={numbered}", *given, f"store={tmp_path}/store")
    assert (
        "list/prompts.txt, line 2: the line is empty, but 1.png has its number; write the prompt of this image there"
        in said
    )
    made = write_files(tmp_path / "table", {"a.png": image, "images.csv": "file,prompt\na.png,a cat\n"})
    run_for_output("ingest", f"images={made}", f"output={tmp_path}/made")
    (made / "images.csv").write_text('file,prompt,note\n\na.png,a cat,"moved"\n')
    assert "exists already" in run_for_output("ingest", f"images={made}", f"output={tmp_path}/made")


def test_a_row_that_ingest_rejected_has_no_score_in_a_sweep(tmp_path: Path) -> None:
    """A prompt whose only image was rejected is not also reported as a prompt without an image."""
    bad = write_faulty_table(tmp_path / "mine", random.Random(2))
    run_for_output("ingest", f"table={tmp_path}/mine/images.csv", f"output={tmp_path}/made", code=1)
    given = [f"benchmark.images={tmp_path}/made", f"benchmark.prompts={tmp_path}/made/prompts.parquet"]
    given += ["sweep=own_images", "metric=[edge_density]", f"store={tmp_path}/store", "cluster=here"]
    run_for_output("sweep", *given, code=1)
    errors = pq.read_table(find_newest_run_folder(tmp_path / "store") / "errors.parquet").to_pylist()
    rejected = [row for row in errors if "images.csv, line " in row["message"]]
    assert Counter(row["kind"] for row in rejected) == Counter(kind for _, kind, _ in bad)
    named = [row["prompt_id"] for row in rejected if row["kind"] == "missing_image"]
    absent = {row["prompt_id"] for row in errors if "has no image for this prompt" in row["message"]}
    assert None not in named and absent and not absent & {*named}
    one = run_for_output("sweep", *given, "benchmark.generators=[atlas]", code=1)
    of_atlas = sum(generator == "atlas" for generator, _, _ in bad)
    errors = pq.read_table(find_newest_run_folder(tmp_path / "store") / "errors.parquet").to_pylist()
    assert sum("images.csv, line " in row["message"] for row in errors) == of_atlas and "exit code 1: " in one


def test_an_oversized_file_of_rejected_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_faulty_table(tmp_path / "mine", random.Random(4))
    run_for_output("ingest", f"table={tmp_path}/mine/images.csv", f"output={tmp_path}/made", code=1)
    given = [f"benchmark.images={tmp_path}/made", f"benchmark.prompts={tmp_path}/made/prompts.parquet"]
    given += ["sweep=own_images", "metric=[edge_density]", f"store={tmp_path}/store", "cluster=here"]
    file = tmp_path / "made/rejected.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table] * (1_000_001 // len(table) + 1)), file)
    said = run_refused("sweep", *given)
    assert f"{file}: expected at most 1,000,000 rejected rows" in said and "run the ingest again" in said
    file.unlink()
    run_for_output("sweep", *given, code=1)


def test_later_jobs_find_the_images_of_a_run_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, here, there = random.Random(5), tmp_path / "here", tmp_path / "there"
    for name in ("atlas", "flint"):
        write_files(
            here / "outs" / name,
            {f"{what}_cube_{number}.png": draw_noise(rng) for number, what in enumerate(["a_red", "one_blue"])},
        )
    there.mkdir()
    monkeypatch.chdir(here)
    run_for_output("score", "images=outs", "metric=[edge_density]", "cluster=here")
    (page,) = (here / "store/runs").glob("2*/report.html")
    pictures = page.read_text().count("data:image/webp")
    monkeypatch.chdir(there)
    assert "no longer" not in run_for_output("report", f"store={here}/store", "run=latest")
    assert page.read_text().count("data:image/webp") == pictures > 0


def test_an_unknown_number_of_rows_exceeds_every_budget(tmp_path: Path) -> None:
    rng = random.Random(3)
    members = [
        (f"{name}.{ending}", data)
        for name in range(5)
        for ending, data in (("png", draw_noise(rng)), ("txt", b"noise"))
    ]
    write_files(tmp_path, {"cut.tar": make_tar(members)[: rng.randint(5_000, 6_000)]})
    given = [f"images={tmp_path}/cut.tar", "metric=[edge_density]", f"store={tmp_path}/store", "cluster=here"]
    ended = run_for_output("score", *given, "max_failed=1", code=1).splitlines()[-1]
    assert ended.endswith(f"exit code 1: {tmp_path}/cut.tar lost an unknown number of rows")
