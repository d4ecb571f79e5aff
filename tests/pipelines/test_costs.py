"""A service is tried before Ray starts, and its cost is shown before and after a sweep."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.leaderboards import show_usage
from plumbline.jobs.display.plan_table import show_plan
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.report.run_health import describe_run_cost
from plumbline.pipelines.plans.costs import Cost, describe_costs, estimate_costs, sum_costs, try_services
from plumbline.pipelines.sweeps.planning import PlannedSweep
from tests.bench_of import plan_bench, run_plan, write_benchmark
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_error, make_token_completion

PRICE_OPTION = "models.vqa.prices={read: 2, written: 10}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    started = Server()
    started.script = make_answer
    yield started
    started.close()


def make_answer(number: int, body: dict[str, Any]) -> Answer:
    said = make_token_completion(("Yes", -0.1))
    assert isinstance(said.body, dict)
    return said._replace(body={**said.body, "usage": {"prompt_tokens": 500_000, "completion_tokens": 100_000}})


def plan_costly_sweep(server: Server, folder: Path, *overrides: str, count: int = 4) -> PlannedSweep:
    bench = write_benchmark(folder / "bench", ["atlas"], count=count)
    model = ("model@models.vqa=api", "models.vqa.checkpoint=m", f"models.vqa.key_variable={KEY_VARIABLE}")
    metric = () if any(one.startswith("metric=") for one in overrides) else ("metric=[vqascore]",)
    where = (f"models.vqa.endpoint={server.url}", "models.vqa.max_retries=0")
    return plan_bench(bench, folder / "store", *metric, *model, *where, *overrides)


def ask_models(planned: PlannedSweep) -> None:
    try_services(item.node for item in planned.plan.nodes if item.missing)


def show(planned: PlannedSweep, capsys: pytest.CaptureFixture[str]) -> str:
    show_plan(make_console(), planned)
    return capsys.readouterr().out


def test_a_sweep_reports_its_cost_before_and_after(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = plan_costly_sweep(server, tmp_path, PRICE_OPTION)
    (before,) = estimate_costs(planned.plan, planned.store)
    assert (before.node, before.run_id, before.read, before.written) == ("answers:vqa", None, 1000, 250)
    assert before.calls == 4, "one question about each image"
    assert before.calls == 4, "one question about each image"
    assert before.cost.amount == pytest.approx(before.calls * (1000 * 2 + 250 * 10) / 1e6)
    assert f"answers:vqa: about {before.cost} for {before.calls} calls of a service" in show(planned, capsys)
    assert not server.bodies
    finished = run_plan(planned)
    assert finished.costs == {"answers:vqa": Cost(8.0, "USD")}  # 4 calls of 1 + 1
    show_usage(make_console(), finished.usage, finished.costs)
    assert "400000 written, 8.00 USD" in capsys.readouterr().out
    manifest = json.loads((Path(finished.folder) / "manifest.json").read_text())
    assert manifest["costs"] == {"answers:vqa": {"amount": 8.0, "currency": "USD"}}
    assert describe_run_cost(manifest).endswith(" Services cost 8.00 USD.")
    of_metric = manifest["by_metric"]["vqascore"]
    assert of_metric == {"model_seconds": of_metric["model_seconds"], "gpu_seconds": 0, "costs": {"USD": 8.0}}


GPU_OPTIONS = ("cluster.pools.answers.num_gpus=0.5", "cluster.price_per_gpu_hour=3.6", "cluster.currency=EUR")
TWIN_METRIC = "+metrics.twin={kind: vqascore, model: vqa, reduction: product}"


def test_gpu_seconds_are_priced_and_divided_among_the_metrics_that_share_a_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each image has two answers: one for vqascore and its twin, and one for vnli.

    An answer takes 1.5 calls, including half of the encoding, so vqascore and its twin get a quarter of the stage each,
    and vnli half of it. Half a GPU for 7,200 seconds is one GPU-hour. Time that models spend waiting counts only as
    GPU-seconds.
    """
    bench = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    planned = plan_bench(bench, tmp_path / "store", "metric=[vqascore,vnli,clipscore]", TWIN_METRIC, *GPU_OPTIONS)
    held, worked = (
        {"answers:vqa": 7200.0, "similarities:clip": 90.0},
        {"answers:vqa": 6400.0, "similarities:clip": 10.0},
    )
    facts = describe_costs(planned.plan, {}, planned.config.cluster, held, worked)
    assert facts == {
        "gpu_seconds": {"answers:vqa": 3600.0},
        "costs": {"answers:vqa": {"amount": 3.6, "currency": "EUR"}},
        "by_metric": {
            "vqascore": {"model_seconds": 1600.0, "gpu_seconds": 900.0, "costs": {"EUR": pytest.approx(0.9)}},
            "twin": {"model_seconds": 1600.0, "gpu_seconds": 900.0, "costs": {"EUR": pytest.approx(0.9)}},
            "vnli": {"model_seconds": 3200.0, "gpu_seconds": 1800.0, "costs": {"EUR": pytest.approx(1.8)}},
            "clipscore": {"model_seconds": 10.0, "gpu_seconds": 0.0, "costs": {}},
        },
    }
    assert sum(item.steps for item in planned.plan.nodes) == 4 * 3 + 4 * 2, "the parts add up to the total"
    assert describe_run_cost(facts) == "GPUs and services cost 3.60 EUR."
    show_usage(make_console(), {}, sum_costs(planned.plan, {}, planned.config.cluster, held))
    assert "answers:vqa: 3.60 EUR" in capsys.readouterr().out


