"""Whether generated images match their prompts, at the scale of whole sweeps.

`score` scores images in this process. `open_scorer` keeps the models of a scorer loaded. `open_run` reads the tables
of a sweep, `judge` compares scores with people's ratings, and `trl_reward` makes a scorer TRL's reward function
(docs/python.md). `plumbline.extending` has what another package builds on (docs/plugins.md).

In a checkout the packages below are links to the folders beside this one; an installed wheel holds them here. They are
imported by this name alone, so that each module exists once.
"""

from importlib.metadata import version
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    return version("plumbline-t2i") if name == "__version__" else _load(name)
