"""Ratings of a randomly generated release are analysed without any metric, as in the tables of the Gecko paper."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.judgement import PEOPLE, Judgement
from plumbline.pipelines.metaeval.metaeval import Findings, run_metaeval
from tests.commands import load_job_config, run_for_output, run_refused

GENERATORS = ("sdxl", "imagen", "muse")
CERTAIN_ANSWERS = {"likert": list("12345"), "wl": ["Aligned", "Not aligned"], "dsg_h": ["Yes", "No"]}
PART_COLUMNS = {"likert": [], "wl": ["word"], "dsg_h": ["question_id"]}
VALUE_BY_ANSWER = {str(grade): (grade - 1) / 4 for grade in range(1, 6)} | {
    "Aligned": 1,
    "Not aligned": 0,
    "Yes": 1,
    "No": 0,
}


def draw_answer(random: np.random.Generator, template: str, quality: float) -> str:
    """Return a random answer by a rater, in the words of the template, about an image or a part of an image.

    The quality of the image, from 0 to 1, makes positive answers more likely.
    """
    if random.random() < {"likert": 0.1, "wl": 0.2, "dsg_h": 0.3}[template]:
        return "Subjective" if template == "dsg_h" and random.random() < 0.5 else "Unsure"
    if template == "likert":
        return str(int(np.clip(round(1 + 4 * quality + random.normal(0, 0.7)), 1, 5)))
    return CERTAIN_ANSWERS[template][int(random.random() > quality)]


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    """Return each template's table of raters' answers, in random order; the table `sxs` has choices between two images.

    Under the template `wl` (words), people rank sdxl and imagen in the opposite order.
    """
    random = np.random.default_rng(7)
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in (*CERTAIN_ANSWERS, "sxs")}
    for prompt in range(60):
        quality = {name: random.beta(3 + 3 * place, 3) for place, name in enumerate(GENERATORS)}
        for generator in GENERATORS:
            for template in CERTAIN_ANSWERS:
                liked = (
                    {"sdxl": "imagen", "imagen": "sdxl"}.get(generator, generator) if template == "wl" else generator
                )
                parts = [()] if template == "likert" else [(str(part),) for part in range(2 + prompt % 3)]
                for rater in random.permutation(["a", "b", "c"])[: random.integers(2, 4)]:
                    rows[template] += [
                        (f"p{prompt}", generator, rater, *part, draw_answer(random, template, quality[liked]))
                        for part in parts
                    ]
        for pair in combinations(GENERATORS, 2):
            a, b = random.permutation(pair)
            for rater in "abc":
                difference = quality[a] - quality[b] + random.normal(0, 0.2)
                side = "Unsure" if abs(difference) < 0.1 else "a" if difference > 0 else "b"
                rows["sxs"].append((f"p{prompt}", a, b, rater, side))
    rows["dsg_h"].append(("p0", "muse", "a", "none", "Invalid"))
    columns = {name: ["prompt_id", "generator", "rater", *PART_COLUMNS[name], "answer"] for name in CERTAIN_ANSWERS}
    columns["sxs"] = ["prompt_id", "generator_a", "generator_b", "rater", "answer"]
    return {name: pd.DataFrame(rows[name], columns=columns[name]).sample(frac=1, random_state=3) for name in rows}


@pytest.fixture(scope="module")
def release(tables: dict[str, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gecko")
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    return folder


def judge_gecko(release: Path, *overrides: str) -> Findings:
    few = ("sampling.resamples=20", "sampling.permutations=20", f"output={release}/out")
    return run_metaeval(load_job_config("metaeval", "protocol=gecko", f"protocol.path={release}", *few, *overrides))


@pytest.fixture(scope="module")
def findings(release: Path) -> Findings:
    return judge_gecko(release)


def find_judgement(findings: Findings, template: str, statistic: str, group: str) -> Judgement:
    (only,) = (
        one
        for one in findings.judgements
        if (one.metric, one.template, one.statistic, one.group) == (PEOPLE, template, statistic, group)
    )
    return only


def compute_alpha(units: dict[Any, list[float]]) -> float:
    """Compute Krippendorff's alpha with interval distance pair by pair, from observed and expected disagreement."""
    paired = [values for values in units.values() if len(values) > 1]
    every = np.concatenate(paired)
    observed = sum(((np.subtract.outer(own, own) ** 2).sum() / (len(own) - 1)) for own in map(np.array, paired))
    expected = (np.subtract.outer(every, every) ** 2).sum() / (len(every) - 1)
    return float(1 - observed / expected)


