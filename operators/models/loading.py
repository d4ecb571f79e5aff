"""From a resolved model to a loaded backend; the one place where a model family meets its class."""

from typing import TYPE_CHECKING, Any

from operators.errors import ModelError
from operators.models.checkpoints import SERVES, Call, ResolvedModel

if TYPE_CHECKING:
    from operators.models.calls import EntailmentModel, GenerateModel, LikelihoodModel, TextEmbedder
    from operators.models.clip import ClipSimilarity


def load_likelihood(model: ResolvedModel) -> "LikelihoodModel":
    """A backend of the `likelihood` call; raises ModelError where it does not load."""
    _require(model, "likelihood")
    if model.family == "clip_flant5":
        return _load_clip_flant5(model)
    return _load_vllm_likelihood(model) if model.engine == "vllm" else _load_vlm(model)


def load_generate(model: ResolvedModel) -> "GenerateModel":
    """A backend of the `generate` call; raises ModelError where it does not load or has no key."""
    _require(model, "generate")
    if model.family == "openai":
        return _load_openai(model)
    return _load_vllm_generate(model) if model.engine == "vllm" else _load_causal_lm(model)


def load_entailment(model: ResolvedModel) -> "EntailmentModel":
    """A backend of the `entailment` call; raises ModelError where it does not load."""
    _require(model, "entailment")
    from operators.models.nli import load_nli

    return load_nli(
        model.parts["checkpoint"].folder(),
        tokenizer=model.parts["tokenizer"].folder(),
        pair_batch=model.pair_batch,
        **_placement(model),
    )


def load_embedder(model: ResolvedModel) -> "TextEmbedder":
    """A backend that embeds texts, a sentence encoder or CLIP; raises ModelError where it does not load."""
    _require(model, "embedding")
    if model.family == "clip":
        return load_similarity(model)
    from operators.models.sentences import load_sentences

    return load_sentences(
        model.parts["checkpoint"].folder(),
        tokenizer=model.parts["tokenizer"].folder(),
        pair_batch=model.pair_batch,
        **_placement(model),
    )


def load_similarity(model: ResolvedModel) -> "ClipSimilarity":
    """A backend of the `similarity` call; raises ModelError where it does not load."""
    _require(model, "similarity")
    from operators.models.clip import load_clip

    return load_clip(
        model.parts["checkpoint"].folder(),
        tokenizer=model.parts["tokenizer"].folder(),
        pair_batch=model.pair_batch,
        **_placement(model),
    )


def _load_clip_flant5(model: ResolvedModel) -> "LikelihoodModel":
    from operators.models.clip_flant5 import load_clip_flant5

    return load_clip_flant5(
        model.parts["checkpoint"].folder(),
        tower=model.parts["vision_tower"].folder(),
        tokenizer=model.parts["tokenizer"].folder(),
        pad_to_square=model.pads,
        pair_batch=model.pair_batch,
        **_placement(model),
    )


def _load_vlm(model: ResolvedModel) -> "LikelihoodModel":
    from operators.models.vlm import load_vlm

    return load_vlm(
        model.parts["checkpoint"].folder(),
        tokenizer=model.parts["tokenizer"].folder(),
        pair_batch=model.pair_batch,
        **_seeing(model),
        **_placement(model),
    )


def _load_causal_lm(model: ResolvedModel) -> "GenerateModel":
    from operators.models.causal_lm import load_causal_lm

    return load_causal_lm(
        model.parts["checkpoint"].folder(),
        tokenizer=model.parts["tokenizer"].folder(),
        pair_batch=model.pair_batch,
        **_placement(model),
    )


def _load_vllm_likelihood(model: ResolvedModel) -> "LikelihoodModel":
    from operators.models.vllm_likelihood import load_vllm_likelihood

    return load_vllm_likelihood(model.parts["checkpoint"].folder(), **_seeing(model), **_vllm_arguments(model))


def _load_vllm_generate(model: ResolvedModel) -> "GenerateModel":
    from operators.models.vllm_generate import load_vllm_generate

    return load_vllm_generate(model.parts["checkpoint"].folder(), **_vllm_arguments(model))


def _load_openai(model: ResolvedModel) -> "GenerateModel":
    from operators.models.openai_api import load_openai

    assert model.remote is not None
    return load_openai(model.remote)


def _seeing(model: ResolvedModel) -> dict[str, Any]:
    """How a vision-language model of its kind is shown an image and spoken to."""
    assert model.kind is not None, "every vlm has a kind"
    return {"system": model.kind.system, "pad_to_square": model.pads}


def _vllm_arguments(model: ResolvedModel) -> dict[str, Any]:
    """What both vLLM loaders take beside the checkpoint."""
    _placement(model)  # for its complaint where there is no GPU
    return {
        "tokenizer": model.parts["tokenizer"].folder(),
        "dtype": model.dtype,
        "on_gpu": model.on_gpu,
        "options": model.engine_options,
    }


def _require(model: ResolvedModel, call: Call) -> None:
    if call not in SERVES[model.family]:
        serving = " or ".join(family for family, calls in SERVES.items() if call in calls)
        raise ModelError(f"model family {model.family!r} does not serve `{call}`; use {serving}")


def _placement(model: ResolvedModel) -> dict[str, Any]:
    """The device and the precision, as torch names them."""
    import torch

    if model.on_gpu and not torch.cuda.is_available():
        raise ModelError("the pool has num_gpus > 0 but torch sees no CUDA device; use a CPU pool, or a CUDA torch")
    return {"device": "cuda" if model.on_gpu else "cpu", "dtype": getattr(torch, model.dtype)}
