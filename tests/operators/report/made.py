"""Synthetic runs: a store with scores, elements, prompts and images, made without any model."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.images.generation_settings import count_settings
from plumbline.operators.results.percentile_ranks import SketchKey, make_sketch, merge_sketches
from plumbline.pipelines.store.cells import Cell
from plumbline.pipelines.store.runs import CELLS_SCHEMA
from plumbline.pipelines.store.store import LATEST_FILE, Store
from tests.commands import open_store_at
from tests.operators.tallied import summarise

HOSTILE_PROMPTS = (
    "<script>window.hacked = true</script> a red <b>star</b> & \"quotes\" 'too' </textarea><img src=x onerror=hack()>",
    "נחש ירוק ליד כוכב אדום עם <i>תגית</i> \u202eand reversed\u202c",
    "a red star " + "that goes on and on " * 250,
    "🎉👩‍👩‍👧‍👦🏳️‍🌈 a party of 🦊 and {{ braces }} {% raw %} ${dollars} `ticks`",
    "a blue cup\non two lines\twith a tab",
)
"""Prompts that would break a page that does not escape them."""

JUDGE_VERDICT = {
    "ratings": [{"name": "objects_matched", "value": 2.0}, {"name": "<i>attributes", "value": 4.5}],
    "rationale": f"One of two is missing. {HOSTILE_PROMPTS[0]}",
}
"""A judge's ratings and rationale for an image."""

SKILLS = ("counting", "colour")
QUALITY_BY_GENERATOR = {"atlas": 0.9, "borealis": 0.6, "cobalt": 0.3}

Score = Callable[[str, str, int], float | None]


class MadeRun(NamedTuple):
    """A synthetic run in a store of its own, and the folder with its report."""

    store: Store
    run_id: str
    folder: Path

    @property
    def html(self) -> str:
        return (self.folder / "report.html").read_text("utf-8")


def draw_noisy_score(generator: str, metric: str, prompt: int) -> float:
    """Return a score from 0 to 1: the generator's quality plus noise, which depends only on the arguments."""
    noise = np.random.default_rng([prompt, len(metric), *generator.encode()]).normal(0, 0.1)
    return float(np.clip(QUALITY_BY_GENERATOR.get(generator, 0.5) + noise, 0, 1))


def make_plain_prompts(count: int) -> list[str]:
    return [f"a red star beside {number} blue cups" for number in range(count)]


