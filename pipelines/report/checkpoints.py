"""Which generators are checkpoints of one training: told by their names."""

import re

from plumbline.operators.errors import ConfigError

CHECKPOINTS = r"(?P<family>.+?)[-_.]?(?:step|ckpt|checkpoint|iter|epoch)[-_.]?(?P<step>[0-9]+)"


def check_checkpoints(key: str, expression: str) -> None:
    """Raises ConfigError, naming the key, for what is no regular expression with the groups `family` and `step`."""
    try:
        groups = re.compile(expression).groupindex
    except re.error as error:
        raise ConfigError(f"{key}: expected a regular expression, got {expression!r} ({error})") from error
    if not {"family", "step"} <= set(groups):
        raise ConfigError(f"{key}: expected groups (?P<family>...) and (?P<step>[0-9]+), got {expression!r}")
