"""Floating-point operations of scoring one pair, from the shapes alone; a multiplication with its addition counts two.

A product of matrices (n, i) and (i, o) takes 2nio. Attention of n queries to m keys over a width w takes 4nmw, 2nmw for
the scores and as much for the sums; where tokens see those before them alone, only what they see counts. Norms,
activations, rotations and embeddings, all together below a hundredth, are left out, and so is whatever is computed
besides: padding, masked scores and tokens read twice.
"""

from typing import Any

from plumbline.operators.models.calls import Message, Question
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.models.networks.vlm import ChatVlm


def product(rows: int, inputs: int, outputs: int) -> int:
    return 2 * rows * inputs * outputs


def attention(seen: int, width: int) -> int:
    """`seen` counts the pairs of a query and a key that it sees."""
    return 4 * seen * width


def before(tokens: int) -> int:
    """How many tokens so many see together, each itself and those before it."""
    return tokens * (tokens + 1) // 2


def of_pair(model: ClipFlanT5Likelihood | ChatVlm, pixels: Any, question: Question) -> int:
    """Reading one image and one question, each token once, up to the probability of the answer."""
    if isinstance(model, ClipFlanT5Likelihood):
        return _of_clip_flant5(model, question)
    network = model.reader.model
    tail = model.prompts.following([Message("user", question.text)], pixels.closing)
    answer = [model.prompts.choice(question.text, choice) for choice in question.choices]
    read = len(pixels.ids) + len(tail) + sum(len(tokens) - 1 for tokens in answer)
    language = decoder_only(network.config.text_config, read, predicted=sum(map(len, answer)))
    if "image_grid_thw" in pixels.inputs:
        return language + qwen_vision(network.config.vision_config, *pixels.inputs["image_grid_thw"][0].tolist())
    vision = network.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    width = network.config.text_config.hidden_size
    return language + clip_vision(vision, vision.num_hidden_layers) + projector(patches, vision.hidden_size, width)


def _of_clip_flant5(model: ClipFlanT5Likelihood, question: Question) -> int:
    vision, language = model.model.vision_tower.config, model.model.language_model.config
    patches = (vision.image_size // vision.patch_size) ** 2
    (ids,) = model.question_ids([model.question_text(question.text)])
    labels = [len(model.choice_ids(choice)) for choice in question.choices]
    tokens = len(model.before) + patches + len(ids)
    seeing = clip_vision(vision, model.model.feature_layer) + projector(patches, vision.hidden_size, language.d_model)
    return seeing + t5_encoder(language, tokens) + sum(t5_decoder(language, tokens, length) for length in labels)


def clip_vision(config: Any, layers: int) -> int:
    """The first `layers` of a CLIP tower over one image."""
    patches, width = (config.image_size // config.patch_size) ** 2, config.hidden_size
    tokens = patches + 1
    layer = 4 * product(tokens, width, width) + 2 * product(tokens, width, config.intermediate_size)
    embedding = product(patches, 3 * config.patch_size**2, width)
    return embedding + layers * (layer + attention(tokens * tokens, width))


def projector(tokens: int, vision: int, language: int) -> int:
    """The MLP of two layers that makes a tower's patches a language model's tokens."""
    return product(tokens, vision, language) + product(tokens, language, language)


def t5_encoder(config: Any, tokens: int) -> int:
    inner = config.num_heads * config.d_kv
    layer = 4 * product(tokens, config.d_model, inner) + 3 * product(tokens, config.d_model, config.d_ff)
    return int(config.num_layers * (layer + attention(tokens * tokens, inner)))


def t5_decoder(config: Any, tokens: int, labels: int) -> int:
    """So many labels of one answer, which see the encoder's tokens, and their probabilities."""
    inner, width = config.num_heads * config.d_kv, config.d_model
    own = 6 * product(labels, width, inner) + 3 * product(labels, width, config.d_ff)
    layer = own + 2 * product(tokens, width, inner) + attention(labels * tokens + before(labels), inner)
    return int(config.num_decoder_layers * layer + product(labels, width, config.vocab_size))


def qwen_vision(config: Any, time: int, height: int, width: int) -> int:
    """A Qwen-VL tower over a grid of patches. Most of Qwen2.5-VL's layers see a window each; Qwen3-VL's see everything,
    and some of them are merged too."""
    patches, hidden = time * height * width, config.hidden_size
    whole, matrices = time * (height * width) ** 2, 3
    seen = [whole] * config.depth
    merged_layers = getattr(config, "deepstack_visual_indexes", None)
    if merged_layers is None:
        side = config.window_size // config.patch_size
        windows = [h * w for h in _cuts(height, side) for w in _cuts(width, side)]
        windowed = time * sum(window**2 for window in windows)
        seen = [whole if n in config.fullatt_block_indexes else windowed for n in range(config.depth)]
    else:
        matrices = 2
    layer = 4 * product(patches, hidden, hidden) + matrices * product(patches, hidden, config.intermediate_size)
    layers = sum(layer + attention(pairs, hidden) for pairs in seen)
    merged = config.spatial_merge_size**2
    merger = product(patches // merged, merged * hidden, merged * hidden)
    merger += product(patches // merged, merged * hidden, config.out_hidden_size)
    embedding = product(patches, 3 * config.temporal_patch_size * config.patch_size**2, hidden)
    return int(embedding + layers + merger * (1 + len(merged_layers or ())))


def _cuts(length: int, side: int) -> list[int]:
    """A length cut into pieces of a window's side, the last one being what is left."""
    return [min(side, length - start) for start in range(0, length, side)]


def decoder_only(config: Any, tokens: int, *, predicted: int) -> int:
    """A Llama or a Qwen2 that reads so many tokens, and the probabilities over its vocabulary of those `predicted`."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or hidden // heads
    projections = 2 * heads * head + 2 * config.num_key_value_heads * head
    layer = product(tokens, hidden, projections) + 3 * product(tokens, hidden, config.intermediate_size)
    layers = config.num_hidden_layers * (layer + attention(before(tokens), heads * head))
    return int(layers + product(predicted, hidden, config.vocab_size))
