"""P(Yes) of a question about an image by ray.data.llm, as Ray's page on vision language models shows it."""

import base64
import math
import sys
from pathlib import Path

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from transformers import AutoTokenizer

checkpoint, table, output = map(Path, sys.argv[1:])
ray.init(num_cpus=8)  # its six stages take a CPU each, and wait for ever on two cores  # here
yes = AutoTokenizer.from_pretrained(checkpoint).encode("Yes", add_special_tokens=False)[0]


def ask(row):
    question = f'Does this figure show "{row["prompt"]}"? Please answer Yes or No.'
    image = base64.b64encode((table.parent / row["file_name"]).read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
        {"type": "text", "text": question},
    ]
    sampling = {"max_tokens": 1, "temperature": 0, "logprob_token_ids": [yes]}
    return {"messages": [{"role": "user", "content": content}], "sampling_params": sampling}


def read(row):
    return {"image_id": row["image_id"], "score": math.exp(row["logprobs"][0][yes]["logprob"])}


config = vLLMEngineProcessorConfig(
    model_source=str(checkpoint),
    engine_kwargs={"max_model_len": 1024, "dtype": "float32", "enforce_eager": True},
    batch_size=16,
    concurrency=1,
    prepare_multimodal_stage={"enabled": True},
    placement_group_config={"bundles": [{"CPU": 1}]},  # here
)
processor = build_processor(config, preprocess=ask, postprocess=read)
processor(ray.data.read_json(str(table), lines=True)).write_parquet(str(output))
