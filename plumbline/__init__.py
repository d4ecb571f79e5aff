"""Scores how well generated images match their prompts, for single images and for whole sweeps.

`score` scores images in this process. `open_scorer` keeps a scorer's models loaded. `open_run` reads the tables of a
sweep, `judge` compares scores with human ratings, and `trl_reward` turns a scorer into a reward function for TRL
(docs/python.md). Other packages build on the names in `plumbline.extending` (docs/plugins.md).

In a checkout, `jobs`, `operators`, `pipelines` and `plugins` are links in this folder; in an installed wheel they are
folders. They are only imported as `plumbline.NAME`, so that each module exists only once.
"""

from importlib.metadata import version
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    return version("plumbline-t2i") if name == "__version__" else _load(name)
