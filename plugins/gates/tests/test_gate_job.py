"""A run passes, fails or is undecided against a bound, another run, or another generator of the same run."""

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from numpy.typing import NDArray

from plumbline.pipelines.base.exit_codes import COMPLETE, GATE_FAILED
from plumbline.pipelines.store.runs import read_manifest
from plumbline.plugins.gates.rules import Rule
from tests.bench_of import Bench, read_image_rows
from tests.commands import FinishedJob, run
from tests.operators.report.made import MadeRun, make_plain_prompts, make_run

Floats = NDArray[np.float64]
ROOT = Path(__file__).parents[3]
N_PROMPTS = 60
EARLIER_RUN, RUN = "20260101-000000-000000", "20260102-030405-000006"
MEAN_CHANGES = {"atlas": 0.0, "borealis": 0.005, "cobalt": -0.15}
"""Mean change of each generator's scores since the earlier run; atlas's scores are unchanged."""
NOISE = np.random.default_rng(7).normal(0, 0.02, (3, N_PROMPTS))


def score_earlier_run(generator: str, metric: str, prompt: int) -> float:
    return 0.5 + 0.1 * list(MEAN_CHANGES).index(generator) + 0.2 * ((prompt * 37) % 11) / 10


def score_later_run(generator: str, metric: str, prompt: int) -> float | None:
    if generator == "cobalt" and prompt < 3:
        return None
    place = list(MEAN_CHANGES).index(generator)
    return score_earlier_run(generator, metric, prompt) + (place > 0) * (
        MEAN_CHANGES[generator] + float(NOISE[place, prompt])
    )


class Runs(NamedTuple):
    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def gate(self, rules: str | Mapping[str, Any], *words: str) -> FinishedJob:
        text = rules if isinstance(rules, str) else yaml.safe_dump({"rules": rules})
        (self.folder / "gate.yaml").write_text(text)
        return run("gate", f"store={self.store}", f"rules={self.folder}/gate.yaml", f"run={RUN}", *words)

    def read_error(self, rules: str, *words: str) -> str:
        ended = self.gate(f"rules:\n  floor: {rules}" if rules.startswith("{") else rules, *words)
        assert ended.code == 1, ended
        return ended.line.replace(f"{self.folder}/", "")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    given: dict[str, Any] = {
        "prompts": make_plain_prompts(N_PROMPTS),
        "metrics": ("gecko", "entropy", "lpips"),
        "question_metrics": (),
    }
    given["lower_is_better"] = ["lpips"]
    known = {"atlas": {"cfg": {"7.5": 60}}, "borealis": {"cfg": {"7.5": 60}}, "cobalt": {"cfg": {"4": 60}}}
    older = make_run(folder, **given, score=score_earlier_run, run_id=EARLIER_RUN, settings=known)
    known |= {"atlas": {"cfg": {"4": 60}}}
    newer = make_run(folder, **given, score=score_later_run, run_id=RUN, settings=known, first_recipe=9)
    for made in (older, newer):
        add_metric_options(made, entropy={"kind": "image_statistic", "statistic": "entropy"}, gecko={"kind": "gecko"})
    return Runs(folder)


def add_metric_options(made: MadeRun, **options: Any) -> None:
    manifest = read_manifest(made.store, made.run_id)
    manifest["config"]["metrics"] |= options
    made.store.write_json(f"runs/{made.run_id}/manifest.json", manifest)


def read_gecko_scores(runs: Runs, run_id: str, generator: str) -> Floats:
    table = pq.read_table(runs.store / f"runs/{run_id}/scores.parquet").to_pandas()
    chosen = table[(table["generator"] == generator) & (table["metric"] == "gecko")]
    return chosen.sort_values("prompt_id")["score"].to_numpy(np.float64)


def draw_gaffke_means(values: Floats, worst: float, draws: int = 100_000) -> Floats:
    """Draw Gaffke's means: weighted means of the values and the worst value, with uniformly drawn weights."""
    weights = np.random.default_rng(1).dirichlet(np.ones(len(values) + 1), draws)
    return np.asarray(weights @ np.append(values, worst))


