"""Scores how well generated images match their prompts, for single images and for whole sweeps.

`score` scores images in this process. `open_scorer` keeps a scorer's models loaded. `open_run` reads the tables of a
sweep, `judge` compares scores with human ratings, and `trl_reward` turns a scorer into a reward function for TRL
(docs/python.md). `Evaluation` scores a pipeline inside a training loop (plugins/training_loop/README.md). Other
packages build on the names in `plumbline.extending` (docs/plugins.md).

In a checkout, `jobs`, `operators`, `pipelines` and `plugins` are links in this folder; in an installed wheel they are
folders. They are only imported as `plumbline.NAME`, so that each module exists only once.
"""

from importlib.metadata import version
from typing import Any

from plumbline.lazy_names import read_stub

_load, __dir__, __all__ = read_stub(__file__)
PLUGINS = "plumbline.plugins."


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("plumbline-t2i")
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(PLUGINS):
            raise
        from plumbline.operators.base.errors import ConfigError, describe_missing_plugin

        plugin = str(error.name).removeprefix(PLUGINS).partition(".")[0]
        raise ConfigError(describe_missing_plugin(f"plumbline.{name}: a part", plugin)) from error
