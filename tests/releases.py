"""Tells which tests need newer packages than the oldest supported ones, which `make test-oldest` installs."""

import re
from importlib.metadata import version

from packaging.version import Version

CHAT_MODELS_RELEASE = "5.16"
"""Oldest release of transformers that the family `vlm` supports."""
CHAT_MODEL_TESTS = [
    "tests/operators/models/families/test_on_gpu.py",
    "tests/operators/models/families/test_thinking.py",
    "tests/operators/models/families/test_video_input.py",
    "tests/operators/models/families/test_vlm.py",
    "tests/operators/models/test_attention.py",
    "tests/vllm/test_thinking.py",
]
"""Modules that test the family `vlm`, some of which import names that older releases lack."""
OLD_LIBRARY_MESSAGE_PATTERN = re.compile(r"family \w+ needs transformers [\d.]+ or later, found")
"""Pattern of the error message for a family that needs a newer release of transformers."""


def is_older(release: str, package: str = "transformers") -> bool:
    """Return True if the installed version of a package is older than a release."""
    return Version(version(package)) < Version(release)
