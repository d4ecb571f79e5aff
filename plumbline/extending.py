"""Stable names that extensions in other packages can rely on (docs/plugins.md)."""

from plumbline.lazy_names import read_stub

__getattr__, __dir__, __all__ = read_stub(__file__)