def test_a_run_that_is_no_worse_passes_and_its_finding_has_an_interval_and_a_p_value(runs: Runs) -> None:
    """The p-value and the interval agree with a simulation of Gaffke's test on the prompts' differences."""
    rules = {"as good": {"metric": "gecko", "no_worse_by": 0.06, "candidate": "borealis"}}
    ended = runs.gate(rules, "against=previous")
    assert ended.code == COMPLETE, ended
    assert f"as good borealis: gecko worse by less than 0.06 than in run {EARLIER_RUN}" in ended.words
    differences = read_gecko_scores(runs, RUN, "borealis") - read_gecko_scores(runs, EARLIER_RUN, "borealis")
    shown = re.search(r"(\S+) \(90% interval (\S+) to (\S+)\) on 60 prompts, p (\S+)", ended.words)
    assert shown is not None, ended
    mean, low, high, p_value = (float(number.replace("−", "-")) for number in shown.groups())
    below, above = draw_gaffke_means(differences, -1), -draw_gaffke_means(-differences, -1)
    assert mean == pytest.approx(differences.mean(), abs=6e-4)
    assert low == pytest.approx(np.quantile(below, 0.05), abs=2e-3)
    assert high == pytest.approx(np.quantile(above, 0.95), abs=2e-3)
    assert p_value == pytest.approx(np.mean(below <= -0.06), abs=4e-3)
    assert "one-sided alpha 0.05" in ended.words and "the gate passed: 1 rule, 1 check" in ended.words


def test_an_assumed_score_range_is_reported(runs: Runs) -> None:
    """All lpips scores lie between 0.5 and about 0.924, so the message reports that this range was assumed."""
    ended = runs.gate(
        {"as good": {"metric": "lpips", "no_worse_by": 0.03, "candidate": "borealis"}}, "against=previous"
    )
    assert ended.code == COMPLETE, ended
    assert "lpips declares no range: assumed to be 0.5" in ended.words and ", like all scores here" in ended.words
    known = {"as good": {"metric": "gecko", "no_worse_by": 0.06, "candidate": "borealis"}}
    assert "assumed to be" not in runs.gate(known, "against=previous").words


def test_a_worse_run_fails_with_its_own_exit_code(runs: Runs) -> None:
    rules = {"as good": {"metric": "gecko", "no_worse_by": 0.02, "candidate": "cobalt"}}
    ended = runs.gate(rules, f"against={EARLIER_RUN}", "settings=ignore")
    assert ended.code == GATE_FAILED == 7
    assert "│ failed │ as good │ cobalt │ overall │ −0.1".replace("│ ", "") in ended.words
    assert "on 57 prompts, violated with p < 0.001 (Holm)" in ended.words
    assert "the gate failed by as good: 1 check of 1" in ended.words


def test_a_rule_with_too_few_prompts_reports_how_many_are_needed(runs: Runs) -> None:
    """Samples of the suggested size, drawn with replacement from the same prompts, pass in 80% of cases."""
    rules = {"gain": {"metric": "lpips", "no_worse_by": 0.015, "candidate": "borealis"}}
    ended = runs.gate(rules, f"against={EARLIER_RUN}")
    assert ended.code == GATE_FAILED and "cannot tell, fails" in ended.words
    needed = int(ended.words.partition("it takes about ")[2].split()[0].replace(",", ""))
    differences = -NOISE[1] - MEAN_CHANGES["borealis"]
    scores = [
        score(name, "lpips", prompt)
        for score in (score_earlier_run, score_later_run)
        for name in MEAN_CHANGES
        for prompt in range(N_PROMPTS)
    ]
    known = [score for score in scores if score is not None]
    samples = np.random.default_rng(0).choice(differences, (200, needed))
    shown = [np.quantile(draw_gaffke_means(one, min(known) - max(known), 4000), 0.05) > -0.015 for one in samples]
    assert N_PROMPTS < needed < 400 and np.mean(shown) == pytest.approx(0.8, abs=0.12)
    lenient = {"gain": rules["gain"] | {"cannot_tell": "passes"}}
    ended = runs.gate(lenient, f"against={EARLIER_RUN}")
    assert ended.code == COMPLETE and "(passes if there are too few prompts to decide)" in ended.words
    (runs.folder / "few.yaml").write_text(yaml.safe_dump({"alpha": 0.3, "rules": rules}))
    words = [f"store={runs.store}", f"rules={runs.folder}/few.yaml", f"against={EARLIER_RUN}"]
    assert run("gate", *words).code == COMPLETE, "a larger alpha decides the rule"


