"""Filesystems by how an address begins: a disk, object stores that can hold a store, and what can only be read."""

from functools import lru_cache

from plumbline.pipelines.base.filesystems.disk import Disk
from plumbline.pipelines.base.filesystems.filesystem import Filesystem, Settings


@lru_cache(maxsize=16)
def open_filesystem(root: str, settings: Settings) -> Filesystem:
    """The filesystem whose addresses begin with `root`, such as s3://, or with no scheme.

    Whoever is reached in the same way shares its client. Raises ConfigError for settings that the client refuses.
    """
    if root == "s3://":
        from plumbline.pipelines.base.filesystems.s3 import S3  # takes a second, and only s3:// needs it

        return S3(settings)
    return Disk()