def group_answers(table: pd.DataFrame, keys: list[str], values: dict[str, float]) -> dict[Any, list[float]]:
    sure = table.assign(value=table["answer"].map(values)).dropna(subset=["value"])
    return {key: rows["value"].tolist() for key, rows in sure.groupby(keys)}


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("template", CERTAIN_ANSWERS)
def test_agreement_of_raters_is_computed_by_generator_and_template(
    tables: dict[str, pd.DataFrame], findings: Findings, template: str, generator: str
) -> None:
    """Table 3 of the Gecko paper gives Krippendorff's alpha over images, words or questions."""
    own = tables[template].query("generator == @generator")
    expected = compute_alpha(group_answers(own, ["prompt_id", *PART_COLUMNS[template]], VALUE_BY_ANSWER))
    assert find_judgement(findings, template, "alpha_interval", f"generator {generator}").value == pytest.approx(
        expected
    )


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("template", CERTAIN_ANSWERS)
def test_ratings_have_a_mean_and_deviation_on_a_scale_from_0_to_1(
    tables: dict[str, pd.DataFrame], findings: Findings, template: str, generator: str
) -> None:
    """In table 3, a rater's rating is the fraction of positive answers; an image's rating is its raters' mean."""
    own = tables[template].query("generator == @generator")
    own = own.assign(value=own["answer"].map(VALUE_BY_ANSWER))
    images = own.groupby(["prompt_id", "rater"])["value"].mean().groupby("prompt_id").mean().dropna()
    mean, deviation = (
        find_judgement(findings, template, name, f"generator {generator}") for name in ("mean_0_1", "deviation_0_1")
    )
    assert (mean.value, deviation.value) == pytest.approx((images.mean(), images.std()))
    assert mean.interval.low < mean.value < mean.interval.high and mean.n == deviation.n == len(images)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("template", CERTAIN_ANSWERS)
def test_unsure_answers_are_counted_by_generator_and_template(
    tables: dict[str, pd.DataFrame], findings: Findings, template: str, generator: str
) -> None:
    """Table 9 counts unsure answers: `Subjective` means unsure (appendix D.1), and `Invalid` is not an answer."""
    answers = tables[template].query("generator == @generator and answer != 'Invalid'")["answer"]
    share = find_judgement(findings, template, "unsure", f"generator {generator}")
    assert share.value == pytest.approx(answers.isin(["Unsure", "Subjective"]).mean()) and share.n == len(answers)


def test_agreement_on_choices_does_not_depend_on_the_order_of_a_pair(
    tables: dict[str, pd.DataFrame], release: Path, findings: Findings
) -> None:
    """Table 11 gives the agreement on all prompts and on reliable prompts."""
    reliable = judge_gecko(release, "protocol.reliable=true")
    (kept,) = (int(note.split()[0]) for note in reliable.notes if "prompts are reliable" in note)
    assert 0 < kept < 60
    for first, second in combinations(sorted(GENERATORS), 2):
        pair = tables["sxs"].query("generator_a in [@first, @second] and generator_b in [@first, @second]")
        turned = pair["generator_a"].eq(second)
        pair = pair.assign(answer=pair["answer"].mask(turned, pair["answer"].replace({"a": "b", "b": "a"})))
        expected = compute_alpha(group_answers(pair, ["prompt_id"], {"a": 1, "b": -1, "Unsure": 0}))
        subset = f"generators {first} and {second}"
        assert find_judgement(findings, "side_by_side", "alpha_interval", subset).value == pytest.approx(expected)
        assert find_judgement(reliable, "side_by_side", "alpha_interval", subset).n == kept


def compute_image_means(table: pd.DataFrame) -> pd.Series:
    """Return each image's mean rating, from 0 to 1, over the raters who were sure."""
    rated = table.assign(value=table["answer"].map(VALUE_BY_ANSWER))
    by_rater = rated.groupby(["prompt_id", "generator", "rater"])["value"].mean()
    return by_rater.groupby(["prompt_id", "generator"]).mean().dropna()


