"""Random checkpoints of models that compare an image with a text, in the layouts of their releases."""

import io
import string
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch import nn
from transformers import (
    AlignConfig,
    AlignModel,
    BertTokenizer,
    Blip2Config,
    Blip2ForImageTextRetrieval,
    BlipConfig,
    BlipForImageTextRetrieval,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    Dinov2Config,
    Dinov2Model,
    EfficientNetImageProcessor,
    GemmaTokenizer,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
    SiglipTokenizer,
    ViTConfig,
    ViTModel,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from plumbline.operators.models.networks.blip import ImageReward
from plumbline.operators.models.networks.clip import PyramidClip, convert_open_clip_config, convert_pyramid_clip_weights
from plumbline.operators.models.processing import make_clip_processor
from tests.operators import tiny

SIZE_FIELDS = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
SENTENCES = (
    "a red circle , two blue stars left of a green square",
    "the red star is above three blue squares , left of a circle and a photo",
)
SIGLIP_CONTEXT_TOKENS = 16
CLIP_CONTEXT_TOKENS = 24


def enlarge_weights(network: nn.Module, *, seed: int = 0, deviation: float = 0.25) -> None:
    """Set large random weights, so that the network's output differs between inputs."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in network.parameters():
            if weights.dim() > 1:
                weights.copy_(torch.randn(weights.shape, generator=generator) * deviation)


def make_clip_tokenizer() -> CLIPTokenizer:
    """Return a CLIP tokenizer whose tokens are single bytes; its end-of-text token has the highest id."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    return CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=CLIP_CONTEXT_TOKENS)


def save_pickscore(folder: Path, *, seed: int = 0) -> Path:
    """Save a CLIP as PickScore was released: with GELU, and with the wrong end-of-text token in its config."""
    text = {
        **SIZE_FIELDS,
        "vocab_size": len(make_clip_tokenizer()),
        "max_position_embeddings": CLIP_CONTEXT_TOKENS,
        "hidden_act": "gelu",
    }
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    vision = {**SIZE_FIELDS, "image_size": tiny.IMAGE_SIDE, "patch_size": 8, "hidden_act": "gelu"}
    network = CLIPModel(CLIPConfig(text_config=text | ends, vision_config=vision, projection_dim=24))
    enlarge_weights(network, seed=seed)
    network.save_pretrained(folder)
    make_clip_tokenizer().save_pretrained(folder)
    tiny.save_preprocessor(folder)
    return folder


class _Block(nn.Module):
    """A residual block with OpenCLIP's weight names; queries, keys and values share one matrix."""

    def __init__(self, width: int, heads: int, activation: nn.Module) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        layers = {"c_fc": nn.Linear(width, width * 4), "gelu": activation, "c_proj": nn.Linear(width * 4, width)}
        self.mlp = nn.Sequential(OrderedDict(layers))

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        seen = self.ln_1(states)
        states = states + self.attn(seen, seen, seen, attn_mask=mask, need_weights=False)[0]
        return states + self.mlp(self.ln_2(states))


class _Transformer(nn.Module):
    def __init__(self, width: int, heads: int, activation: nn.Module) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(_Block(width, heads, activation) for _ in range(2))

    def forward(self, states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.resblocks:
            states = block(states, mask)
        return states


class _Visual(nn.Module):
    def __init__(self, width: int, heads: int, patch: int, activation: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(torch.randn(width))
        self.positional_embedding = nn.Parameter(torch.randn((tiny.IMAGE_SIDE // patch) ** 2 + 1, width))
        self.ln_pre, self.ln_post = nn.LayerNorm(width), nn.LayerNorm(width)
        self.transformer = _Transformer(width, heads, activation)
        self.proj = nn.Parameter(torch.randn(width, 24))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.conv1(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(pixels), 1, -1)
        states = self.transformer(self.ln_pre(torch.cat([first, patches], dim=1) + self.positional_embedding))
        embedded: torch.Tensor = self.ln_post(states[:, 0]) @ self.proj
        return embedded


class QuickGelu(nn.Module):
    """The activation function of OpenAI's CLIPs."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states * torch.sigmoid(1.702 * states)


class OpenClip(nn.Module):
    """A CLIP with OpenCLIP's formulas and weight names."""

    def __init__(self, *, quick: bool) -> None:
        super().__init__()
        activation, entries = QuickGelu() if quick else nn.GELU(), len(make_clip_tokenizer())
        self.visual = _Visual(32, 2, 8, activation)
        self.token_embedding = nn.Embedding(entries, 24)
        self.positional_embedding = nn.Parameter(torch.randn(CLIP_CONTEXT_TOKENS, 24))
        self.transformer = _Transformer(24, 2, activation)
        self.ln_final = nn.LayerNorm(24)
        self.text_projection = nn.Parameter(torch.randn(24, 24))
        self.logit_scale = nn.Parameter(torch.tensor(1.5))

    def encode_text(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed texts of shape (n, length); a text's embedding is the output at its highest token id."""
        length = ids.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        states = self.transformer(self.token_embedding(ids) + self.positional_embedding[:length], mask)
        ends = self.ln_final(states)[torch.arange(len(ids)), ids.argmax(dim=-1)]
        embedded: torch.Tensor = ends @ self.text_projection
        return embedded


def make_open_clip_fields(*, quick: bool) -> dict[str, Any]:
    """Return the content of an open_clip_config.json; as in the releases, it only states `quick_gelu` if true."""
    vision = {"image_size": tiny.IMAGE_SIDE, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
    text = {
        "context_length": CLIP_CONTEXT_TOKENS,
        "vocab_size": len(make_clip_tokenizer()),
        "width": 24,
        "heads": 2,
        "layers": 2,
    }
    made = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": text} | ({"quick_gelu": True} if quick else {})
    return {"model_cfg": made, "preprocess_cfg": {"mean": tiny.IMAGE_MEAN, "std": tiny.IMAGE_STD}}


def make_open_clip(*, seed: int = 0, quick: bool = False) -> OpenClip:
    torch.manual_seed(seed)
    network = OpenClip(quick=quick).eval()
    enlarge_weights(network, seed=seed)
    return network


def save_open_clip(folder: Path, *, seed: int = 0, quick: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.contiguous() for name, tensor in make_open_clip(seed=seed, quick=quick).state_dict().items()
    }
    save_file(weights, folder / "open_clip_model.safetensors")
    tiny.write_json(folder / "open_clip_config.json", make_open_clip_fields(quick=quick))
    make_clip_tokenizer().save_pretrained(folder)
    return folder


class _Leff(nn.Module):
    """PyramidCLIP's layer that mixes patches, with the weight names of its release."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = width * 4
        self.linear1, self.linear2 = nn.Linear(width, wide), nn.Linear(wide, width)
        self.ac1 = nn.Sequential(OrderedDict(bn=nn.BatchNorm1d(wide), gelu=QuickGelu()))
        mixing = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.depConv = nn.Sequential(OrderedDict(depconv=mixing, bn=nn.BatchNorm2d(wide), gelu=QuickGelu()))
        self.ac2 = nn.Sequential(OrderedDict(bn=nn.BatchNorm1d(width), gelu=QuickGelu()))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        made = [states[:, 0]]
        wide = torch.stack([self.linear1(patch) for patch in states[:, 1:].unbind(1)], dim=2)
        grid = self.ac1(wide).reshape(*wide.shape[:2], 4, 4)
        for patch in self.depConv(grid).flatten(2).unbind(2):
            made.append(self.ac2(self.linear2(patch)))
        return torch.stack(made, dim=1)


class PyramidClipRelease(OpenClip):
    """A PyramidCLIP with the formulas and weight names of the released code.

    Nine of ten layers mix patches.
    """

    def __init__(self) -> None:
        super().__init__(quick=True)
        for tower, heads in ((self.visual, 2), (self, 2)):
            width = tower.ln_post.normalized_shape[0] if tower is self.visual else self.ln_final.normalized_shape[0]
            blocks = [_Block(width, heads, QuickGelu()) for _ in range(10)]
            for block in blocks[:9] if tower is self.visual else ():
                block.mlp = _Leff(width)  # type: ignore[assignment]
            del tower.transformer.resblocks
            tower.transformer.resblocks1 = nn.ModuleList(blocks[:9])
            tower.transformer.resblocks2 = nn.ModuleList(blocks[9:])
            tower.transformer.forward = partial(_apply_blocks, blocks)  # type: ignore[method-assign]
        self.visual.proj_pre = nn.Parameter(torch.randn(2052, 32))

    def encode_text(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed texts, padded with 0 to the full context length, by the maximum over all tokens in each dimension."""
        mask = torch.full((CLIP_CONTEXT_TOKENS, CLIP_CONTEXT_TOKENS), float("-inf")).triu(1)
        states = self.ln_final(self.transformer(self.token_embedding(ids) + self.positional_embedding, mask))
        embedded: torch.Tensor = states.max(dim=1)[0] @ self.text_projection
        return embedded


def _apply_blocks(blocks: Sequence[_Block], states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    for block in blocks:
        states = block(states, mask)
    return states


def make_pyramid_clip(*, seed: int = 0) -> PyramidClipRelease:
    """Return a PyramidCLIP with random weights, and batch-norm statistics like those of a trained one."""
    torch.manual_seed(seed)
    network = PyramidClipRelease().eval()
    enlarge_weights(network, seed=seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features) * 0.1
            module.running_var = torch.rand(module.num_features) + 0.5
    return network


def save_pyramid_clip(folder: Path, *, seed: int = 0) -> Path:
    """Save a PyramidCLIP as it is stored after converting its release."""
    network = PyramidClip(convert_open_clip_config(make_pyramid_clip_fields()))
    network.load_state_dict(convert_pyramid_clip_weights(make_pyramid_clip(seed=seed).state_dict()))
    network.save_pretrained(folder)
    make_clip_tokenizer().save_pretrained(folder)
    make_clip_processor(tiny.IMAGE_SIDE).save_pretrained(folder)
    return folder


def make_pyramid_clip_fields() -> dict[str, Any]:
    """Return the open_clip_config.json of a base model with PyramidCLIP's layers."""
    fields = make_open_clip_fields(quick=True)
    for part in ("vision_cfg", "text_cfg"):
        fields["model_cfg"][part]["layers"] = 10
    return fields


def save_siglip(folder: Path, *, seed: int = 0) -> Path:
    """Save a random SigLIP with a SentencePiece tokenizer that removes punctuation, like SigLIP's own."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=pieces,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=-1,
        bos_id=-1,
        eos_id=1,
        unk_id=2,
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(pieces.getvalue())
    tokenizer = SiglipTokenizer(
        str(folder / "spiece.model"), model_max_length=SIGLIP_CONTEXT_TOKENS, model_input_names=["input_ids"]
    )
    _save_siglip_network(folder, len(tokenizer), eos=1, seed=seed)
    tokenizer.save_pretrained(folder)
    return folder


def save_siglip2(folder: Path, *, seed: int = 0) -> Path:
    """Save a SigLIP 2 of fixed size: SigLIP's network with Gemma's tokenizer, which keeps upper case."""
    tokenizer = _make_gemma_tokenizer()
    _save_siglip_network(folder, len(tokenizer), eos=1, seed=seed)
    tokenizer.save_pretrained(folder)
    return folder


def _save_siglip_network(folder: Path, entries: int, *, eos: int, seed: int) -> None:
    vision = {**SIZE_FIELDS, "image_size": tiny.IMAGE_SIDE, "patch_size": 8}
    network = SiglipModel(SiglipConfig(text_config=_make_siglip_text(entries, eos), vision_config=vision))
    _save_with_centred_logits(network, folder, seed=seed)
    SiglipImageProcessor(size={"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}).save_pretrained(folder)


def save_siglip2_naflex(folder: Path, *, seed: int = 0) -> Path:
    """Save a SigLIP 2 that keeps an image's aspect ratio, and reads it as up to 16 patches."""
    tokenizer = _make_gemma_tokenizer()
    vision = {**SIZE_FIELDS, "num_patches": 16, "patch_size": 8}
    network = Siglip2Model(Siglip2Config(text_config=_make_siglip_text(len(tokenizer), 1), vision_config=vision))
    _save_with_centred_logits(network, folder, seed=seed)
    tokenizer.save_pretrained(folder)
    Siglip2ImageProcessorPil(patch_size=8, max_num_patches=16).save_pretrained(folder)
    return folder


def _make_siglip_text(entries: int, eos: int) -> dict[str, Any]:
    size = {**SIZE_FIELDS, "vocab_size": entries, "max_position_embeddings": SIGLIP_CONTEXT_TOKENS}
    return {**size, "projection_size": 32, "eos_token_id": eos, "bos_token_id": None, "pad_token_id": 0}


def _save_with_centred_logits(network: Any, folder: Path, *, seed: int) -> None:
    """Save a network whose logits are centred around 0."""
    enlarge_weights(network, seed=seed)
    with torch.no_grad():
        network.logit_scale.fill_(1.5)
        network.logit_bias.fill_(-0.5)
    network.save_pretrained(folder)


def _make_gemma_tokenizer() -> GemmaTokenizer:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    letters = ["▁", *string.ascii_letters]
    entries = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    return GemmaTokenizer(
        vocab={entry: index for index, entry in enumerate(entries)},
        merges=[],
        add_bos_token=False,
        add_eos_token=True,
        padding_side="right",
        model_max_length=SIGLIP_CONTEXT_TOKENS,
        model_input_names=["input_ids"],
    )


def save_align(folder: Path, *, seed: int = 0) -> Path:
    """Save an ALIGN with a small EfficientNet and a BERT of the same width."""
    vision = {
        "image_size": tiny.IMAGE_SIDE,
        "width_coefficient": 1.0,
        "depth_coefficient": 1.0,
        "hidden_dim": 32,
        "in_channels": [32, 8],
        "out_channels": [8, 32],
        "kernel_sizes": [3, 3],
        "strides": [1, 2],
        "num_block_repeats": [1, 1],
        "expand_ratios": [1, 6],
    }
    network = AlignModel(AlignConfig(text_config=tiny.TEXT_FIELDS, vision_config=vision, projection_dim=32))
    enlarge_weights(network, seed=seed)
    network.save_pretrained(folder)
    tiny.save_tokenizer(folder, template="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1")
    size = {"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}
    EfficientNetImageProcessor(
        size={"height": 40, "width": 40}, crop_size=size, do_center_crop=True, rescale_offset=True, include_top=False
    ).save_pretrained(folder)
    return folder


def make_bert_tokenizer() -> BertTokenizer:
    """Return an uncased BERT tokenizer with the two tokens that BLIP adds.

    Its vocabulary contains all letters and the words used in the tests.
    """
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    words = [word for sentence in SENTENCES for word in sentence.split() if len(word) > 1]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = dict.fromkeys([*special, *letters, *("##" + letter for letter in letters), *words])
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = BertTokenizer(vocab=vocabulary, model_max_length=64, padding_side="left")
    tokenizer.add_special_tokens({"bos_token": "[DEC]", "extra_special_tokens": ["[ENC]"]})
    return tokenizer


def save_blip_itm(folder: Path, *, seed: int = 0, side: int = tiny.IMAGE_SIDE) -> Path:
    """Save a BLIP that was trained for image-text matching."""
    tokenizer = make_bert_tokenizer()
    text = {**SIZE_FIELDS, "vocab_size": len(tokenizer), "max_position_embeddings": 64, "encoder_hidden_size": 32}
    ends = {"bos_token_id": len(tokenizer) - 2, "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    vision = {**SIZE_FIELDS, "image_size": side, "patch_size": 8}
    config = BlipConfig(text_config=text | ends, vision_config=vision, projection_dim=24, image_text_hidden_size=24)
    network = BlipForImageTextRetrieval(config)
    enlarge_weights(network, seed=seed)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    BlipImageProcessorPil(size={"height": side, "width": side}).save_pretrained(folder)
    return folder


def save_blip2_itm(folder: Path, *, seed: int = 0) -> Path:
    """Save a BLIP-2 that was trained for image-text matching, with a Q-Former of four queries."""
    tokenizer = make_bert_tokenizer()
    text = {**SIZE_FIELDS, "vocab_size": len(tokenizer), "max_position_embeddings": 64, "encoder_hidden_size": 32}
    config = Blip2Config(
        vision_config={**SIZE_FIELDS, "image_size": tiny.IMAGE_SIDE, "patch_size": 8},
        qformer_config={**text, "pad_token_id": 0, "use_qformer_text_input": True, "cross_attention_frequency": 2},
        num_query_tokens=4,
        image_text_hidden_size=24,
    )
    network = Blip2ForImageTextRetrieval(config)
    enlarge_weights(network, seed=seed)
    with torch.no_grad():
        network.query_tokens.copy_(torch.randn(network.query_tokens.shape, generator=torch.Generator().manual_seed(1)))
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    BlipImageProcessorPil(size={"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}).save_pretrained(folder)
    return folder


def save_dino(folder: Path, *, seed: int = 0, second: bool = False) -> Path:
    """Save a DINO or, if `second`, a DINOv2 with positions for larger images; neither has a tokenizer or a pooler."""
    vision = {**SIZE_FIELDS, "patch_size": 8}
    if second:
        network: Any = Dinov2Model(Dinov2Config(**vision, mlp_ratio=2, image_size=2 * tiny.IMAGE_SIDE))
        size = {"size": {"shortest_edge": 256}, "crop_size": {"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}}
    else:
        network = ViTModel(ViTConfig(**vision, image_size=tiny.IMAGE_SIDE), add_pooling_layer=False)
        size = {"size": {"height": tiny.IMAGE_SIDE, "width": tiny.IMAGE_SIDE}}
    enlarge_weights(network, seed=seed)
    network.save_pretrained(folder)
    kind = "BitImageProcessor" if second else "ViTImageProcessor"
    colours = {"image_mean": tiny.IMAGE_MEAN, "image_std": tiny.IMAGE_STD}
    tiny.write_json(folder / "preprocessor_config.json", {"image_processor_type": kind, **size, **colours})
    return folder


def save_imagereward(folder: Path, *, seed: int = 0) -> Path:
    """Save an ImageReward as it is stored after converting its release."""
    save_blip_itm(folder, seed=seed)
    config = BlipConfig.from_pretrained(folder)
    config.vision_config.layer_norm_eps = 1e-6
    network = ImageReward(config)
    enlarge_weights(network, seed=seed)
    enlarge_weights(network.reward_head, seed=seed, deviation=0.1)
    network.save_pretrained(folder)
    tiny.save_preprocessor(folder)
    return folder
