"""Scores captions by what people wrote of the same images: BLEU-4, METEOR, ROUGE-L, CIDEr and RefCLIPScore."""

import sys
from collections.abc import Iterator

import pyarrow as pa

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.exit_codes import COMPLETE, WITHIN_BUDGET
from plumbline.pipelines.metaeval.captions import CaptionsConfig, write_captions

COMMAND = Command(
    "captions",
    "Score captions by what people wrote of the same images: BLEU-4, METEOR, ROUGE-L and CIDEr.\n"
    "run=latest or scores=PATH with the original CLIPScore of the pairs adds RefCLIPScore.\n"
    "plumbline metaeval scores=OUTPUT then compares them with people's ratings.",
    CaptionsConfig,
    first="captions",
)


def main(config: CaptionsConfig) -> int:
    """Write the scores; return 0 if every caption has all scores, else 2."""
    console = make_console()
    scores = write_captions(config)
    null = scores.column("score").null_count
    metrics = ", ".join(scores.column("metric").unique().to_pylist())
    say(console, f"{len(scores)} scores ({metrics}), {null} of them null, written to {config.output}")
    for line in _explain_nulls(scores):
        warn(console, line)
    return WITHIN_BUDGET if null else COMPLETE


def _explain_nulls(scores: pa.Table) -> Iterator[str]:
    """Yield a line for each kind of error, with the first image and the reason."""
    rows = scores.select(["image_id", "error"]).to_pylist()
    failed = [(row["error"]["kind"], row["image_id"], row["error"]["message"]) for row in rows if row["error"]]
    kinds = [kind for kind, *_ in failed]
    for kind in dict.fromkeys(kinds):
        _, image_id, message = failed[kinds.index(kind)]
        yield f"{plural(kinds.count(kind), 'score')} null by {kind}, first of image {image_id!r}: {message}"


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
