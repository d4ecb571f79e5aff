"""Asks one model in both forms of the engine, and prints the answers as JSON.

`python -m tests.vllm.two_forms FOLDER` runs in a separate process, because vLLM needs a torchvision on the path to read
images.
"""

import json
import sys
from pathlib import Path
from typing import Any

from plumbline.operators.models.calls import Generation, ImageRequest, Message, Request
from plumbline.operators.models.engines.vllm_calls import VllmLikelihood
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.vllm.ask import MAX_TOKENS, QUESTIONS, describe_failure, make_noise_images


def ask_form(folder: Path, engine_process: bool) -> dict[str, Any]:
    config = make_model_config(
        family="vlm", checkpoint=str(folder), engine="vllm", dtype="float32", engine_process=engine_process,
        engine_options={"max_model_len": 1024},
    )  # fmt: skip
    model = load(resolve_model(config, on_gpu=False), "likelihood")
    assert isinstance(model, VllmLikelihood)
    images = [model.preprocess(image) for image in make_noise_images()]
    requests = [
        ImageRequest(question.image, Request((Message("user", question.text),), MAX_TOKENS)) for question in QUESTIONS
    ]
    answers = {
        "likelihood": model.likelihood(images, QUESTIONS),
        "replies": [
            reply.text if isinstance(reply, Generation) else list(reply)
            for reply in model.generate_from_images(images, requests)
        ],
        "refused": describe_failure(model, images, "long " * 1024),
        "usage": list(model.usage),
    }
    if engine_process:
        model.engine._engine.engine_core.reset_mm_cache()  # the process loses images that need not be sent again
    answers["likelihood again"] = model.likelihood(images, QUESTIONS)
    model.engine.close()
    return answers


if __name__ == "__main__":
    print(json.dumps([ask_form(Path(sys.argv[1]), engine_process) for engine_process in (True, False)]))
