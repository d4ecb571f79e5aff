"""Stable names for the extensions of other packages (docs/plugins.md)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("plumbline", __file__)
