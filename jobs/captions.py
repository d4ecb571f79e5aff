"""Scores captions by what people wrote of the same images: BLEU-4, METEOR, ROUGE-L, CIDEr and RefCLIPScore."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say
from plumbline.pipelines.base.exit_codes import COMPLETE, WITHIN_BUDGET
from plumbline.pipelines.judging.captions import CaptionsConfig, write_captions

COMMAND = Command(
    "captions",
    "Score captions by what people wrote of the same images: BLEU-4, METEOR, ROUGE-L and CIDEr.\n"
    "run=latest or scores=PATH with the original CLIPScore of the pairs adds RefCLIPScore.\n"
    "plumbline metaeval scores=OUTPUT then compares them with people's ratings.",
    CaptionsConfig,
    first="captions",
)


def main(config: CaptionsConfig) -> int:
    """Write the scores; 0 if every caption has all of them, else 2."""
    console = make_console()
    scores = write_captions(config)
    null = scores.column("score").null_count
    metrics = ", ".join(scores.column("metric").unique().to_pylist())
    say(console, f"{len(scores)} scores ({metrics}), {null} of them null, written to {config.output}")
    return WITHIN_BUDGET if null else COMPLETE


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
