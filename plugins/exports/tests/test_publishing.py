"""Publishing sends a run's contents to a tracker. If the tracker fails, the store is not changed."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plumbline.plugins.exports.sinks import SINKS
from plumbline.plugins.exports.sinks.publishing import PublishConfig, publish_run
from plumbline.plugins.exports.sinks.run_contents import RunContents
from tests.commands import run_refused
from tests.operators.report.made import MadeRun, draw_noisy_score, make_run

ROOT = Path(__file__).parent.parent.parent.parent
HOSTILE_NAME = "<b>a/b'\n"


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    made = make_run(
        tmp_path,
        generators=["atlas", "drift"],
        score=lambda generator, *at: None if generator == "drift" else draw_noisy_score(generator, *at),
        benchmark=HOSTILE_NAME,
    )
    made.store.write_text(f"runs/{made.run_id}/report.html", "<p>the report of the run</p>")
    return made


def use_sink(monkeypatch: pytest.MonkeyPatch, sink: Callable[[RunContents], str]) -> None:
    monkeypatch.setattr(SINKS, "loaded", dict.fromkeys(SINKS, sink))


def test_a_sink_receives_means_with_intervals_digests_and_the_report(
    run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[RunContents] = []
    use_sink(monkeypatch, lambda contents: (published.append(contents), "there")[1])
    assert publish_run(PublishConfig(store=run.store.place.url, sink="mlflow", project="images")) == "there"
    (contents,) = published
    rows = run.store.read_table(f"runs/{run.run_id}/summary.parquet").to_pylist()
    (atlas,) = (
        row for row in rows if (row["generator"], row["metric"], row["skill"]) == ("atlas", "gecko", "counting")
    )
    told = {name: contents.numbers[f"gecko/counting/atlas/{name}"] for name in ("mean", "low", "high", "coverage")}
    assert told == {name: atlas[name] for name in told}
    assert [name for name in contents.numbers if "/drift/" in name and not name.endswith("/coverage")] == []
    assert contents.numbers["gecko/overall/drift/coverage"] == 0
    assert (
        contents.facts["models.answers_vqa.parts.checkpoint"] == "0123abcd"
        and contents.facts["benchmark"] == HOSTILE_NAME
    )
    assert (contents.run_id, contents.project) == (
        run.run_id,
        "images",
    ) and contents.report == "<p>the report of the run</p>"


def test_generators_stay_distinct_if_trackers_do_not_accept_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["sdxl_lora", "sdxl+lora", "sdxl@lora", "模型甲", "模型乙", "x" * 90 + "1", "x" * 90 + "2"]
    made = make_run(tmp_path, generators=names, score=draw_noisy_score)
    made.store.write_text(f"runs/{made.run_id}/report.html", "")
    published: list[RunContents] = []
    use_sink(monkeypatch, lambda contents: (published.append(contents), "there")[1])
    publish_run(PublishConfig(store=made.store.place.url, sink="wandb"))
    numbers = published[0].numbers
    rows = made.store.read_table(f"runs/{made.run_id}/summary.parquet").to_pylist()
    means = [row["mean"] for row in rows if row["mean"] is not None]
    assert sorted(value for name, value in numbers.items() if name.endswith("/mean")) == sorted(means)
    assert len({name.split("/")[2] for name in numbers}) == len(names)
    assert all(len(name) <= 250 and re.fullmatch(r"[\w./ -]+", name, re.ASCII) for name in numbers)
    assert any("/sdxl_lora/" in name for name in numbers)


def test_a_failing_sink_is_a_one_line_error_and_does_not_change_the_store(
    run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(contents: RunContents) -> str:
        raise RuntimeError("the server is down\nsince noon")

    def read_store() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(Path(run.store.place.url).rglob("*")) if path.is_file()}

    use_sink(monkeypatch, refuse)
    before = read_store()
    assert run_refused("publish", "sink=wandb", f"store={run.store.place.url}", code=1) == (
        "error: sink=wandb: RuntimeError: the server is down; the run is unchanged; "
        "correct the cause and publish it again"
    )
    assert read_store() == before


@pytest.mark.parametrize("name", sorted(set(SINKS) - {"hub"}))
def test_a_sink_without_its_library_is_refused_with_the_extra_to_install(
    name: str, run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(SINKS.loaded, name, raising=False)
    monkeypatch.delitem(sys.modules, f"plumbline.plugins.exports.sinks.{name}", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    assert f"install the extra '{name}' of plumbline-t2i" in run_refused(
        "publish", f"sink={name}", f"store={run.store.place.url}", code=1
    )
    assert f"\n{name} = [" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.elsewhere
def test_publishing_to_mlflow_twice_updates_the_same_run(
    run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "tracking").as_uri())
    for _ in range(2):
        publish_run(PublishConfig(store=run.store.place.url, sink="mlflow"))
    client = mlflow.MlflowClient()
    (told,) = client.search_runs([client.get_experiment_by_name("plumbline").experiment_id])
    summary = run.store.read_table(f"runs/{run.run_id}/summary.parquet").to_pylist()
    (mean,) = (r["mean"] for r in summary if (r["generator"], r["metric"], r["skill"]) == ("atlas", "gecko", "overall"))
    assert told.data.metrics["gecko/overall/atlas/mean"] == mean
    assert told.data.tags["plumbline.run_id"] == told.info.run_name == run.run_id
    assert told.data.tags["models.answers_vqa.parts.checkpoint"] == "0123abcd"
    assert mlflow.artifacts.load_text(f"{told.info.artifact_uri}/report.html") == "<p>the report of the run</p>"


@pytest.mark.elsewhere
def test_wandb_stores_the_run_offline(run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))
    where = Path(publish_run(PublishConfig(store=run.store.place.url, sink="wandb")))
    (log,) = where.parent.glob("*.wandb")
    assert where.is_relative_to(tmp_path) and b"gecko/overall/atlas/mean" in log.read_bytes()


@pytest.mark.elsewhere
def test_publishing_to_swanlab_twice_updates_the_same_offline_run(
    run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_LOG_DIR", str(tmp_path / "logs"))
    told = {Path(publish_run(PublishConfig(store=run.store.place.url, sink="swanlab"))) for _ in range(2)}
    ids = {folder.name.split("-", 2)[2] for folder in told}
    assert ids == {run.run_id.replace("-", "_")}
    for folder in told:
        (log,) = folder.glob("*.swanlab")
        assert folder.is_relative_to(tmp_path) and b"gecko/overall/atlas/mean" in log.read_bytes()
        assert "models.answers_vqa.parts.checkpoint" in (folder / "files/config.yaml").read_text()
        (page,) = folder.glob("media/html/*.html")
        assert page.read_text() == "<p>the report of the run</p>" and not (folder / "files/requirements.txt").exists()
