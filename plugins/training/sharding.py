"""Shards weights among several workers (FSDP), in order to train networks that are too large for one GPU."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5

FORWARD_METHOD_NAMES = ("encode_images", "encode_questions", "decode")
"""Methods that training calls. FSDP gathers the weights before each call."""


def shard_network(network: ClipFlanT5, device: torch.device) -> ClipFlanT5:
    """Return the network with only this worker's part of the weights, in single precision on the worker's device.

    The weights of a block are gathered while it is computed, and dropped afterwards. Each worker keeps the whole vision
    tower, because it is never trained. Blocks are converted one at a time, so that the whole network is never in memory
    in single precision.
    """
    network.vision_tower.to(device=device, dtype=torch.float32)
    language = network.language_model
    for block in (*language.encoder.block, *language.decoder.block):
        fully_shard(block.to(device=device, dtype=torch.float32))
    for module in (network.mm_projector, language):
        for parameter in module.parameters():
            if not isinstance(parameter, DTensor):
                parameter.data = parameter.data.to(device=device, dtype=torch.float32)
    fully_shard(network, ignored_params=set(network.vision_tower.parameters()))
    for name in FORWARD_METHOD_NAMES:
        register_fsdp_forward_method(network, name)
    return network


def get_local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this worker's part of a tensor if it is sharded, otherwise the whole tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gather_weights(network: nn.Module, targets: Mapping[str, torch.Tensor]) -> None:
    """Gather a network's weights one by one, and copy each weight to the tensor of the same name.

    All workers must call this function. A worker that needs no copies passes an empty mapping.
    """
    for name, parameter in network.named_parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        if name in targets:
            targets[name].copy_(whole)


def select_unaveraged_gradients(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Return the gradients that FSDP does not average itself, because their weights are not sharded."""
    return [gradient for gradient in gradients if gradient is not None and not isinstance(gradient, DTensor)]
