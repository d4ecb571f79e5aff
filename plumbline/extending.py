"""Stable names that extensions in other packages can rely on (docs/plugins.md)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("plumbline", __file__)
