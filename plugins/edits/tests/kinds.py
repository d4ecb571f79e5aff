"""Tiny checkpoints for every kind of network in the plugin, and for every role that its metrics use."""

from collections.abc import Mapping
from functools import partial

from plugins.edits.tests import tiny_lpips
from tests.operators.tiny.kind import Kind

KINDS: Mapping[str, Kind] = {
    "lpips_alex": Kind("lpips", tiny_lpips.save_lpips, "distance"),
    "lpips_vgg": Kind("lpips", partial(tiny_lpips.save_lpips, net="vgg"), "distance"),
}
ROLES: Mapping[str, Kind] = {"lpips": KINDS["lpips_alex"]}