def encode_png(seed: int, side: int = 48) -> bytes:
    """Return a PNG, `side` pixels wide and high, of a single colour that depends on the seed."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), ((37 * seed) % 256, (91 * seed) % 256, 120)).save(buffer, "PNG")
    return buffer.getvalue()


def draw_noise_png(seed: int, side: int) -> bytes:
    """Return a PNG of noise, `side` pixels wide and high, which does not compress."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def make_run(
    folder: Path,
    *,
    prompts: Sequence[str] = (),
    generators: Sequence[str] = tuple(QUALITY_BY_GENERATOR),
    metrics: Sequence[str] = ("gecko", "clipscore"),
    question_metrics: Sequence[str] = ("gecko",),
    judge_metrics: Sequence[str] = (),
    score: Score = draw_noisy_score,
    skills: bool = True,
    image: Callable[[int], bytes] = encode_png,
    sources: Callable[[int], list[bytes]] | None = None,
    sources_in: Literal["prompts", "images"] = "images",
    questions: Sequence[str] = (),
    run_id: str = "20260102-030405-000006",
    first_recipe: int = 0,
    image_settings: Callable[[int], Mapping[str, str | None]] | None = None,
    **manifest: Any,
) -> MadeRun:
    """Make a finished run with one image per generator and prompt; a score of None becomes a failed row.

    Args:
        folder: Folder for the store, the prompts and the images.
        prompts: Texts of the prompts; twelve default prompts if empty.
        generators: Names of the generators.
        metrics: Names of the metrics.
        question_metrics: Metrics whose cells contain elements (scores of single questions).
        judge_metrics: Metrics whose cells contain a judge's ratings and rationale.
        score: Function of generator, metric and index of the prompt.
        skills: True if the prompts have skills.
        image: Function that returns the encoded image for a seed.
        sources: Function that returns the source images of a prompt, if the images are edits.
        sources_in: Table that contains the source images.
        questions: Yes/no questions that the first metric asks about every prompt, stored in a separate cell.
        run_id: Id of the run.
        first_recipe: Number of the first recipe; runs in the same store need different recipes.
        image_settings: Function that returns the generation settings of a prompt's images.
        manifest: Additional entries for the manifest.
    """
    texts = list(prompts) or make_plain_prompts(12)
    ids = [f"p{number:04d}" for number in range(len(texts))]
    before = {} if sources is None else {sources_in: [{"before": sources(at)} for at in range(len(texts))]}
    _write_sources(folder / "bench", texts, ids, generators, skills, image, before)
    store = open_store_at(folder / "store")
    store.check()
    cells, sketches = [], []
    tables: list[pa.Table] = []
    asked = _write_questions(store, ids, texts, questions) if questions else ()
    cells += [{"path": path, "state": "committed", "first_row": 0} for path in asked]
    for number, metric in enumerate(metrics, first_recipe):
        for generator in generators:
            records = [
                _make_row(metric, generator, at, ids[at], text, score, metric in question_metrics)
                | (JUDGE_VERDICT if metric in judge_metrics else {})
                for at, text in enumerate(texts)
            ]
            path = f"scores/{number:08d}/{generator}/00000-{number:08d}.parquet"
            cell = Cell(node="scores", stage="scores", metric=metric, key=f"{number:08d}", path=path,
                        inputs={"questions": asked} if metric == metrics[0] else {})  # fmt: skip
            store.save(cell, rows.table(records, schemas.ELEMENT_SCORES))
            cells.append({"path": path, "state": "committed", "first_row": sum(map(len, tables))})
            tables.append(rows.table(records, schemas.ELEMENT_SCORES).select(schemas.SCORES.names))
            sketches.append((SketchKey(metric, generator), make_sketch(tables[-1].column("score"))))
    scores = pa.concat_tables(tables)
    if image_settings is not None:
        own = pa.array([image_settings(at) for at in range(len(texts))])
        scores = scores.append_column("settings", pa.chunked_array([own] * len(tables)))
        manifest["settings"] = dict.fromkeys(generators, count_settings(own))
    skills_of = {one: _list_skills(at) if skills else [] for at, one in enumerate(ids)}
    run = (store.place / f"runs/{run_id}").path
    summary = summarise(scores, skills_of)
    made = {
        "scores": scores,
        "summary": summary,
        "errors": _select_errors(scores),
        "cells": rows.table(cells, CELLS_SCHEMA),
    }
    made["usual_scores"] = merge_sketches(sketches)
    for name, table in made.items():
        store.write_table(f"runs/{run_id}/{name}.parquet", table)
    content = _make_manifest(folder, run_id, generators, metrics, len(cells)) | manifest
    if sources is not None:
        content["config"]["benchmark"]["columns"] = {"source": "before"}
    store.write_json(f"runs/{run_id}/manifest.json", content)
    store.write_text(LATEST_FILE, run_id)
    return MadeRun(store, run_id, Path(run))


def _write_questions(
    store: Store, ids: Sequence[str], texts: Sequence[str], questions: Sequence[str]
) -> tuple[str, ...]:
    path = "questions/00000000/made/00000-00000000.parquet"
    asked = [
        {"prompt_id": one, "prompt": text, "question_id": f"q{at}", "text": question, "choices": ["yes", "no"],
         "answer": "yes"}
        for one, text in zip(ids, texts, strict=True)
        for at, question in enumerate(questions)
    ]  # fmt: skip
    cell = Cell(node="questions", stage="questions", metric="", key="00000000", path=path, inputs={})
    store.save(cell, rows.table(asked, schemas.QUESTIONS))
    return (path,)


def _list_skills(prompt: int) -> list[str]:
    return [SKILLS[prompt % 2]]


