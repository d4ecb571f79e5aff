"""A benchmark is built from a file and a model's replies. Replies are paid for only once, and failures are reported."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from plumbline.jobs.command import get_command, load_values
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models import calls
from plumbline.operators.stages import programs
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.plugins.benchmark_builder import CONF
from plumbline.plugins.benchmark_builder.building import BuiltBenchmark, build_benchmark, plan_build, write_texts
from plumbline.plugins.benchmark_builder.building_config import BuildConfig
from plumbline.plugins.benchmark_builder.generation import PromptGeneration, PromptRequest, make_requests
from plumbline.plugins.benchmark_builder.jobs.build_benchmark import main
from plumbline.plugins.benchmark_builder.tagging import Tagging
from plumbline.plugins.benchmark_builder.taxonomy import Taxonomy
from plumbline.plugins.benchmark_builder.writer import WriterOptions
from tests.bench_of import list_sources
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion

PROMPTS = ["3 cats above a dog", "A blue cup.", "a blue cup", "no tags for this one", "5 mice and 2 rats"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.setenv("REFERENCE_DATA", "")
    started = Server()
    started.script, started.trial = reply_with_tags_or_caption, make_completion("yes")
    yield started
    started.close()


def reply_with_tags_or_caption(number: int, body: dict[str, Any]) -> Answer:
    """Reply with tags that fit the words of a prompt, or with a caption that fits the controls of a request.

    For one prompt and one value of a control, reply with something that cannot be parsed.
    """
    text = body["messages"][0]["content"]
    if text.endswith("output:"):
        prompt = text.rsplit("input: ", 1)[1]
        count = "1 | att/count - simple_numeric (3)\n" if "3" in prompt else ""
        return make_completion(
            "I see none" if "no tags" in prompt else f"{count}2 | rel/spatial - spatial_basic (above)"
        )
    wanted = text.rsplit("Number: ", 1)[1].split("\n")[0]
    return make_completion("lemurs" if wanted == "4" else f"Caption: {wanted} lemurs on a bus")


def make_config(server: Server, folder: Path, *overrides: str) -> BuildConfig:
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    model = ["model@models.llm=api", f"models.llm.endpoint={server.url}", f"models.llm.key_variable={KEY_VARIABLE}"]
    where = [f"prompts={folder}/prompts.txt", f"output={folder}/mine", f"store={folder}/store", "name=mine"]
    values = load_values(
        get_command("build_benchmark"), ["models=shapes", *model, "models.llm.checkpoint=m", *where, *overrides]
    )
    return read_config(values, BuildConfig)


def run_build(config: BuildConfig) -> BuiltBenchmark:
    planned = plan_build(config)
    return build_benchmark(
        planned, {kind: write_texts(sweep, lambda progress: None) for kind, sweep in planned.writer_sweeps.items()}
    )


def read_rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return [dict(row) for row in pq.read_table(folder / "mine" / f"{table}.parquet").to_pylist()]


TAGGING_OPTIONS = ("tagging=llm",)
GENERATION_OPTIONS = (
    "generation=llm",
    "generation.sub_skills=['att/count:simple_numeric']",
    "generation.per_sub_skill=10",
)


def test_prompts_are_tagged_and_an_untagged_prompt_keeps_its_error(server: Server, tmp_path: Path) -> None:
    built = run_build(make_config(server, tmp_path, *TAGGING_OPTIONS))
    prompts = {row["text"]: row["skills"] for row in read_rows(tmp_path, "prompts")}
    assert prompts["3 cats above a dog"] == [
        "att/count", "att/count:simple_numeric", "rel/spatial", "rel/spatial:spatial_basic",
    ]  # fmt: skip
    assert prompts["no tags for this one"] == [] and "a blue cup" not in prompts and len(prompts) == 4
    (failed,) = [row for row in read_rows(tmp_path, "tags") if row["error"] is not None]
    assert failed["error"]["kind"] == "unreadable_reply" and built.exit_code == 1 and len(built.failed) == 1
    (repeated,) = read_rows(tmp_path, "left_out")
    assert (repeated["text"], repeated["reason"]) == ("a blue cup", "near_duplicate")
    assert repeated["repeats"] == next(
        row["prompt_id"] for row in read_rows(tmp_path, "prompts") if row["text"] == "A blue cup."
    )
    (tag,) = [row for row in read_rows(tmp_path, "tags") if row["skill"] == "att/count"]
    assert (tag["sub_skill"], tag["words"], tag["start"], tag["end"]) == ("simple_numeric", "3", 0, 1)


def test_finished_replies_are_not_requested_again(server: Server, tmp_path: Path) -> None:
    run_build(make_config(server, tmp_path, *TAGGING_OPTIONS, *GENERATION_OPTIONS))
    paid = len(server.bodies)
    assert paid == 4 + 1 + 10 + 1  # an unreadable reply is requested once more
    again = run_build(
        make_config(server, tmp_path, *TAGGING_OPTIONS, *GENERATION_OPTIONS, "drawing=balanced", "drawing.count=2")
    )
    assert len(server.bodies) == paid and not again.usage
    (tmp_path / "more.txt").write_text("\n".join([*PROMPTS, "9 owls"]))
    run_build(
        make_config(
            server,
            tmp_path,
            *TAGGING_OPTIONS,
            *GENERATION_OPTIONS,
            f"prompts={tmp_path}/more.txt",
            "generation.per_sub_skill=12",
        )
    )
    assert len(server.bodies) == paid + 1 + 2


def test_prompts_are_written_from_templates_and_failures_are_reported(server: Server, tmp_path: Path) -> None:
    built = run_build(make_config(server, tmp_path, "prompts=null", *GENERATION_OPTIONS))
    prompts = read_rows(tmp_path, "prompts")
    assert sorted(row["text"] for row in prompts) == sorted(f"{n} lemurs on a bus" for n in range(1, 11) if n != 4)
    assert {tuple(row["skills"]) for row in prompts} == {("att/count", "att/count:simple_numeric")}
    assert {row["origin"] for row in prompts} == {"written"}
    (failed,) = read_rows(tmp_path, "left_out")
    assert failed["reason"] == "failed" and "lacks the words '4' of Number" in failed["error"]["message"]
    assert built.left_out == {"failed": 1} and "lacks the words '4'" in built.failed[0]


def test_a_sweep_reads_the_built_benchmark(server: Server, tmp_path: Path) -> None:
    run_build(make_config(server, tmp_path, *TAGGING_OPTIONS))
    benchmark = BenchmarkConfig(name="mine", prompts=f"{tmp_path}/mine/prompts.parquet", images=None, generators={})
    sources = list_sources(benchmark)
    ids = {row["text"]: row["prompt_id"] for row in read_rows(tmp_path, "prompts")}
    assert sources.skills.find(ids["5 mice and 2 rats"]) == ("rel/spatial", "rel/spatial:spatial_basic")


def test_failed_prompts_and_those_not_drawn_are_left_out_with_different_reasons(server: Server, tmp_path: Path) -> None:
    built = run_build(make_config(server, tmp_path, *TAGGING_OPTIONS, "drawing=balanced", "drawing.count=2"))
    assert built.left_out == {"near_duplicate": 1, "not_drawn": 1, "failed": 1} and built.prompts == 2
    assert "3 cats above a dog" in {
        row["text"] for row in read_rows(tmp_path, "prompts")
    }  # the prompt with a rare skill


def test_prompts_without_a_skill_are_left_out_with_that_reason(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mixed.csv").write_text("text,skills\ntwo cats,count\nfog,\na red cup,colour\nrain,\n")
    built = run_build(
        make_config(server, tmp_path, f"prompts={tmp_path}/mixed.csv", "drawing=balanced", "drawing.count=1")
    )
    assert built.left_out == {"no_skill": 2, "not_drawn": 1} and built.prompts == 1


def test_the_next_run_repeats_calls_to_a_busy_endpoint(server: Server, tmp_path: Path) -> None:
    config = make_config(server, tmp_path, *TAGGING_OPTIONS, "models.llm.max_retries=0")
    server.script = lambda number, body: Answer(503, {"error": {"message": "busy"}})
    assert run_build(config).exit_code == 1
    assert {row["error"]["retryable"] for row in read_rows(tmp_path, "tags")} == {True}
    server.script = reply_with_tags_or_caption
    run_build(config)
    assert sum(row["error"] is not None for row in read_rows(tmp_path, "tags")) == 1


def test_a_dry_run_calls_no_model_and_shows_the_planned_calls(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make_config(server, tmp_path, *TAGGING_OPTIONS, *GENERATION_OPTIONS, "dry_run=true")) == 0
    said = capsys.readouterr().out
    assert "5 prompts read, 1 of them near-duplicates" in said and not server.bodies
    assert said.count("│ questions:llm") == 2 and "questions:llm: 10 calls of a service" in said
    assert not (tmp_path / "mine" / "prompts.parquet").exists()


def test_the_job_shows_statistics_failures_and_the_output_folder(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(make_config(server, tmp_path, *TAGGING_OPTIONS)) == 1
    said = capsys.readouterr().out
    assert "att/count:simple_numeric" in said and "1 prompts could not be tagged or written" in said
    assert "4 prompts; left out: 1 near duplicate" in said and f"{tmp_path}/mine/" in said
    page = (tmp_path / "mine" / "statistics.md").read_text()
    assert page.startswith("## Prompts by skill") and "| att/count:simple\\_numeric" in page.replace(
        "simple_", "simple\\_"
    )
    manifest = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert manifest["prompts"] == 4 and "storage" not in manifest["config"] and KEY not in json.dumps(manifest)


def test_a_benchmark_can_be_read_from_and_written_to_a_bucket(bucket: str, tmp_path: Path, server: Server) -> None:
    import fsspec

    file = tmp_path / "prompts.csv"
    file.write_text("prompt_id,text,skills\na,two cats,count\nb,a dog,object;animal\n")
    fsspec.filesystem("s3").put_file(str(file), f"{bucket}/prompts.csv")
    config = make_config(server, tmp_path, f"prompts={bucket}/prompts.csv", f"output={bucket}/mine")
    assert (run_build(config).prompts, run_build(config).exit_code) == (2, 0)
    with fsspec.open(f"{bucket}/mine/prompts.parquet") as stream:
        assert pq.read_table(stream).column("skills").to_pylist() == [["count"], ["object", "animal"]]


TAXONOMIES = sorted(file.stem for file in (CONF / "taxonomy").glob("*.yaml"))


@pytest.mark.parametrize("name", TAXONOMIES)
def test_the_tags_of_every_example_are_in_its_taxonomy(name: str) -> None:
    """The tags of the taxonomy's examples are in the taxonomy, and the tagged words are in the examples' prompts."""
    values = load_values(get_command("build_benchmark"), [f"taxonomy={name}", "output=o", "models=shapes"])
    taxonomy = read_config(values["taxonomy"], Taxonomy)
    for example in taxonomy.examples:
        tags = example.tags
        reply = "\n".join(f"{number} | {tag}" for number, tag in enumerate(tags, 1)) or "0 | none"

        def generate(requests: list[programs.ProgramRequest], reply: str = reply) -> list[calls.Generation]:
            return [calls.Generation(reply, True, Usage(1)) for _ in requests]

        program = Tagging(options=WriterOptions(), taxonomy=taxonomy).write(example.prompt)
        (rows,) = programs.run_programs([program], generate).results  # type: ignore[arg-type]
        assert not isinstance(rows, RowError), (example, rows)
        assert [f"{row.kind} ({row.span})" for row in rows if row.kind] == list(tags)
        assert all(example.prompt[row.start : row.end] == row.span for row in rows if row.kind)


def test_the_compositions_of_genai_bench_are_basic_or_advanced() -> None:
    """Every composition of tables 6 and 7 in the VQAScore paper has a definition in the taxonomy."""
    values = load_values(get_command("build_benchmark"), ["taxonomy=genai_bench", "output=o", "models=shapes"])
    taxonomy = read_config(values["taxonomy"], Taxonomy)
    assert {name: len(skill.sub_skills) for name, skill in taxonomy.skills.items()} == {"basic": 6, "advanced": 5}
    assert all(part.about for skill in taxonomy.skills.values() for part in skill.sub_skills.values())
    assert taxonomy.find("Advanced - counting").names == ("advanced", "advanced:counting")


@pytest.mark.parametrize("name", TAXONOMIES)
def test_every_example_of_a_template_passes_its_checks(name: str) -> None:
    """Examples that fail their own template's checks would teach the model to fail them."""
    values = load_values(get_command("build_benchmark"), [f"taxonomy={name}", "output=o", "models=shapes"])
    taxonomy = read_config(values["taxonomy"], Taxonomy)
    for tag, template in taxonomy.select_templates().items():
        assert list(make_requests({tag: template}, 3, {}, seed=0)) and template.examples
        for example in template.examples:
            asked = PromptRequest(tag.names[-1], 1, {one: example[one] for one in template.controls}, template)
            reply = "\n".join(f"{one}: {example[one]}" for one in template.fields)

            def generate(requests: list[programs.ProgramRequest], reply: str = reply) -> list[calls.Generation]:
                return [calls.Generation(reply, True, Usage(1)) for _ in requests]

            program = PromptGeneration(options=WriterOptions()).write(asked.to_json())
            (result,) = programs.run_programs([program], generate).results  # type: ignore[arg-type]
            assert not isinstance(result, RowError), (tag, result)
