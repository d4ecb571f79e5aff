"""Counts the floating-point operations for scoring one pair, based on the shapes of a network.

A multiply-add counts as two operations. A product of matrices (n, i) and (i, o) takes 2nio operations. Attention of n
queries to m keys of width w takes 4nmw: 2nmw for the scores and the same for the sums. If attention is causal, only
pairs of a query and an allowed key count. Norms, activations, rotations and embeddings are left out, because together
they are less than a hundredth of the total. Extra work is also left out: padding, masked scores, and tokens read twice.
"""

from typing import Any

from plumbline.operators.models.calls import Message, Question
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.models.networks.vlm import ChatVlm


def count_product_flops(rows: int, inputs: int, outputs: int) -> int:
    return 2 * rows * inputs * outputs


def count_attention_flops(seen: int, width: int) -> int:
    """Count the operations of attention; `seen` is the number of (query, key) pairs that are not masked."""
    return 4 * seen * width


def count_causal_pairs(tokens: int) -> int:
    """Return the number of (query, key) pairs if every token attends to itself and to all earlier tokens."""
    return tokens * (tokens + 1) // 2


def count_pair_flops(model: ClipFlanT5Likelihood | ChatVlm, pixels: Any, question: Question) -> int:
    """Return the number of operations for one image and one question, up to the probability of the answer.

    Every token is counted once.
    """
    if isinstance(model, ClipFlanT5Likelihood):
        return _count_clip_flant5_flops(model, question)
    network = model.reader.model
    tail = model.prompts.tokenize_after_image([Message("user", question.text)], pixels.closing)
    answer = [model.prompts.tokenize_choice(question.text, choice) for choice in question.choices]
    read = len(pixels.ids) + len(tail) + sum(len(tokens) - 1 for tokens in answer)
    language = count_decoder_only_flops(network.config.text_config, read, predicted=sum(map(len, answer)))
    if "image_grid_thw" in pixels.inputs:
        return language + count_qwen_vision_flops(
            network.config.vision_config, *pixels.inputs["image_grid_thw"][0].tolist()
        )
    vision = network.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    width = network.config.text_config.hidden_size
    return (
        language
        + count_clip_vision_flops(vision, vision.num_hidden_layers)
        + count_projector_flops(patches, vision.hidden_size, width)
    )


def _count_clip_flant5_flops(model: ClipFlanT5Likelihood, question: Question) -> int:
    vision, language = model.model.vision_tower.config, model.model.language_model.config
    patches = (vision.image_size // vision.patch_size) ** 2
    (ids,) = model.tokenize_questions([model.format_question(question.text)])
    labels = [len(model.tokenize_choice(choice)) for choice in question.choices]
    tokens = len(model.before) + patches + len(ids)
    seeing = count_clip_vision_flops(vision, model.model.feature_layer) + count_projector_flops(
        patches, vision.hidden_size, language.d_model
    )
    return (
        seeing
        + count_t5_encoder_flops(language, tokens)
        + sum(count_t5_decoder_flops(language, tokens, length) for length in labels)
    )


def count_clip_vision_flops(config: Any, layers: int) -> int:
    """Count the operations of a CLIP tower's first `layers` layers for one image."""
    patches, width = (config.image_size // config.patch_size) ** 2, config.hidden_size
    tokens = patches + 1
    layer = 4 * count_product_flops(tokens, width, width) + 2 * count_product_flops(
        tokens, width, config.intermediate_size
    )
    embedding = count_product_flops(patches, 3 * config.patch_size**2, width)
    return embedding + layers * (layer + count_attention_flops(tokens * tokens, width))


def count_projector_flops(tokens: int, vision: int, language: int) -> int:
    """Count the operations of the two-layer MLP that converts patches to tokens of the language model."""
    return count_product_flops(tokens, vision, language) + count_product_flops(tokens, language, language)


def count_t5_encoder_flops(config: Any, tokens: int) -> int:
    inner = config.num_heads * config.d_kv
    layer = 4 * count_product_flops(tokens, config.d_model, inner) + 3 * count_product_flops(
        tokens, config.d_model, config.d_ff
    )
    return int(config.num_layers * (layer + count_attention_flops(tokens * tokens, inner)))


def count_t5_decoder_flops(config: Any, tokens: int, labels: int) -> int:
    """Count the operations for the label tokens of one answer and for their probabilities."""
    inner, width = config.num_heads * config.d_kv, config.d_model
    own = 6 * count_product_flops(labels, width, inner) + 3 * count_product_flops(labels, width, config.d_ff)
    layer = (
        own
        + 2 * count_product_flops(tokens, width, inner)
        + count_attention_flops(labels * tokens + count_causal_pairs(labels), inner)
    )
    return int(config.num_decoder_layers * layer + count_product_flops(labels, width, config.vocab_size))


def count_qwen_vision_flops(config: Any, time: int, height: int, width: int) -> int:
    """Count the operations of a Qwen-VL tower for a grid of patches.

    In most layers of Qwen2.5-VL, a patch only attends to its own window. In Qwen3-VL, a patch attends to all patches in
    every layer, and the outputs of some layers are also passed to the language model.
    """
    patches, hidden = time * height * width, config.hidden_size
    whole, matrices = time * (height * width) ** 2, 3
    seen = [whole] * config.depth
    merged_layers = getattr(config, "deepstack_visual_indexes", None)
    if merged_layers is None:
        side = config.window_size // config.patch_size
        windows = [h * w for h in _divide_into_windows(height, side) for w in _divide_into_windows(width, side)]
        windowed = time * sum(window**2 for window in windows)
        seen = [whole if n in config.fullatt_block_indexes else windowed for n in range(config.depth)]
    else:
        matrices = 2
    layer = 4 * count_product_flops(patches, hidden, hidden) + matrices * count_product_flops(
        patches, hidden, config.intermediate_size
    )
    layers = sum(layer + count_attention_flops(pairs, hidden) for pairs in seen)
    merged = config.spatial_merge_size**2
    merger = count_product_flops(patches // merged, merged * hidden, merged * hidden)
    merger += count_product_flops(patches // merged, merged * hidden, config.out_hidden_size)
    embedding = count_product_flops(patches, 3 * config.temporal_patch_size * config.patch_size**2, hidden)
    return int(embedding + layers + merger * (1 + len(merged_layers or ())))


def _divide_into_windows(length: int, side: int) -> list[int]:
    """Return the lengths of the windows, `side` wide, that cover `length`; the last window may be narrower."""
    return [min(side, length - start) for start in range(0, length, side)]


def count_decoder_only_flops(config: Any, tokens: int, *, predicted: int) -> int:
    """Count the operations of a Llama or Qwen2 for `tokens` input tokens.

    The count includes next-token probabilities after `predicted` of the input tokens.
    """
    hidden, heads = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or hidden // heads
    projections = 2 * heads * head + 2 * config.num_key_value_heads * head
    layer = count_product_flops(tokens, hidden, projections) + 3 * count_product_flops(
        tokens, hidden, config.intermediate_size
    )
    layers = config.num_hidden_layers * (layer + count_attention_flops(count_causal_pairs(tokens), heads * head))
    return int(layers + count_product_flops(predicted, hidden, config.vocab_size))