def test_prices_of_gpus_and_services_are_in_one_currency(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models.vqa.prices.currency: expected cluster.currency \(EUR\), got USD"):
        plan_costly_sweep(server, tmp_path, PRICE_OPTION, *GPU_OPTIONS)


def test_the_usage_of_a_run_is_the_estimate_for_the_next_one(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = run_plan(plan_costly_sweep(server, tmp_path, PRICE_OPTION))
    planned = plan_costly_sweep(server, tmp_path, PRICE_OPTION, "clips.shown=grid", count=8)
    (told_by_run,) = estimate_costs(planned.plan, planned.store)
    assert (told_by_run.run_id, told_by_run.read, told_by_run.written) == (finished.run_id, 500_000, 100_000)
    assert told_by_run.cost == Cost(2.0 * told_by_run.calls, "USD")
    assert f"as in run {finished.run_id}" in show(planned, capsys)


def test_without_prices_the_output_says_how_to_get_the_cost(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = plan_costly_sweep(server, tmp_path)
    assert estimate_costs(planned.plan, planned.store) == [] and sum_costs(planned.plan, {}) == {}
    assert "calls of a service; models.vqa.prices adds their cost" in show(planned, capsys)


def test_a_service_that_refuses_the_key_is_reported_before_ray_is_imported(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plumbline.pipelines.running.runner", None)  # importing it fails
    server.script = lambda number, body: make_error(401, "no such key")
    with pytest.raises(ModelError, match="answered 401 for the key"):
        run_plan(plan_costly_sweep(server, tmp_path))
    monkeypatch.delenv(KEY_VARIABLE)
    with pytest.raises(ModelError, match=f"{KEY_VARIABLE} is not set"):
        run_plan(plan_costly_sweep(server, tmp_path))
    assert len(server.bodies) == 1


def test_only_needed_services_are_tried_and_each_once(server: Server, tmp_path: Path) -> None:
    nobody = ("model@models.llm=api", "models.llm.checkpoint=m", "models.llm.endpoint=http://127.0.0.1:9/v1")
    ask_models(plan_costly_sweep(server, tmp_path, *nobody))
    assert len(server.bodies) == 1 and server.bodies[0]["top_logprobs"] == 20


def test_a_service_that_only_writes_text_need_not_report_likelihoods(server: Server, tmp_path: Path) -> None:
    in_words = ("metric=[tifa]", "metrics.tifa.answers=reply")
    ask_models(plan_costly_sweep(server, tmp_path, *in_words))
    assert len(server.bodies) == 1 and "logprobs" not in server.bodies[0]
    both = ("metric=[tifa,vqascore]", "metrics.tifa.answers=reply")
    ask_models(plan_costly_sweep(server, tmp_path, *both))
    assert server.bodies[1]["logprobs"] is True
