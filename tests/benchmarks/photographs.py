"""Pictures that cost as much as photographs; numpy and Pillow are enough."""

import numpy as np
from PIL import Image


def photograph(seed: int, side: int) -> Image.Image:
    """Noise of every scale, the coarser the stronger: about as hard to compress and to decode as a photograph."""
    random, sum_of_scales = np.random.default_rng(seed), np.zeros((side, side, 3), np.float32)
    for octave in range(2, side.bit_length()):
        noise = Image.fromarray(random.integers(0, 256, (2**octave, 2**octave, 3), np.uint8))
        sum_of_scales += np.asarray(noise.resize((side, side), Image.Resampling.BICUBIC)) * np.float32(0.55**octave)
    return Image.fromarray((sum_of_scales * (255 / sum_of_scales.max())).astype(np.uint8))
