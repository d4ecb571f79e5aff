"""Resolves a model's configuration to exact files and checks them, without importing torch or reading weights."""

import os
from collections.abc import Mapping

from plumbline.operators.base.errors import ModelError
from plumbline.operators.base.extensions import require_extra, require_release
from plumbline.operators.models.checkpoints.parts import (
    Checkpoint,
    Fields,
    FileDigest,
    Part,
    digest_file,
    find_architecture,
    find_part,
    read_subfields,
)
from plumbline.operators.models.families import FAMILIES
from plumbline.operators.models.model import LocalModel, ModelConfig, Precision, ResolvedModel
from plumbline.operators.models.service_config import ServiceModel, check_endpoint
from plumbline.operators.models.vqa_profiles import VqaProfile


def resolve_model(config: ModelConfig, *, on_gpu: bool, digest: FileDigest = digest_file) -> ResolvedModel:
    """Find the exact files of a model, and check that its family can use them.

    A model at an endpoint, or in a package, is identified by its name alone, without network access. Raises ModelError
    if files are missing or do not fit the family.
    """
    check_installed(config)
    family = FAMILIES[config.family]
    if isinstance(config, ServiceModel):
        # an endpoint from the environment enters the keys, and all workers must use the same
        endpoint = config.endpoint or os.environ.get(family.endpoint_variable) or None
        check_endpoint(endpoint)
        profile = None if family.profile is None else family.profile(config, {})
        options = family.options_in_key(config, profile)
        return ResolvedModel(config=config, endpoint=endpoint, profile=profile, options=options)
    if family.resolve is not None:
        return family.resolve(config)
    if not isinstance(config, LocalModel):
        return ResolvedModel(config=config, options=family.options_in_key(config, None))
    part = find_part(config.checkpoint, config.revision, digest, family.file_patterns)
    checkpoint = Checkpoint(part, _read_config(part, config.family), family.find_tensors(part, family.weights_file))
    text = read_subfields(checkpoint.fields, "text_config") or checkpoint.fields
    untied = text.get("model_type") == "t5" and text.get("tie_word_embeddings") is False
    if untied and not any(name.endswith("lm_head.weight") for name in checkpoint.tensors):
        # transformers would silently use T5's embedding instead of the output head
        raise ModelError(
            f"{part.source}: the weights do not fit its config.json: lm_head.weight is missing; "
            "download the checkpoint again"
        )
    parts = _find_parts(config, checkpoint, digest)
    family.check(config, parts, checkpoint.fields)
    profile = None if family.profile is None else family.profile(config, checkpoint.fields)
    dtype: Precision = "bfloat16" if on_gpu and not family.float32_on_gpu else "float32"
    if config.dtype != "auto":
        dtype = config.dtype
    return ResolvedModel(
        config=config,
        parts=parts,
        weights=family.weights_file or family.file_patterns[-1],
        dtype=dtype,
        on_gpu=on_gpu,
        profile=profile,
        version=family.version,
        options=family.options_in_key(config, profile),
    )


def check_installed(config: ModelConfig) -> None:
    """Raise ConfigError if a package that the model's family needs is missing or too old."""
    family = FAMILIES[config.family]
    if family.extra is not None:
        require_extra(family.extra, f"family {config.family}")
    if family.oldest_transformers is not None and config.engine == "transformers":
        require_release("transformers", family.oldest_transformers, f"family {config.family}")


def find_vqa_profile(config: ModelConfig) -> VqaProfile:
    """Return the profile of a VQA model from its checkpoint's config.json. Raise ModelError if it cannot be read.

    Raises ConfigError if a package that the family needs is missing or too old.
    """
    check_installed(config)
    family = FAMILIES[config.family]
    assert family.profile is not None, f"family {config.family} serves VQA models"
    if not family.local:
        return family.profile(config, {})
    part = find_part(config.checkpoint, config.revision, lambda file: "")  # no digests: the part is not identified
    return family.profile(config, _read_config(part, config.family))


def takes_videos(config: ModelConfig) -> bool:
    """Return True if the model reads frames as a video. Raise ModelError if its config.json cannot be read."""
    family = FAMILIES[config.family]
    return family.reads_videos or (family.profile is not None and find_vqa_profile(config).reads_videos)


def takes_several_images(config: ModelConfig) -> bool:
    """Return True if a question may have several images. Raise ModelError if its config.json is invalid."""
    family = FAMILIES[config.family]
    return family.several_images or (family.profile is not None and find_vqa_profile(config).several_images)


def _read_config(part: Part, family: str) -> Fields:
    """Return the content of the checkpoint's config.json, or of the file that the family reads instead.

    Raise ModelError if it does not belong to the family.
    """
    fields = FAMILIES[family].read(part)
    if FAMILIES[family].suits(fields):
        return fields
    suited = " or ".join(name for name, other in FAMILIES.items() if other.suits(fields))
    remedy = f"such a checkpoint is served by family {suited}" if suited else "no model family serves such a checkpoint"
    raise ModelError(
        f"{part.source}: config.json names the architecture {find_architecture(fields)} and model_type "
        f"{fields.get('model_type')!r}, expected {FAMILIES[family].form} for family {family}; {remedy}"
    )


def _find_parts(config: LocalModel, checkpoint: Checkpoint, digest: FileDigest) -> Mapping[str, Part]:
    family = FAMILIES[config.family]
    tokenizer = checkpoint.part if config.tokenizer is None else find_part(config.tokenizer, None, digest)
    parts = {"checkpoint": checkpoint.part, "tokenizer": tokenizer, **family.parts(config, checkpoint, digest)}
    for files in family.files:
        part = parts[files.part]
        stored = next((name for name in files.names if part.find_file(name)), None)
        if stored is None:
            raise ModelError(f"{part.source}: has no {' or '.join(files.names)}; {files.remedy}")
        # a spiece.model is converted by the class that tokenizer_config.json names
        if stored == "spiece.model" and part.find_file("tokenizer_config.json") is None:
            raise ModelError(
                f"{part.source}: has a spiece.model but no tokenizer_config.json, which would name the tokenizer's "
                f"class; {files.remedy}"
            )
    return parts