@pytest.mark.parametrize("pair", ["likert and wl", "dsg_h and likert", "dsg_h and wl"])
def test_templates_are_correlated_by_generator(tables: dict[str, pd.DataFrame], findings: Findings, pair: str) -> None:
    """Table 10 gives Pearson's and Spearman's correlations between the images' mean ratings."""
    means = pd.concat([compute_image_means(tables[name]).rename(name) for name in pair.split(" and ")], axis=1).dropna()
    groups = {f"generator {name}": means.xs(name, level="generator") for name in GENERATORS}
    for subset, rows in {"overall": means, **groups}.items():
        one, other = rows.round(12).to_numpy().T
        expected = {"pearson": stats.pearsonr(one, other).statistic, "spearman": stats.spearmanr(one, other).statistic}
        for statistic, correlation in expected.items():
            judged = find_judgement(findings, pair, statistic, subset)
            assert judged.value == pytest.approx(correlation) and judged.n == len(rows)


@pytest.mark.parametrize("template", CERTAIN_ANSWERS)
def test_ratings_predict_the_choice_between_two_images(
    tables: dict[str, pd.DataFrame], findings: Findings, template: str
) -> None:
    """Table 12 counts how often the image that most people prefer is also the one with the higher rating."""
    means = compute_image_means(tables[template]).round(12)
    right: dict[str, list[float]] = {"overall": []}
    for (prompt, *sides), rows in tables["sxs"].groupby(["prompt_id", "generator_a", "generator_b"]):
        votes = rows["answer"].value_counts()
        ratings = [means.get((prompt, side)) for side in sides]
        if votes.index[0] != "Unsure" and votes.iloc[0] > 1 and None not in ratings:
            difference = np.sign(ratings[0] - ratings[1]) * (1 if votes.index[0] == "a" else -1)
            first, second = sorted(sides)
            for subset in ("overall", f"generators {first} and {second}"):
                right.setdefault(subset, []).append((difference + 1) / 2)
    assert len(right) == 4
    for subset, expected in right.items():
        judged = find_judgement(findings, f"side_by_side by {template}", "binary_accuracy", subset)
        assert judged.value == pytest.approx(np.mean(expected)) and judged.n == len(expected)


def list_preferences(findings: Findings, template: str) -> dict[tuple[str, str], str | None]:
    return {
        (order.generator_a, order.generator_b): order.better for order in findings.orders if order.template == template
    }


def test_metrics_are_judged_by_the_relation_that_most_templates_find(release: Path, tmp_path: Path) -> None:
    """For each pair of generators, every template says which one people prefer, and the majority of templates counts.

    Section 6.4 of the Gecko paper uses this majority, and figure 2 shows the preferences under all templates.
    """
    means = {"sdxl": 0.1, "imagen": 0.5, "muse": 0.9}
    scores = [(f"p{prompt}", name, mean + prompt / 1000) for prompt in range(60) for name, mean in means.items()]
    pd.DataFrame(scores, columns=["prompt_id", "generator", "ours"]).to_csv(tmp_path / "scores.csv", index=False)
    findings = judge_gecko(release, f"scores={tmp_path}/scores.csv", "protocol.alpha=0.001")
    by_template = {name: list_preferences(findings, name) for name in (*CERTAIN_ANSWERS, "side_by_side")}
    majority = list_preferences(findings, "majority")
    page = (release / "out/judgements.md").read_text()
    (table,) = page.split("### relations of generators by people\n")[1:]
    cells_of = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line[:1] == "|"]
    lines = {name: cells for name, *cells in cells_of}
    shown = lines["generators"]
    assert {*shown} == {*by_template, "majority", "templates have"}
    for pair in combinations(sorted(GENERATORS), 2):
        votes = [better[pair] for better in by_template.values()]
        most = {one for one in votes if votes.count(one) == max(map(votes.count, votes))}
        assert majority.get(pair, "none") == (most.pop() if len(most) == 1 else "none")
        signs = {pair[0]: ">", pair[1]: "<", None: "=", "none": "–"}
        cells = dict(zip(shown, lines[", ".join(pair)], strict=True))
        assert [cells[name] for name in by_template] == [signs[better] for better in votes]
        assert cells["majority"] == signs[majority.get(pair, "none")]
        conflicts = {*pair} <= {*votes}
        assert cells["templates have"] == (
            "a conflict" if conflicts else "the same relation" if len({*votes}) == 1 else "no conflict"
        )
    assert {cells[-1] for name, cells in lines.items() if ", " in name} > {"a conflict"}
    ordering = next(
        one for one in findings.judgements if (one.template, one.statistic) == ("majority", "model_ordering")
    )
    ours = list_preferences(findings, "")
    assert ordering.value == pytest.approx(np.mean([majority[pair] == ours[pair] for pair in majority]))


