"""Tiny checkpoint for the plugin's role that has no embedded model."""

from collections.abc import Mapping

from tests.operators.tiny import save_clip
from tests.operators.tiny.kind import Kind

ROLES: Mapping[str, Kind] = {"color_classifier": Kind("clip", save_clip)}
