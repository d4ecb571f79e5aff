"""Prompt files of public benchmarks are read as they are released.

These small files have the releases' format: their headers, quoting, nesting and unusual characters. All lines are made
up.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.sources import prompt_files
from plumbline.pipelines.sources.prompt_files import read_prompts
from tests.bench_of import list_sources, read_image_rows, write_rows
from tests.commands import find_newest_run_folder, load_job_config, run_for_output, run_refused

ODD_PROMPTS = (
    'A sign says "OPEN, all day"; it\'s new.',
    "two  cats\u2028on a\x0bmat",
    'Ein Bär – süß, 5" hoch',
    "一只红色的鸟",
)
"""Prompts with characters that a careless reader would split at, strip or unquote."""


class ReleasedFile(NamedTuple):
    """A file in a release's format, and the ids and texts of the prompts that must be read from it."""

    name: str
    content: str
    ids: Sequence[str] | None = None
    """Expected ids, or None if the ids are hashes of the texts."""
    texts: Sequence[str] = ODD_PROMPTS
    option: str | None = None
    """Column that the user must specify."""


def join_lines(texts: Sequence[str], end: str = "\n") -> str:
    return "".join(text + end for text in texts)


def make_jsonl(rows: Sequence[Mapping[str, Any]], *, ascii: bool = True) -> str:
    return join_lines([json.dumps(row, ensure_ascii=ascii) for row in rows])


def make_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def fill(**fields: Any) -> list[dict[str, Any]]:
    """Return a row with these fields for each of ODD_PROMPTS.

    The values PROMPT, NUMBER and PLACE stand for the prompt's text, its number (from 1) and its index (from 0).
    """
    values = [{"PROMPT": text, "NUMBER": place + 1, "PLACE": place} for place, text in enumerate(ODD_PROMPTS)]
    return [
        {name: one[field] if isinstance(field, str) and field in one else field for name, field in fields.items()}
        for one in values
    ]


def make_ids(pattern: str, first: int) -> list[str]:
    return [pattern.format(first + place) for place in range(len(ODD_PROMPTS))]


UNQUOTED_PROMPTS = ('"L O U D" in chalk', 'a "small" sign', *ODD_PROMPTS[1:])
DSG_FIELDS = {"keywords": "bird", "dependency": "0", "tuple": "entity - whole (bird)", "question_natural_language": "?"}