def test_each_template_has_its_configured_scale(tmp_path: Path) -> None:
    """Pass marks follow the configured scales, 1 to 5 and 0 to 9, although no rating reaches the top of its scale."""
    random = np.random.default_rng(1)
    rows = [
        (f"p{at}", name, "a", template, int(random.integers(1, most)))
        for at in range(20)
        for name in ("imagen", "muse")
        for template, most in (("likert", 5), ("errors", 9))
    ]
    frame = pd.DataFrame(rows, columns=["prompt_id", "generator", "rater", "template", "rating"])
    frame.sample(frac=1, random_state=1).to_csv(tmp_path / "ratings.csv", index=False)
    scores = frame[["prompt_id", "generator"]].drop_duplicates()
    scores.assign(ours=random.random(len(scores))).to_csv(tmp_path / "scores.csv", index=False)
    asked = ["protocol=long", f"protocol.path={tmp_path}/ratings.csv", f"scores={tmp_path}/scores.csv"]
    asked += [f"output={tmp_path}/out", "sampling.resamples=20", "sampling.permutations=20"]
    findings = run_metaeval(load_job_config("metaeval", *asked, "protocol.scales={likert: [1, 5], errors: [0, 9]}"))
    passing = {one.template: one.convention for one in findings.judgements if one.statistic == "sensitivity"}
    assert "a mean rating of 4 or more" in passing["likert"] and "of 6.75 or more" in passing["errors"]
    with pytest.raises(SourceError, match=r"ratings are outside 0 to 5, first [678] of image"):
        run_metaeval(load_job_config("metaeval", *asked, "protocol.scales={likert: [1, 5], errors: [0, 5]}"))


SKILLS = ("attribute", "counting", "basic", "advanced")


@pytest.fixture
def genai_bench(tmp_path: Path) -> pd.DataFrame:
    """Write random ratings in GenAI-Bench's layout, some missing, and a file of skills; return the ratings.

    A prompt is either basic or advanced and has further skills, or it has no skill at all.
    """
    random = np.random.default_rng(11)
    rows = [
        (prompt, generator, rater, int(random.integers(1, 6)))
        for prompt in range(1, 41)
        for generator in random.permutation(GENERATORS)[: random.integers(2, 4)]
        for rater in range(random.integers(1, 4))
    ]
    rated = pd.DataFrame(rows, columns=["prompt", "generator", "rater", "rating"])
    content: dict[str, dict[str, Any]] = {}
    for (prompt, generator), own in rated.groupby(["prompt", "generator"]):
        record = content.setdefault(f"{prompt:05d}", {"prompt": f"prompt {prompt}", "models": {}})
        record["models"][generator] = own["rating"].tolist()
    (tmp_path / "genai_image.json").write_text(json.dumps(content))
    numbers = random.permutation(40)[:36] + 1
    parts = {"basic": numbers[:20], "advanced": numbers[20:], "attribute": numbers[::2], "counting": numbers[15:]}
    (tmp_path / "genai_skills.json").write_text(json.dumps({name: parts[name].tolist() for name in SKILLS}))
    return rated.assign(skills=[[name for name in SKILLS if one in parts[name]] for one in rated["prompt"]])


def test_people_rate_generators_by_skill_without_any_scores(tmp_path: Path, genai_bench: pd.DataFrame) -> None:
    """Tables 10a and 10c of the VQAScore paper have these means; `basic` and `advanced` are treated as skills."""
    path = tmp_path / "genai_image.json"
    run_for_output("metaeval", "protocol=genai_bench", f"protocol.path={path}", f"output={tmp_path}/out")
    findings = pd.read_parquet(tmp_path / "out/judgements.parquet").query("statistic == 'mean_rating'")
    images = genai_bench.groupby(["prompt", "generator"]).agg({"rating": "mean", "skills": "first"}).reset_index()
    expected = images.explode("skills").groupby(["skills", "generator"])["rating"].agg(["mean", "count"])
    by_skill = findings[findings["subset"] != "overall"].set_index(["subset", "generator"])
    assert len(by_skill) == len(SKILLS) * len(GENERATORS)
    assert by_skill["value"].to_dict() == pytest.approx(expected["mean"].to_dict())
    assert by_skill["n"].to_dict() == expected["count"].to_dict()
    assert (by_skill["low"] < by_skill["value"]).all() and (by_skill["value"] < by_skill["high"]).all()
    overall = findings[findings["subset"] == "overall"].set_index("generator")["value"]
    assert overall.to_dict() == pytest.approx(images.groupby("generator")["rating"].mean().to_dict())
    page = (tmp_path / "out/judgements.md").read_text()
    shown = page.partition("### people, likert, mean_rating by generator and skill\n\n")[2].partition("\n\n")[0]
    assert all(f"| {name} " in shown for name in (*SKILLS, *GENERATORS))
    assert f"{expected['mean']['basic', 'muse']:.3f} [" in shown


