"""Tiny checkpoint for the network that the plugin adds."""

from collections.abc import Mapping

from plugins.distances.tests import tiny_inception
from tests.operators.tiny.kind import Kind

KINDS: Mapping[str, Kind] = {"inception": Kind("inception", tiny_inception.save_inception)}
