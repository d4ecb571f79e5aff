"""The statistics behind reports and meta-evaluation, as pure functions of NumPy arrays (docs/python.md)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("plumbline", __file__)
