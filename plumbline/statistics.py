"""The statistics behind reports and meta-evaluation, as pure functions of NumPy arrays (docs/python.md)."""

from plumbline.lazy_names import read_stub

__getattr__, __dir__, __all__ = read_stub(__file__)