def test_no_number_of_prompts_is_suggested_for_a_candidate_beyond_the_margin(runs: Runs) -> None:
    """The allowed drop is 0.14, and cobalt's scores dropped by 0.15 on 57 prompts."""
    rules = {"as good": {"metric": "gecko", "no_worse_by": 0.14, "candidate": "cobalt"}}
    ended = runs.gate(rules, f"against={EARLIER_RUN}", "settings=ignore")
    assert ended.code == GATE_FAILED and "cannot tell, fails" in ended.words
    assert "the observed mean is on the wrong side of the bound" in ended.words and "it takes" not in ended.words


@pytest.mark.parametrize(("prompts", "outcome"), [(12, "cannot tell"), (58, "cannot tell"), (59, "passed")])
def test_equal_scores_pass_if_there_are_enough_prompts_to_show_a_loss(
    tmp_path: Path, prompts: int, outcome: str
) -> None:
    """A candidate that loses 1 prompt in 20 loses none of n prompts with probability 0.95^n.

    For n = 59 this is 0.0485, so 59 prompts are enough at alpha = 0.05.
    """
    made: dict[str, Any] = {
        "prompts": make_plain_prompts(prompts),
        "metrics": ("tifa",),
        "question_metrics": (),
        "skills": False,
    }
    for place, run_id in enumerate((EARLIER_RUN, RUN)):
        finished = make_run(tmp_path, **made, score=lambda *_: 1.0, run_id=run_id, first_recipe=place)
        add_metric_options(finished, tifa={"kind": "tifa"})
    ended = Runs(tmp_path).gate({"as good": {"metric": "tifa", "no_worse_by": 0.05, "candidate": "atlas"}},
                                f"against={EARLIER_RUN}")  # fmt: skip
    assert (ended.code == COMPLETE) == (outcome == "passed"), ended
    if outcome != "passed":
        least = 1 - 0.05 ** (1 / prompts)
        assert (
            f"{prompts} such prompts can show a margin of {least:.3f} (80% power); it takes about 59 such prompts"
            in (ended.words)
        )
        assert "equal scores do not prove equal images" in ended.words


def test_equal_scores_without_a_declared_range_are_undecided(tmp_path: Path) -> None:
    made: dict[str, Any] = {
        "prompts": make_plain_prompts(500),
        "metrics": ("clipscore",),
        "question_metrics": (),
        "skills": False,
    }
    for place, run_id in enumerate((EARLIER_RUN, RUN)):
        make_run(tmp_path, **made, score=lambda *_: 0.25, run_id=run_id, first_recipe=place)
    ended = Runs(tmp_path).gate({"as good": {"metric": "clipscore", "no_worse_by": 0.05}}, f"against={EARLIER_RUN}")
    assert ended.code == GATE_FAILED and "all scores are equal, and clipscore declares no range" in ended.words


def test_byte_identical_images_pass_with_any_number_of_prompts(tmp_path: Path) -> None:
    """Both generators' images are written again, so their files and the cells of their scores are new.

    Atlas has the same images as before. Flint's images are replaced by atlas's, but all scores are the same.
    """
    bench = Bench(tmp_path, "cluster=here", "metric=[clipscore]", "metrics.clipscore.variant=torchmetrics", count=8)
    write_rules = (tmp_path / "gate.yaml").write_text
    assert bench.run().code == COMPLETE
    for generator in ("atlas", "flint"):
        shown = read_image_rows(generator, 8)
        if generator == "flint":
            for one, other in zip(shown, read_image_rows("atlas", 8), strict=True):
                one["image"] = other["image"]
        file = bench.write(generator, shown)
        os.utime(file, (1_800_000_000, 1_800_000_000))
    assert bench.run().code == COMPLETE
    words = [f"store={bench.store.place.url}", f"rules={tmp_path}/gate.yaml", "against=previous"]
    write_rules("rules: {as good: {metric: clipscore, no_worse_by: 0.01}}")
    ended = run("gate", *words, "candidate=atlas")
    assert ended.code == COMPLETE and "the same images on all 8 prompts" in ended.words, ended
    assert "the same images" not in run("gate", *words, "candidate=flint").words
    write_rules("rules: {gain: {metric: clipscore, better_by: 0, cannot_tell: passes}}")
    assert run("gate", *words, "candidate=atlas").code == GATE_FAILED, "the same images are certainly not better"


