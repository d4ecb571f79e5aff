"""Distances of a generator's images from a set of reference images: CMMD and FID."""

from pathlib import Path

CONF = Path(__file__).parent / "conf"
