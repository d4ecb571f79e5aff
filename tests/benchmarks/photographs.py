"""Images that cost as much to read as photographs, and benchmarks with such images."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def make_photograph(seed: int, side: int) -> Image.Image:
    """Return an image of `side` x `side` pixels that is about as hard to compress and decode as a photograph.

    It contains noise at every scale, which is stronger at coarser scales.
    """
    random, sum_of_scales = np.random.default_rng(seed), np.zeros((side, side, 3), np.float32)
    for octave in range(2, side.bit_length()):
        noise = Image.fromarray(random.integers(0, 256, (2**octave, 2**octave, 3), np.uint8))
        sum_of_scales += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC)) * np.float32(0.55**octave)
    return Image.fromarray((sum_of_scales * (255 / sum_of_scales.max())).astype(np.uint8))


def write_photographs(folder: Path, generators: int, prompts: int, side: int) -> None:
    """Write prompts.parquet and images/ as `jobs.ingest` does; each image is a shifted copy of one of 8 photographs."""
    from plumbline.pipelines.ingest.ingest import ingest  # make_photograph() must also work on machines with only torch
    from plumbline.pipelines.ingest.ingest_config import IngestConfig
    from tests.bench_of import write_rows

    draws = np.random.default_rng(0)
    photographs = [np.asarray(make_photograph(seed, side)) for seed in range(8)]
    texts = [{"prompt_id": f"p{number}", "text": f"scene {number}", "skills": []} for number in range(prompts)]
    write_rows(folder / "prompts.parquet", texts, row_group=prompts)
    for number in range(generators):
        rows = []
        for prompt in texts:
            shift = draws.integers(side, size=2)
            picture = np.roll(photographs[draws.integers(8)], (int(shift[0]), int(shift[1])), (0, 1))
            Image.fromarray(picture).save(buffer := io.BytesIO(), "JPEG", quality=90)
            rows.append({"prompt_id": prompt["prompt_id"], "prompt": prompt["text"], "image": buffer.getvalue()})
        table = folder / "tables" / f"{number}.parquet"
        write_rows(table, rows, row_group=64)
        config = IngestConfig(output=str(folder / "images"), generator=f"generator{number}", table=str(table))
        assert ingest(config, lambda record: None).exit_code == 0