def test_two_generators_of_the_same_run_are_compared(runs: Runs) -> None:
    """Cobalt scores lower than borealis: better for lpips, where lower is better, but worse for gecko."""
    gain = {"gain": {"metric": "lpips", "better_by": 0.01}}
    ended = runs.gate(gain, "candidate=cobalt", "baseline=borealis", "settings=ignore")
    assert ended.code == COMPLETE and "−0.05" in ended.words and " against borealis" in ended.words
    own = {"gain": {"metric": "gecko", "better_by": 0.01, "candidate": "cobalt", "baseline": "borealis"}}
    assert runs.gate(own, "settings=ignore").code == GATE_FAILED
    assert "is the candidate itself" in run("gate", f"store={runs.store}", "rules=x", "candidate=a", "baseline=a").line
    itself = {"gain": {"metric": "gecko", "no_worse_by": 0.01, "candidate": "cobalt"}}
    ended = runs.gate(itself, "baseline=cobalt")
    assert ended.code == GATE_FAILED and "it is the baseline itself" in ended.words


def test_bounds_on_means_and_coverage_use_the_summary(runs: Runs) -> None:
    passing = {
        "mean": {"metric": "gecko", "at_least": 0.59},
        "no more": {"metric": "entropy", "at_most": 1.2, "surely": True, "candidate": "cobalt"},
        "rows": {"coverage": 0.95},
    }
    ended = runs.gate(passing)
    assert ended.code == COMPLETE, ended
    assert "95.00%: 171 of 180 rows" in ended.words and "0.598 on 60 images" in ended.words
    failing = {"mean": {"metric": "gecko", "at_least": 0.6}, "rows": {"coverage": 0.99},
               "sure": {"metric": "gecko", "at_least": 0.598, "surely": True, "candidate": "atlas"}}  # fmt: skip
    ended = runs.gate(failing)
    assert ended.code == GATE_FAILED and "the gate failed by mean, rows and sure: 3 checks of 7" in ended.words
    assert "cannot tell, fails sure atlas overall 0.598 (90% interval 0.5" in ended.words


def test_comparisons_of_different_settings_are_undecided_unless_settings_are_ignored(runs: Runs) -> None:
    rules = {"as good": {"metric": "gecko", "no_worse_by": 0.05, "candidate": "atlas"}}
    ended = runs.gate(rules, f"against={EARLIER_RUN}")
    assert ended.code == GATE_FAILED
    assert f"the settings differ: cfg 4 here, 7.5 in {EARLIER_RUN}" in ended.words
    assert runs.gate(rules, f"against={EARLIER_RUN}", "settings=ignore").code == COMPLETE
    assert "the settings differ: cfg 4 against 7.5" in runs.gate(rules, "baseline=borealis").words


