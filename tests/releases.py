"""Tells which tests need a newer release of transformers than the one that `make test-oldest` installs."""

import re
from importlib.metadata import version

from packaging.version import Version

CHAT_MODELS = "5.16"
"""Oldest release of transformers that the family `vlm` supports."""
CHAT_MODEL_TESTS = [
    f"tests/operators/models/{name}.py"
    for name in (
        "families/test_on_gpu",
        "families/test_thinking",
        "families/test_video_input",
        "families/test_vlm",
        "test_attention",
    )
]
"""Modules that test the family `vlm`, some of which import names that older releases lack."""
TOO_OLD = re.compile(r"family \w+ needs transformers [\d.]+ or later, found")
"""Pattern of the error message for a family that needs a newer release of transformers."""


def is_older(release: str) -> bool:
    """Return True if the installed transformers is older than a release."""
    return Version(version("transformers")) < Version(release)
