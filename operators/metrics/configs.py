"""Every metric there is, and the kinds of them."""

from operators.metrics.clipscore import ClipScoreConfig
from operators.metrics.dsg import DsgConfig
from operators.metrics.gecko import GeckoConfig
from operators.metrics.tifa import TifaConfig
from operators.metrics.vq2 import Vq2Config
from operators.metrics.vqascore import VqaScoreConfig

WritingConfig = GeckoConfig | TifaConfig | DsgConfig | Vq2Config
"""The metrics whose questions a language model writes."""

AskingConfig = VqaScoreConfig | WritingConfig
"""The metrics that ask a VQA model about the image."""

MetricConfig = AskingConfig | ClipScoreConfig
