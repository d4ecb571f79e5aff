"""What the extensions of another package build on (docs/plugins.md): these names stay where they are."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("plumbline", __file__)
