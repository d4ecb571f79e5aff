"""A job rejects invalid arguments before it writes anything, with one line that includes the remedy."""

from collections.abc import Callable

import pytest

from tests.refusals import Refusals, list_refusals

REFUSED_COMMANDS: Refusals = {
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
        ("table=x max_failed=3", "max_failed: expected a fraction between 0 and 1, got 3"),
        ("table=x generator=a/b", "generator: 'a/b' cannot be used as a folder name"),
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
        ("images={mine} prompts=ftp://127.0.0.1:1/x", "Connection refused; use a local path, or an address"),
        ("outputs", "/outputs: not found; check the path"),
    ],
    "report store={store}": [
        ("baseline=sdxl", "baseline: expected a generator of the run, atlas or borealis or cobalt, got 'sdxl'"),
        ("run=yesterday", "run=yesterday: no such run in "),
        ("compare=nope", "compare=nope: no such run in "),
    ],
    "rewards store={store} output={out}": [
        ("format=pair", "format: expected one of pairs, "),
        ("format=pairs reward=tifa", "reward: expected metrics of the run (gecko, clipscore), got 'tifa'"),
        ("format=pairs run=yesterday", "run=yesterday: no such run"),
        ("format=pairs selection.margin=wide", "config key 'selection.margin': "),
        ("", "config key 'format' is required"),
    ],
}  # fmt: skip
"""Invalid arguments and the expected message, keyed by the job and the valid arguments that precede them."""


@pytest.mark.parametrize(("command", "said"), list_refusals(REFUSED_COMMANDS))
def test_an_impossible_command_is_refused_in_one_line_with_the_remedy_and_writes_nothing(
    command: str, said: str, check_refusal: Callable[[str, str], None]
) -> None:
    check_refusal(command, said)
