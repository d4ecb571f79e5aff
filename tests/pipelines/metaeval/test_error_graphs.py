"""A user's table of error graphs is enough to score its images, judge metrics, and count prompts and errors."""

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.commands import run_for_output
from tests.pipelines.metaeval.releases.files import write_file

ERROR_TYPES = ("missing object", "wrong attribute", "verb", "composition")


def draw_graphs(seed: int, count: int) -> list[dict[str, str]]:
    """Return a row for each image of random graphs: nodes are sets of errors, and edges add one or two errors."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        errors = [f"{rng.choice(ERROR_TYPES)}: error {place}" for place in range(4)]
        nodes: dict[str, tuple[list[str], frozenset[str]]] = {"0": ([], frozenset())}
        for place in range(1, int(rng.integers(2, 7))):
            parent = str(rng.choice([*nodes]))
            left = sorted({*errors} - nodes[parent][1])
            if left:
                added = rng.choice(left, int(rng.integers(1, min(3, len(left) + 1))), replace=False)
                nodes[str(place)] = ([parent], nodes[parent][1] | {*map(str, added)})
        subset, source = str(rng.choice(["synth", "nat", "real"])), str(rng.choice(["COCO", "manual"]))
        rows += [
            {
                "graph_id": f"g{number}", "prompt": f"prompt {number}", "subset": subset, "prompt_source": source,
                "node": name, "parents": ";".join(parents), "errors": "; ".join(rng.permutation(sorted(found))),
                "file_name": f"img/{number}-{name}-{image}.png", "model": str(rng.choice(["sdxl", "flux"])),
            }
            for name, (parents, found) in nodes.items()
            for image in range(int(rng.integers(1, 4)))
        ]  # fmt: skip
    return [rows[place] for place in rng.permutation(len(rows))]


def count_shares(names: list[str]) -> dict[str, tuple[int, float]]:
    return {name: (n, pytest.approx(n / len(names))) for name, n in Counter(names).items()}


@pytest.mark.parametrize(("seed", "suffix"), [(0, "csv"), (1, "jsonl"), (2, "parquet"), (3, "json")])
def test_the_contents_of_users_graphs_are_counted_without_scores(seed: int, suffix: str, tmp_path: Path) -> None:
    rows = draw_graphs(seed, 30)
    lists = [{name: row[name].split(";") if row[name] else [] for name in ("parents", "errors")} for row in rows]
    listed = [{**row, **its} for row, its in zip(rows, lists, strict=True)]
    graphs = write_file(tmp_path / f"graphs.{suffix}", listed if suffix in ("parquet", "jsonl") else rows)
    said = run_for_output("metaeval", "protocol=error_graphs", f"protocol.path={graphs}", f"output={tmp_path / 'out'}")
    assert "errors of the error graphs" in said and "no scores: only the judgements are analysed" in said
    found = pd.read_parquet(tmp_path / "out/graph_contents.parquet")
    nodes = {(row["graph_id"], row["node"]): row for row in rows}
    errors = {key: {*row["errors"].split("; ")} - {""} for key, row in nodes.items()}
    added = [
        (row["subset"], error.split(":")[0])
        for key, row in nodes.items()
        for parent in row["parents"].split(";")
        if parent
        for error in errors[key] - errors[key[0], parent]
    ]
    expected = {
        "images": [(row["subset"], row["model"]) for row in rows],
        "prompts": [*{row["graph_id"]: (row["subset"], row["prompt_source"]) for row in rows}.values()],
        "errors": added,
    }
    assert set(found["about"]) == {*expected}
    for about, counted in expected.items():
        for subset in ("overall", "synth", "nat", "real"):
            of_subset = found[(found["about"] == about) & (found["subset"] == subset)].set_index("name")
            names = [name for its, name in counted if subset in ("overall", its)]
            assert {row.Index: (row.n, row.share) for row in of_subset.itertuples()} == count_shares(names)


def test_one_table_contains_both_the_images_and_the_error_graphs(tmp_path: Path) -> None:
    """Noise grows with the number of errors and raises the edge density, so a lower edge density is better."""
    rows, rng = draw_graphs(7, 8), np.random.default_rng(7)
    for row in rows:
        pixels = np.full((32, 32, 3), 128, np.uint8)
        noisy = rng.random((32, 32)) < len(row["errors"].split(";")) * bool(row["errors"]) / 8
        pixels[noisy] = rng.integers(0, 256, (int(noisy.sum()), 3))
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        write_file(tmp_path / row["file_name"], stream.getvalue())
    graphs = write_file(tmp_path / "graphs.csv", rows)
    judged = ["protocol=error_graphs", f"protocol.path={graphs}", "protocol.falling=[edge_density]"]
    store = f"store={tmp_path / 'store'}"
    run_for_output("score", f"images={graphs}", "metrics=[edge_density]", "cluster=here", store, *judged)
    (file,) = (tmp_path / "store/runs").glob("*/metaeval/judgements.parquet")
    found = pd.read_parquet(file).query("subset == 'overall'").set_index("statistic")
    assert found["value"]["ordering_paper"] > 0.8 and found["n"]["ordering_paper"] == 8
    assert found["n_unscored"]["ordering_paper"] == found["n_unrated"]["ordering_paper"] == 0
