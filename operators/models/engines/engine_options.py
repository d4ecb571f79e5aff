"""Options for models that run on transformers or vLLM, and lists of the vLLM arguments that users may set."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.models.model import Engine, LocalModel, ModelConfig, ThinkingPermission

THROUGHPUT_OPTIONS = frozenset(
    {
        "async_scheduling",
        "block_size",
        "cpu_offload_gb",
        "data_parallel_size",
        "disable_custom_all_reduce",
        "disable_log_stats",
        "distributed_executor_backend",
        "enable_chunked_prefill",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_parallel_loading_workers",
        "mm_encoder_tp_mode",
        "mm_processor_cache_gb",
        "num_gpu_blocks_override",
        "pipeline_parallel_size",
        "scheduling_policy",
        "tensor_parallel_size",
    }
)
"""Arguments for speed and memory. They do not change results, so they do not enter keys."""
RESULT_OPTIONS = frozenset(
    {
        "attention_backend",
        "kv_cache_dtype",
        "limit_mm_per_prompt",
        "max_model_len",
        "mm_processor_kwargs",
        "quantization",
    }
)
"""Arguments that change the model's input or arithmetic, so they enter the cells' keys."""
REMEDIES_BY_OPTION = {
    "model": "set the model's `checkpoint`",
    "tokenizer": "set the model's `tokenizer`",
    "revision": "set the model's `revision`",
    "dtype": "set the model's `dtype`",
    "seed": "each request has its own seed",
    "trust_remote_code": "a checkpoint's code is never run; use a checkpoint that transformers and vLLM support",
    "hf_overrides": "edit the config.json in a copy of the checkpoint, so that the copy has its own identity",
}
PLAIN_NAME_PATTERN = re.compile(r"[A-Za-z0-9_-]*")


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that is not known to be safe, or whose value may refer to code or a file."""
    for name, value in options.items():
        if name not in THROUGHPUT_OPTIONS | RESULT_OPTIONS:
            remedy = REMEDIES_BY_OPTION.get(name) or suggest(name, sorted(THROUGHPUT_OPTIONS | RESULT_OPTIONS))
            raise ConfigError(f"model engine_options.{name}: this option cannot be set; {remedy}")
        if not _is_plain_value(value):
            raise ConfigError(
                f"model engine_options.{name}: expected a number, true, false, a string of letters, digits, _ and -, "
                f"or a mapping from names to numbers, got {value!r}"
            )


def _is_plain_value(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(number, int | float) and not isinstance(number, bool) for number in value.values())
    if isinstance(value, str):
        return PLAIN_NAME_PATTERN.fullmatch(value) is not None
    return value is None or isinstance(value, bool | int | float)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineModel(LocalModel):
    """Options of a model that runs on transformers or vLLM."""

    engine: Engine = "transformers"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the vLLM engine, such as max_model_len or gpu_memory_utilization; other engines ignore them."""
    engine_process: bool = False
    """True if vLLM's engine runs in a process of its own, which ends with the actor. It does not change results; other
    engines ignore it.
    """

    thinking: ThinkingPermission = "refused"
    """`allowed`: the model may think before it replies, and the reply is what follows the thought. `refused`: the chat
    template forbids thinking; a vlm that would think anyway does not load.
    """
    thinking_tokens: Positive = 4096
    """Maximum length, in tokens, of a thought if `thinking=allowed`; for a longer thought, the row gets an error."""

    def __post_init__(self) -> None:
        LocalModel.__post_init__(self)
        check_options(self.engine_options)
        if self.engine_process and self.engine_options.get("data_parallel_size", 1) != 1:
            raise ConfigError(
                "engine_process: the engine has one process, but engine_options.data_parallel_size="
                f"{self.engine_options['data_parallel_size']} wants several; leave it out, and let the cluster's pools "
                "have several actors"
            )


def find_image_limit(model: ModelConfig) -> int | None:
    """Return the maximum number of images per question that the engine's options set; None if they set none."""
    options = model.engine_options if isinstance(model, EngineModel) and model.engine == "vllm" else {}
    limits = options.get("limit_mm_per_prompt") or {}
    return int(limits["image"]) if "image" in limits else None


def select_engine_key_options(model: EngineModel) -> dict[str, Any]:
    """Return a mapping of the engine and its options that can change a result, for use in cell keys."""
    options = {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in sorted(model.engine_options.items())
        if model.engine == "vllm" and name not in THROUGHPUT_OPTIONS
    }
    return {"engine": model.engine, "engine_options": options, **select_thinking_key_options(model)}


def select_thinking_key_options(model: ModelConfig) -> dict[str, Any]:
    return {"thinking_tokens": model.thinking_tokens} if model.thinking == "allowed" else {}