DATASETS = ("conjunction", "contrast", "coco")


@pytest.fixture
def compositions(tmp_path: Path) -> pd.DataFrame:
    """Write ratings from 1 to 10, error counts from 0 to 9, and the scores of two metrics; return the table.

    The prompts come from three datasets, one of which has images by a single generator only.
    """
    random = np.random.default_rng(5)
    rows = []
    for number in random.permutation(90):
        dataset = DATASETS[number % 3]
        for generator in GENERATORS[: 1 if dataset == "coco" else 2]:
            quality = random.random()
            scores = {"good": quality + random.normal(0, 0.2), "poor": random.random()}
            overall, errors = int(np.clip(1 + 10 * quality, 1, 10)), int(np.clip(random.normal(9 - 9 * quality), 0, 9))
            rows.append((f"p{number}", generator, dataset, *scores.values(), overall, errors))
    columns = ["prompt_id", "generator", "skills", "good", "poor", "overall", "errors"]
    table = pd.DataFrame(rows, columns=columns)
    ids = ["prompt_id", "generator"]
    table.sample(frac=1, random_state=1)[[*ids, "good", "poor"]].to_csv(tmp_path / "scores.csv", index=False)
    rated = table.melt([*ids, "skills"], ["overall", "errors"], "template", "rating")
    rated.sample(frac=1, random_state=2).to_csv(tmp_path / "ratings.csv", index=False)
    return table


def test_metrics_are_judged_by_dataset_and_generator_and_by_the_mean_over_both(
    tmp_path: Path, compositions: pd.DataFrame
) -> None:
    """LLMScore's tables 1 and 2 and figure 5 reverse error counts: 2 errors (of at most 9) become a rating of 7."""
    asked = [
        "protocol=long", f"protocol.path={tmp_path}/ratings.csv", f"scores={tmp_path}/scores.csv",
        "protocol.by_generator=true", "protocol.statistics=[kendall_b,spearman]", "protocol.fewer_is_better=[errors]",
        "protocol.scales={overall: [1, 10], errors: [0, 9]}", "sampling.resamples=20", "sampling.permutations=20",
    ]  # fmt: skip
    run_for_output("metaeval", *asked, f"output={tmp_path}/out")
    findings = pd.read_parquet(tmp_path / "out/judgements.parquet")
    value = findings.set_index(["template", "metric", "statistic", "subset", "generator"])["value"].sort_index()
    for template, sign in (("overall", 1), ("errors", -1)):
        for metric in ("good", "poor"):
            for statistic, correlate in (("kendall_b", stats.kendalltau), ("spearman", stats.spearmanr)):
                groups = {
                    group: sign * correlate(rows[template], rows[metric]).statistic
                    for group, rows in compositions.groupby(["skills", "generator"])
                }
                judged = value[template, metric, statistic]
                assert len(groups) == 5 and {group: judged[group] for group in groups} == pytest.approx(groups)
                assert judged["mean of groups", ""] == pytest.approx(np.mean([*groups.values()]))
    assert value["errors", "good", "kendall_b", "mean of groups", ""] > 0.5
    means = compositions.groupby("generator")["errors"].mean()
    people = value["errors", "people", "mean_rating", "overall"]
    assert people.to_dict() == pytest.approx((9 - means).to_dict())
    page = (tmp_path / "out/judgements.md").read_text()
    assert "### errors, generator sdxl, conjunction" in page and "errors: fewer is better" in page


def test_error_counts_are_only_reversed_on_a_known_scale(tmp_path: Path, compositions: pd.DataFrame) -> None:
    asked = ["metaeval", "protocol=long", f"protocol.path={tmp_path}/ratings.csv", f"scores={tmp_path}/scores.csv"]
    said = run_refused(*asked, "protocol.fewer_is_better=[errors]")
    assert "if their scale is known" in said and "protocol.scales={errors: [0, 9]}" in said
    assert "expected one of errors, overall, got 'error'" in run_refused(*asked, "protocol.fewer_is_better=[error]")
