"""Allows a CPU torch to import a torchvision built for CUDA, by defining the missing operators."""

import sys

if "torchvision" not in sys.modules:
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None:
        MISSING_OPERATORS = torch.library.Library("torchvision", "DEF")
        MISSING_OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        MISSING_OPERATORS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
