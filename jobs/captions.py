"""Scores captions against human-written captions: BLEU-4, METEOR, ROUGE-L, CIDEr and RefCLIPScore."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.exit_codes import COMPLETE, WITHIN_BUDGET
from plumbline.pipelines.metaeval.captions import CaptionsConfig, write_captions

COMMAND = Command(
    "captions",
    "Score captions against people's captions of the same images: BLEU-4, METEOR, ROUGE-L and CIDEr.\n"
    "run=latest or scores=PATH with the original CLIPScore of the pairs adds RefCLIPScore.\n"
    "plumbline metaeval scores=OUTPUT then compares them with people's ratings.",
    CaptionsConfig,
    extra="captions",
    first="captions",
)


def main(config: CaptionsConfig) -> int:
    """Write the scores; return 0 if every caption has all scores, else 2."""
    console = make_console()
    scores = write_captions(config)
    null = scores.column("score").null_count
    metrics = ", ".join(scores.column("metric").unique().to_pylist())
    say(console, f"{len(scores)} scores ({metrics}), {null} of them null, written to {config.output}")
    failed = [row for row in scores.select(["image_id", "error"]).to_pylist() if row["error"]]
    kinds = [row["error"]["kind"] for row in failed]
    for kind in dict.fromkeys(kinds):
        first = failed[kinds.index(kind)]
        count = format_quantity(kinds.count(kind), "score")
        warn(console, f"{count} null ({kind}), such as image {first['image_id']!r}: {first['error']['message']}")
    return WITHIN_BUDGET if null else COMPLETE


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
