"""Whatever a job cannot do is one line with the remedy, before anything is written."""

from pathlib import Path

import pytest

from tests.bench_of import captioned, write_rows
from tests.commands import refusal
from tests.files import put
from tests.operators.report.made import make_run

REFUSED: dict[str, list[tuple[str, str]]] = {
    "ingest output={out}": [
        ("table=/nowhere/t.csv", "table /nowhere/t.csv: not found"),
        ("table=README.md", "expected a file that ends in .csv"),
        ("tars=/nowhere", "tars /nowhere: expected files that end in .tar"),
        ("", "expected one input: table=FILE"),
        ("table=a tars=b", "expected one input: table=FILE"),
        ("table=a shard_rows=0", "shard_rows: expected at least 1, got 0"),
        ("table=a link_roots=['s3://a']", "link_roots: expected local folders, got 's3://a'"),
        ("table=s3://bucket/t.csv storage.region=none", "s3://: no credentials found; set AWS_ACCESS_KEY_ID"),
        ("tabel=x", "unknown config key 'tabel'; did you mean table"),
        ("table=x on_change=maybe", "config key 'on_change': expected 'fail' or 'replace', got 'maybe'"),
        ("table=x max_failed=3", "max_failed: expected a share between 0 and 1, got 3"),
        ("table=x generator=a/b", "generator: 'a/b' cannot be a folder's name"),
    ],
    "score models=shapes dry_run=true store={out}": [
        ("", "config key 'benchmark.images' is required; set it"),
        ("image={mine}", "unknown config key 'image'; did you mean images or "),
        ("images={mine} prompt=x", "unknown config key 'prompt'; did you mean prompts or "),
        ("images={mine} metrcis=x", "unknown config key 'metrcis'; did you mean metrics"),
        ("images={mine} column.prompt=x", "unknown config key 'column.prompt'; did you mean columns.prompt or "),
        ("images=/nowhere", "benchmark.images /nowhere: not found"),
        ("images={mine}", "expected column(s) image or uri, found picture, caption, seed; rename or add them, or "),
        ("images={mine} metrics=[vqa]", "metric=vqa: no such choice; did you mean vq2 or vqascore?"),
        ("images={mine} prompts=/nowhere", "/nowhere: not found"),
        ("images={mine} prompts=ftp://127.0.0.1:1/x", "Connection refused; name a local path, or an address of s3://"),
        ("outputs", "/outputs: not found; check the path"),
    ],
    "report store={store}": [
        ("baseline=sdxl", "baseline: expected a generator of the run, atlas or borealis or cobalt, got 'sdxl'"),
        ("run=yesterday", "run=yesterday: no such run in "),
        ("compare=nope", "compare=nope: no such run in "),
    ],
    "rewards store={store} output={out}": [
        ("format=pair", "format: expected one of pairs, "),
        ("format=pairs reward=tifa", "reward: the run has no 'tifa'; it has gecko, clipscore"),
        ("format=pairs run=yesterday", "run=yesterday: no such run"),
        ("format=pairs selection.margin=wide", "config key 'selection.margin': "),
        ("", "config key 'format' is required"),
    ],
    "view": [
        ("store=ftp://127.0.0.1:1/x", "files can only be read there; name a folder, or a prefix of s3://, gs:// or az://"),
        ("store=http://example.org", "files can only be read there; name a folder, or a prefix of s3://, gs:// or az://"),
        ("store={store} host=0.0.0.0 token_variable=NO_SUCH_TOKEN", "NO_SUCH_TOKEN"),
        ("store={store} port=70000", "expected 0 to 65535"),
        ("store={store} hosts=[http://gpu-7]", "expected names without scheme and port"),
        ("store={store} memory=10", "expected at least 100 megabytes"),
    ],
    "build_benchmark output={out} models=shapes": [
        ("", "prompts: expected a file of prompts, or generation=llm to have some written"),
        ("generation=llm tagging=llm", "prompts: tagging and drawing are of prompts that are read; name their file"),
        ("prompts={prompts} near_duplicates=0", "near_duplicates: expected a share above 0 and at most 1 or null"),
        ("prompts={prompts} drawing=balanced drawing.count=1",
         "p.csv: drawing balances skills, and none of 1 prompts has one as skills; set prompt_columns.skills"),
        ("prompts={prompts} drawing=balanced", "config key 'drawing.count' is required"),
        ("prompts={prompts} drawing=balanced drawing.count=0", "drawing.count: expected at least 1, got 0"),
        ("prompts={prompts} taxonomy=geko", "taxonomy=geko: no such choice; did you mean gecko"),
        ("generation=llm generation.controls={{Words:[1]}}", "write +generation.controls.NAME=VALUE"),
        ("generation=llm generation.sub_skills=[att/colr]", "'att/colr' has no template in the taxonomy gecko"),
        ("generation=llm +generation.controls.Wrods=[1]", "generation.controls: no template has 'Wrods'"),
        ("prompts={prompts} tagging=llm tagging.writer=judge", "no model has the role 'judge'"),
        ("prompts=none.csv", "none.csv: not found; check the path"),
    ],
}  # fmt: skip
"""By a job and words that go with it: further words, and what is said of them."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A store with a run, a table of images, and a file of prompts without skills."""
    folder = tmp_path_factory.mktemp("refusals")
    write_rows(folder / "mine/mine.parquet", captioned("atlas", 1))
    put(folder, {"p.csv": "prompt_id,text\na,two cats\n"})
    store = make_run(folder).store.place.url
    return {"store": store, "mine": f"{folder}/mine", "prompts": f"{folder}/p.csv"}


@pytest.mark.parametrize(
    ("job", "words", "said"), [(job, *refused) for job, several in REFUSED.items() for refused in several]
)
def test_what_cannot_be_done_is_one_line_with_the_remedy_and_writes_nothing(
    job: str, words: str, said: str, places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFERENCE_DATA", "")
    line = refusal(*f"{job} {words}".format(**places, out=tmp_path / "out").split())
    assert line.startswith("error: ") and said in line
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and ".build" not in path.parts]
    assert not written