def test_the_result_is_written_as_junit_and_markdown(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = runs.folder / "steps.md"
    steps.write_text("# before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(steps))
    rules = {
        "a|<b>": {"metric": "gecko", "no_worse_by": 0.02, "candidate": "cobalt"},
        "gain": {"metric": "gecko", "better_by": 0.005, "candidate": "borealis", "cannot_tell": "passes"},
        "rows": {"coverage": 0.99, "candidate": "atlas"},
    }
    ended = runs.gate(
        rules, f"against={EARLIER_RUN}", f"junit={runs.folder}/out/gate.xml", f"summary={runs.folder}/s.md"
    )
    assert ended.code == GATE_FAILED and "added to the summary of this step" in ended.words
    suite = ElementTree.parse(runs.folder / "out/gate.xml").getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3", "failures": "1", "skipped": "1"}  # fmt: skip
    worse, gain, covered = suite
    assert worse.get("classname") == "a|<b>" and worse.get("name") == "cobalt gecko overall"
    assert str(worse[0].get("message")).startswith("failed: −0.1") and worse[0].tag == "failure"
    assert gain[0].tag == "skipped" and covered[0].tag == "system-out"
    page = (runs.folder / "s.md").read_text()
    assert page.startswith("### ❌ the gate failed by a\\|\\<b\\>: 1 check of 3\n")
    assert "| ❌ failed | a\\|\\<b\\> | cobalt: gecko worse by less than 0.02" in page
    assert steps.read_text() == f"# before\n{page}"


def test_rules_and_result_files_can_be_on_s3(runs: Runs, bucket: str) -> None:
    from plumbline.pipelines.base.storage import StorageConfig

    rules = StorageConfig().locate(f"{bucket}/gate.yaml")
    rules.write(b"rules:\n  rows: {coverage: 0.9}\n")
    words = [f"store={runs.store}", f"rules={rules}", f"junit={bucket}/gate.xml", f"summary={bucket}/gate.md"]
    assert run("gate", *words).code == COMPLETE
    assert b'failures="0"' in StorageConfig().locate(f"{bucket}/gate.xml").read()
    assert "### ✅ the gate passed".encode() in StorageConfig().locate(f"{bucket}/gate.md").read()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("{metric: gecko, no_wrose_by: 1}", "rule floor: unknown config key 'no_wrose_by'; did you mean no_worse_by?"),
        ("{metric: geko, at_least: 1}", "rule floor: metric: expected one of entropy, gecko, lpips, got 'geko'; did"),
        (
            "{metric: gecko, at_least: 1, skill: color}",
            "skill: expected one of overall, each, colour, counting, got 'c",
        ),
        ("{metric: gecko, at_least: 1, candidate: atlos}", "candidate: expected one of borealis, cobalt, atlas, got"),
        ("{metric: gecko, no_worse_by: 0}", "rule floor: no_worse_by: expected more than 0 or null, got 0"),
        ("{coverage: 2}", "rule floor: coverage: expected a fraction above 0 and at most 1 or null, got 2"),
        ("{metric: gecko, at_least: .nan}", "'rules.floor.at_least': expected a finite number, got nan"),
        ("{metric: gecko, at_least: 1, at_most: 2}", "rule floor: expected exactly one of at_least, at_most, no_worse"),
        ("{metric: gecko}", "coverage, got none; add one"),
        ("{at_least: 1}", "rule floor: metric: at_least needs a metric; add metric: NAME"),
        ("{coverage: 1, surely: true}", "rule floor: surely: only allowed with at_least and at_most, got coverage"),
        (
            "{metric: entropy, no_worse_by: 1}",
            "higher scores of entropy are neither better nor worse; use at_least or at_most",
        ),
        (
            "{metric: gecko, no_worse_by: 1}",
            "there is nothing to compare with; name another run (against=RUN), or a g",
        ),
        ("rules:\n  a: 3", "gate.yaml: rule a: expected a mapping, got 3; write a: {metric: NAME, at_least: NUM"),
        ("rules: 3", "gate.yaml: rules: expected rules by name, got 3; write `rules:` and a rule below it"),
        ("alpha: 0.7\nrules: {a: {coverage: 1}}", "alpha: expected a probability above 0 and below 0.5, got 0.7"),
        ("rules: {a: {coverage: 1}, a: {coverage: 1}}", "found duplicate key a"),
        ("rules: [a", "gate.yaml: expected YAML of keys and values ("),
    ],
)
def test_invalid_rules_are_refused_in_one_line(runs: Runs, rules: str, said: str) -> None:
    assert said in runs.read_error(rules)


def test_a_baseline_and_another_run_cannot_both_be_set(runs: Runs) -> None:
    words = ["against=latest", "baseline=atlas"]
    said = run("gate", f"store={runs.store}", "rules=gate.yaml", *words)
    assert (
        said.code == 64
        and "baseline=atlas names a generator of the same run, but against=latest is set too" in said.line
    )
    assert "is the run itself; name another run" in runs.read_error("{coverage: 1}", f"against={RUN}")
    assert (
        "rules nowhere.yaml: not found".replace("nowhere", f"{runs.folder}/no")
        in run("gate", f"store={runs.store}", f"rules={runs.folder}/no.yaml").line
    )


def test_the_readme_shows_the_shipped_rules_and_a_read_only_workflow() -> None:
    """The page also mentions every key of a rule."""
    page = (ROOT / "plugins/gates/README.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    rules, pairwise, workflow = blocks
    for rule in pairwise["rules"].values():
        Rule(**rule)
    assert rules == yaml.safe_load((ROOT / "assets/gate.yaml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert all(f"`{key.name}" in page for key in fields(Rule))
