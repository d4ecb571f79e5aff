"""Allows a CPU torch to import a torchvision built for CUDA, by defining the missing operators just before.

Other programs that this Python runs, such as Ray's own, do not import torch for it.
"""

import sys


class DefineOperators:
    """Finder that finds nothing, but defines operators of torchvision when that is imported for the first time."""

    def find_spec(self, name, path=None, target=None):
        """Return None, so that the next finder finds the module."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            operators = torch.library.Library("torchvision", "DEF")
            operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.torchvision_operators = operators  # the definitions last as long as the library


sys.meta_path.insert(0, DefineOperators())