RELEASES = {
    "PartiPrompts": ReleasedFile(
        "PartiPrompts.tsv",
        join_lines(["Prompt\tCategory\tChallenge\tNote", *(f"{text}\tArts\tBasic\t" for text in UNQUOTED_PROMPTS)]),
        texts=UNQUOTED_PROMPTS,
    ),
    "DrawBench": ReleasedFile("drawbench.csv", make_csv(fill(Prompts="PROMPT", Category="Gary Marcus et al. "))),
    "DALL-E 3's evaluation": ReleasedFile("dalle3_eval.txt", join_lines(ODD_PROMPTS, "\r\n")),
    "HPSv2": ReleasedFile("anime.json", json.dumps(ODD_PROMPTS)),
    "GenEval": ReleasedFile(
        "evaluation_metadata.jsonl",
        make_jsonl(fill(tag="counting", include=[{"class": "cow", "count": 2}], prompt="PROMPT")),
    ),
    "GenEval 2": ReleasedFile(
        "geneval2_data.jsonl",
        make_jsonl(fill(prompt="PROMPT", atom_count=3, vqa_list=[["How many?", "one"]], skills=["count"])),
    ),
    "T2I-CompBench": ReleasedFile("color_val.txt", join_lines(ODD_PROMPTS)),
    "DPG-Bench": ReleasedFile(
        "dpg_bench.csv",
        make_csv([
            {"item_id": f"coco_{place}", "text": text, "proposition_id": number, **DSG_FIELDS}
            for place, text in enumerate(ODD_PROMPTS) for number in (1, 2)
        ]),
        ids=make_ids("coco_{}", 0),
    ),
    "DSG-1k": ReleasedFile(
        "dsg-1k-anns.csv",
        make_csv([
            {"item_id": f"whoops_{place}", "text": text, "proposition_id": number, **DSG_FIELDS}
            for number in (1, 2) for place, text in enumerate(ODD_PROMPTS)
        ]),
        ids=make_ids("whoops_{}", 0),
    ),
    "TIFA v1.0": ReleasedFile(
        "tifa_v1.0_text_inputs.json",
        json.dumps([{**row, "id": f"coco_{row['id']}"} for row in fill(id="NUMBER", caption="PROMPT", coco="7")]),
        ids=make_ids("coco_{}", 1),
    ),
    "GenAI-Bench": ReleasedFile(
        "genai_image.json",
        json.dumps({f"{row['id']:05}": {**row, "id": str(row["id"])} for row in fill(id="NUMBER", prompt="PROMPT")}),
        ids=make_ids("{:05}", 1),
    ),
    "Gecko2K": ReleasedFile(
        "prompts.csv",
        make_csv(fill(**{"": "PLACE"}, dataset_id="att/count:additive_2", prompt="PROMPT", prompt_type="Gecko(S)",
                   prompt_id="PLACE")),
        ids=make_ids("{}", 0),
    ),
    "OneIG-Bench": ReleasedFile(
        "OneIG-Bench.csv",
        make_csv([
            {**row, "category": category, "id": f"{place % 2:03}"}
            for place, (row, category) in enumerate(
                zip(fill(category="", id="", prompt_en="PROMPT", type="NP"), ["Anime", "Anime", "Portrait", "Portrait"],
                    strict=True))
        ]),
    ),
    "OneIG-Bench, Chinese": ReleasedFile(
        "OneIG-Bench-ZH.csv", make_csv(fill(category="Portrait", id="PLACE", prompt_cn="PROMPT")), ids=make_ids("{}", 0)
    ),
    "WISE": ReleasedFile(
        "merge.json", json.dumps(fill(Prompt="PROMPT", Explanation="It is red", prompt_id="NUMBER"), indent=2),
        ids=make_ids("{}", 1),
    ),
    "UniGenBench": ReleasedFile(
        "test_prompts_en.csv",
        make_csv(fill(index="PLACE", prompt_en="PROMPT", sub_dims_en='{"Testpoints": ["Style"]}')),
        ids=make_ids("{}", 0),
    ),
    "LongText-Bench": ReleasedFile(
        "text_prompts.jsonl",
        make_jsonl(
            fill(category="sign", length="short", prompt="PROMPT", prompt_id="PLACE", text=["OPEN"]), ascii=False
        ),
        ids=make_ids("{}", 0),
    ),
    "TIIF-Bench": ReleasedFile(
        "style_prompts.jsonl",
        make_jsonl(fill(type="style", short_description="PROMPT", long_description="a longer one")),
        option="short_description",
    ),
    "T2I-CoReBench": ReleasedFile(
        "C-MA.json",
        json.dumps({f"C-MA-{row.pop('n'):03}": row for row in fill(n="NUMBER", Prompt="PROMPT", Checklist=[])}),
        ids=make_ids("C-MA-{:03}", 1),
    ),
    "T2I-ReasonBench": ReleasedFile(
        "entity_reasoning.json", json.dumps(fill(id="NUMBER", prompt="PROMPT", explicit_meaning="a bird", tag="Event")),
        ids=make_ids("{}", 1),
    ),
    "PRISM-Bench": ReleasedFile("style.jsonl", make_jsonl(fill(prompt="PROMPT"))),
    "CVTG-2K": ReleasedFile(
        "2.json", json.dumps({"data_list": fill(index="PLACE", prompt="PROMPT", sentence_list=["OPEN"])}),
        ids=make_ids("{}", 0),
    ),
    "ImageReward": ReleasedFile(
        "benchmark-prompts.json",
        json.dumps([{**row, "id": f"00{row['id']}-0057"} for row in fill(id="NUMBER", prompt="PROMPT")]),
        ids=make_ids("00{}-0057", 1),
    ),
    "VBench": ReleasedFile("VBench_full_info.json", json.dumps(fill(prompt_en="PROMPT", dimension=["color"]))),
    "VBench 2.0": ReleasedFile(
        "VBench2_full_text_info.json",
        json.dumps({row["caption"]: row for row in fill(caption="PROMPT", dimension=["Mechanics"])}),
        ids=ODD_PROMPTS,
    ),
    "HRS-Bench": ReleasedFile(
        "synthetic_writing_prompts.csv", make_csv(fill(meta_prompt="one sentence", n1=2, synthetic_prompt="PROMPT")),
        option="synthetic_prompt",
    ),
    "DALL-Eval": ReleasedFile("prompt_list.json", json.dumps(ODD_PROMPTS, indent=2, ensure_ascii=False)),
    "ABC-6K": ReleasedFile("ABC-6K.txt", join_lines(ODD_PROMPTS)),
    "MJHQ-30K": ReleasedFile(
        "meta_data.json",
        json.dumps({f"{row.pop('n'):x}": row for row in fill(n="NUMBER", category="animals", prompt="PROMPT")}),
        ids=make_ids("{:x}", 1),
    ),
    "Winoground": ReleasedFile(
        "examples.jsonl",
        make_jsonl(fill(id="PLACE", caption_0="PROMPT", caption_1="another", tag="Object")),
        ids=make_ids("{}", 0),
        option="caption_0",
    ),
}  # fmt: skip