def _write_sources(
    folder: Path,
    texts: Sequence[str],
    ids: Sequence[str],
    generators: Sequence[str],
    skills: bool,
    image: Callable[[int], bytes],
    before: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    none: Sequence[Mapping[str, Any]] = [{}] * len(ids)
    named = [
        {
            "prompt_id": one,
            "text": text,
            **({"skills": _list_skills(at)} if skills else {}),
            **before.get("prompts", none)[at],
        }
        for at, (one, text) in enumerate(zip(ids, texts, strict=True))
    ]
    _write_records(folder / "prompts.parquet", named)
    for place, generator in enumerate(generators):
        images = [
            {"image_id": f"{generator[:20]}-{one}", "prompt_id": one, "image": image(at + 100 * place)}
            | before.get("images", none)[at]
            for at, one in enumerate(ids)
        ]
        _write_records(folder / "images" / generator / "00000.parquet", images)


def _write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(one) for one in records]), path, row_group_size=256)


def _make_row(
    metric: str, generator: str, at: int, prompt_id: str, text: str, score: Score, asks: bool
) -> dict[str, Any]:
    value = score(generator, metric, at)
    error = (
        None
        if value is not None
        else {"kind": "corrupt_image", "message": "bytes <b>unreadable</b>", "retryable": False}
    )
    return {
        "image_id": f"{generator[:20]}-{prompt_id}",
        "prompt_id": prompt_id,
        "generator": generator,
        "metric": metric,
        "score": value,
        "n_questions": 3 if asks else 1,
        "truncated": at == 0 and metric == "clipscore",
        "error": error,
        "elements": make_elements(text, value) if asks and value is not None else None,
    }


def make_elements(prompt: str, score: float) -> list[dict[str, Any]]:
    """Return three questions, the third without an answer.

    The answer to the first is correct if the score is above 0.5, and the answer to the second is always correct.
    """
    start = prompt.find("red")
    placed = {"start": start, "end": start + 3} if start >= 0 else {"start": None, "end": None}
    star = prompt.find("star")
    there = {"start": star, "end": star + 4} if star >= 0 else {"start": None, "end": None}
    return [
        {"question_id": "1", "text": "what <colour> is it?", "span": "red", "wanted": "red",
         "given": "red" if score > 0.5 else "blue", "score": score, **placed},
        {"question_id": "2", "text": "is there a star?", "span": "star", "wanted": "yes", "given": "yes", "score": 0.97,
         **there},
        {"question_id": "3", "text": "is it round?", "span": None, "wanted": "no", "given": None, "score": None,
         "start": None, "end": None},
    ]  # fmt: skip


def _select_errors(scores: pa.Table) -> pa.Table:
    failed = [row for row in scores.to_pylist() if row["error"] is not None]
    names = ("image_id", "prompt_id", "generator", "metric")
    return rows.table([{name: row[name] for name in names} | row["error"] for row in failed], schemas.ERRORS)


def _make_manifest(
    folder: Path, run_id: str, generators: Sequence[str], metrics: Sequence[str], n_cells: int
) -> dict[str, Any]:
    bench = folder / "bench"
    return {
        "run_id": run_id,
        "began": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:14:05+00:00",
        "exit_code": 0,
        "benchmark": "made",
        "generators": list(generators),
        "metrics": list(metrics),
        "counts": {"cells": n_cells, "cells_cached": 0, "cells_computed": n_cells, "cells_failed": 0,
                   "rows": 0, "rows_null": 0, "rows_truncated": 0, "coverage": 1.0},
        "errors": {},
        "usage": {"questions:llm": {"calls": 12, "prompt_tokens": 3456, "new_tokens": 78}},
        "versions": {"plumbline": "0.1.0"},
        "models": {"answers:vqa": {"family": "vlm", "parts": {"checkpoint": "0123abcd"}}},
        "config": {
            "benchmark": {"name": "made", "prompts": str(bench / "prompts.parquet"), "images": str(bench / "images")},
            "limits": {"max_pixels": 64000000, "max_bytes": 64000000},
            "metrics": {metric: {"kind": metric, "template": "is it <so>?"} for metric in metrics},
            "models": {"vqa": {"checkpoint": "org/vlm", "revision": "main"}},
            "shard_rows": 256,
        },
    }  # fmt: skip
