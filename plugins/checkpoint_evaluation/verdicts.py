"""Says whether a checkpoint is better or worse than a baseline, according to the run's report."""

from collections.abc import Iterator

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.sentences import Sentence, format_number
from plumbline.operators.results.comparison import BETTER, TIED, UNLIKE, WORSE
from plumbline.operators.results.summary import OVERALL
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, Ending, make_ending
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.store.run_scores import read_failures
from plumbline.pipelines.store.runs import has_report
from plumbline.pipelines.store.store import Store
from plumbline.plugins.checkpoint_evaluation.evaluate_config import EvaluateConfig

VERDICT_PHRASES = {
    BETTER: "is better than",
    WORSE: "is worse than",
    TIED: "shows no clear difference from",
    UNLIKE: "is not compared, because of other settings, with",
    "": "has no prompt in common with",
}
"""Verb phrases between the names of the checkpoint and the baseline, by the mark that the report gives the checkpoint.
"""


def compare_with_baseline(store: Store, run_id: str, config: EvaluateConfig) -> Iterator[Sentence]:
    """Write the run's report with the baseline, and yield the checkpoint's verdict for each metric that ranks images.

    The verdicts are taken from the report, which uses a signed-rank test over prompts, with Holm's correction over all
    generators that are compared with the baseline.
    """
    baseline = str(config.baseline)
    report = write_report(store, run_id, baseline=baseline, settings=config.settings, cluster=config.cluster)
    page = report.page
    for column in page.columns:
        row, other = column.by_generator.get(config.name), column.by_generator.get(baseline)
        if column.name in page.ranking and row is not None and other is not None:
            verdict = VERDICT_PHRASES[row.group] if other.n else "cannot be compared: no score of"
            better = ", lower is better" * column.lower_is_better
            means = f"{format_number(row.mean)} against {format_number(other.mean)}{better}"
            yield Sentence(f"{config.name} {verdict} {baseline} by {column.name}:", f"{means}.")


def find_ending(store: Store, run_id: str, config: EvaluateConfig) -> Ending:
    """Return how an evaluation ended: its exit code and the reason. Only the checkpoint's own images count.

    Raises PlumblineError with the reason if none of the checkpoint's images has a score.
    """
    rows = store.read_table(f"runs/{run_id}/summary.parquet").to_pylist()
    own = [row for row in rows if row["generator"] == config.name and row["skill"] == OVERALL]
    scored, failed = (sum(row[name] for row in own) for name in ("n", "n_null"))
    if not scored:
        failures = read_failures(store, f"runs/{run_id}").to_pylist()
        first = next((each for each in failures if each["generator"] == config.name), None)
        why = first or next(iter(failures), {"message": "the run has none of its images"})
        raise PlumblineError(f"{config.name}: none of its images has a score: {why['message']}")
    if not has_report(store, run_id):
        return Ending(OVER_BUDGET, "the report could not be made")
    return make_ending(failed, scored + failed, config.max_failed)