def list_sweep_arguments(released: ReleasedFile, folder: Path, *options: str) -> list[str]:
    (folder / released.name).write_text(released.content, encoding="utf-8", newline="")
    write_rows(folder / "images/atlas/0.parquet", read_image_rows("atlas", 1))
    return ["sweep=own_images", f"benchmark.prompts={folder / released.name}", f"benchmark.images={folder}/images",
            *options]  # fmt: skip


@pytest.mark.parametrize("benchmark", RELEASES)
def test_a_release_is_read_unchanged(benchmark: str, tmp_path: Path) -> None:
    released = RELEASES[benchmark]
    words = list_sweep_arguments(released, tmp_path)
    if released.option:
        option = f"benchmark.prompt_columns.text={released.option}"
        with pytest.raises(ConfigError, match=option):
            list_sources(load_job_config("sweep", *words).benchmark)
        words.append(option)
    prompts = list_sources(load_job_config("sweep", *words).benchmark).prompts
    assert prompts.column("text").to_pylist() == list(released.texts)
    hashes = [prompt_files.hash_text(text) for text in released.texts]
    assert prompts.column("prompt_id").to_pylist() == list(hashes if released.ids is None else released.ids)


def test_the_commands_read_a_release_or_name_the_option_that_it_needs(tmp_path: Path) -> None:
    words = [f"store={tmp_path}/store", "metric=[edge_density]", "dry_run=true", "benchmark.require_every_image=false"]
    out = run_for_output("sweep", *list_sweep_arguments(RELEASES["PartiPrompts"], tmp_path, *words))
    assert f"{len(UNQUOTED_PROMPTS)} prompts" in " ".join(out.split())
    line = run_refused("sweep", *list_sweep_arguments(RELEASES["TIIF-Bench"], tmp_path, *words))
    assert line.endswith(
        "set benchmark.prompt_columns.text=short_description or benchmark.prompt_columns.text=long_description"
    )


def read(name: str, content: str, **names: str) -> list[dict[str, Any]]:
    return read_prompts(
        content.encode(), name, prompt_files.PromptColumns({**prompt_files.DEFAULT_COLUMN_NAMES, **names})
    )


def test_quotes_count_as_characters_only_if_no_line_uses_them_for_quoting() -> None:
    bad = '1,"x" y\n'
    assert [row["text"] for row in read("p.csv", f"id,text\n{bad}2,z\n")] == ['"x" y', "z"]
    for other in ('2,"z, z"\n', '2,"z"\n', "2,z,z\n", '2,"z\n', '2,"z ""z"""\n'):
        with pytest.raises(prompt_files.SourceError, match=r"row 0 \(line 2\): not CSV .*; correct its quotes"):
            read("p.csv", f"id,text\n{bad}{other}")


def test_a_column_with_repeated_values_is_not_an_id_and_a_configured_column_must_exist() -> None:
    rows = read("p.csv", "id,text\n1,a\n1,b\n")
    assert [row.get("prompt_id") for row in rows] == [None, None]
    with pytest.raises(prompt_files.SourceError, match=r"row 0: expected column\(s\) key, found id, text"):
        read("p.csv", "id,text\n1,a\n", prompt_id="key")


def test_one_value_that_is_not_text_does_not_make_another_column_the_prompt_column(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "a", "caption": "b"}, {"id": 2, "text": 7, "caption": "c"}]
    words = list_sweep_arguments(ReleasedFile("p.jsonl", make_jsonl(rows)), tmp_path)
    with pytest.raises(ConfigError, match=r"p\.jsonl, row 1: expected the prompt as text, found int"):
        list_sources(load_job_config("sweep", *words).benchmark)


def test_a_prompt_without_id_and_text_is_reported(tmp_path: Path) -> None:
    words = list_sweep_arguments(ReleasedFile("p.jsonl", '{"prompt": "a"}\n{"prompt": ""}\n'), tmp_path)
    with pytest.raises(ConfigError, match=r"p\.jsonl, row 1: the prompt has no id and no text; fill one in or remove"):
        list_sources(load_job_config("sweep", *words).benchmark)


