"""Training of CLIP-FlanT5 and LLaVA in two stages, and of any checkpoint on human ratings, as Ray Train jobs."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
