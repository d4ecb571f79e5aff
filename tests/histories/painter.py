"""An image service on localhost whose images depend only on their prompts."""

import base64
import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import pyarrow.dataset as ds
from PIL import Image

from tests.operators.models.endpoint import KEY_VARIABLE, Answer, Server

PAINTER = "painter"
IMAGE_SIDE = 24


def paint(prompt: str) -> bytes:
    chance = Random(prompt)
    image = Image.new(
        "RGB", (IMAGE_SIDE, IMAGE_SIDE), (chance.randrange(256), chance.randrange(256), chance.randrange(256))
    )
    image.paste((chance.randrange(256), 0, 0), (4, 4, chance.randrange(8, IMAGE_SIDE), chance.randrange(8, IMAGE_SIDE)))
    image.putpixel((0, 0), (0, 255, 0))  # so that no image has a single colour
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


class Painter(AbstractContextManager["Painter"]):
    """A running service that draws images."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.script = lambda number, body: Answer(
            body={"created": 0, "data": [{"b64_json": base64.b64encode(paint(body["prompt"])).decode()}]}
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.close()

    def list_arguments(self) -> list[str]:
        """Return the arguments that make `jobs.generate` use the service; its key is in the environment."""
        return [
            "benchmark=own", "image_model=images_api", f"image_model.checkpoint={PAINTER}",
            f"image_model.endpoint={self.server.url}", f"image_model.key_variable={KEY_VARIABLE}",
        ]  # fmt: skip

    def assert_drawn(self, folder: Path, prompts: Sequence[dict[str, Any]]) -> None:
        """Assert that the folder contains the exact image of every prompt, and nothing else."""
        rows = ds.dataset(sorted(map(str, folder.glob("*.parquet")))).to_table(["prompt_id", "image"]).to_pylist()
        assert len(rows) == len(prompts)
        assert {row["prompt_id"]: row["image"] for row in rows} == {
            prompt["prompt_id"]: paint(prompt["text"]) for prompt in prompts
        }