def test_files_have_a_maximum_size_and_number_of_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_files, "MAX_PROMPTS", 2)
    with pytest.raises(prompt_files.SourceError, match=r"p\.json: more than 2 prompts; write the file as Parquet"):
        read("p.json", '["a", "b", "c"]')
    monkeypatch.setattr(prompt_files, "MAX_FILE_BYTES", 2**20)
    with pytest.raises(
        prompt_files.SourceError, match=r"p\.json: larger than 1 MiB, the limit .*; write the file as Parquet"
    ):
        read("p.json", " " * 2**20 + '["a"]')


def write_genai_bench(folder: Path) -> list[str]:
    """Write some prompts in GenAI-Bench's format, and images by two generators; return the arguments of a sweep."""
    random = np.random.default_rng(3)
    numbers = random.permutation(np.arange(1, 60))[:16]
    prompts = {f"{number:05d}": {"id": str(number), "prompt": f"prompt {number}"} for number in numbers}
    (folder / "genai_image.json").write_text(json.dumps(prompts))
    for generator, count in (("atlas", 16), ("flint", 11)):
        rows = zip(read_image_rows(generator, 16), random.permutation(list(prompts))[:count], strict=False)
        named = [{**row, "prompt_id": prompt_id, "image_id": f"{generator}-{prompt_id}"} for row, prompt_id in rows]
        write_rows(folder / f"images/{generator}/0.parquet", named)
    return ["sweep=own_images", "benchmark=genai_bench", f"benchmark.prompts={folder}/genai_image.json",
            f"benchmark.images={folder}/images", "benchmark.require_every_prompt=false", f"store={folder}/store",
            "metric=[edge_density]", "cluster=here"]  # fmt: skip


def draw_skills(folder: Path, seed: int) -> dict[str, list[int]]:
    """Write a random genai_skills.json, and return its content: the numbers of prompts, keyed by skill.

    Each prompt is basic, advanced or neither, and some have another skill as well.
    """
    random = np.random.default_rng(seed)
    numbers = random.permutation([int(name) for name in json.loads((folder / "genai_image.json").read_text())]).tolist()
    skills = {"basic": numbers[:7], "advanced": numbers[7:14], "counting": numbers[5:12]}
    (folder / "genai_skills.json").write_text(json.dumps(skills))
    return skills


def compute_means_by_skill(run: Path, skills: Mapping[str, Sequence[int]]) -> tuple[dict[Any, float], dict[Any, float]]:
    """Return a run's means, keyed by (skill, generator), and the same means computed directly from its scores."""
    scores = pd.read_parquet(run / "scores.parquet")
    expected = {
        (skill, generator): float(rows.loc[rows["prompt_id"].astype(int).isin(numbers), "score"].mean())
        for skill, numbers in skills.items()
        for generator, rows in scores.groupby("generator")
    }
    summary = pd.read_parquet(run / "summary.parquet").query("skill != 'overall'")
    return summary.set_index(["skill", "generator"])["mean"].to_dict(), expected


def test_genai_bench_means_are_grouped_by_the_skills_in_the_neighbouring_file(tmp_path: Path) -> None:
    """Figure 4b and tables 10b and 10d of the VQAScore paper show these means. New skills need a new run."""
    words = write_genai_bench(tmp_path)
    run_for_output("sweep", *words)
    first = find_newest_run_folder(tmp_path / "store")
    assert set(pd.read_parquet(first / "summary.parquet")["skill"]) == {"overall"}
    for seed in (1, 2):
        skills = draw_skills(tmp_path, seed)
        assert "0 cells to compute" in run_for_output("sweep", *words, "dry_run=true")
        run_for_output("sweep", *words)
        run = find_newest_run_folder(tmp_path / "store")
        found, expected = compute_means_by_skill(run, skills)
        assert len(found) == 6 and found == pytest.approx(expected)
    counting = [f"{number:05d}" for number in skills["counting"]]
    chosen = list_sources(
        load_job_config("sweep", *words, "benchmark.prompt_columns.where=[skills:counting]").benchmark
    )
    assert sorted(chosen.prompts.column("prompt_id").to_pylist()) == sorted(counting)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([7], "genai_skills.json: expected an object that maps skills to prompts, found list"),
        ({"counting": 7}, "genai_skills.json, 'counting': expected a list of prompts, found int"),
        ({"counting": [True]}, "genai_skills.json, 'counting': expected a prompt's number or id, found True"),
        ({"counting": [99]}, "found only other prompts, such as '00099'"),
    ],
)
def test_a_malformed_file_of_skills_is_refused(tmp_path: Path, content: Any, complaint: str) -> None:
    words = write_genai_bench(tmp_path)
    (tmp_path / "genai_skills.json").write_text(json.dumps(content))
    assert complaint in run_refused("sweep", *words)
