"""Selects the filesystem for an address: a disk, an object store, or another filesystem, which is read-only."""

from functools import lru_cache

from plumbline.operators.base.extensions import explain_missing_extra
from plumbline.pipelines.base.filesystems.disk import Disk
from plumbline.pipelines.base.filesystems.filesystem import AccessSettings, Filesystem, open_for_reading

OBJECT_STORE_SCHEMES = ("s3://", "gs://", "az://")


def choose_filesystem(url: str, settings: AccessSettings) -> Filesystem:
    """Return the filesystem for an absolute path or a URL; raise ConfigError if its client rejects the settings.

    All URLs with the same object-store scheme share one client; other URLs share one client per host.
    """
    store = next((store for store in OBJECT_STORE_SCHEMES if url.startswith(store)), None)
    host = "" if url.startswith("/") else "/".join(url.split("/", 3)[:3])
    return open_filesystem(host if store is None else store, settings)


@lru_cache(maxsize=16)
def open_filesystem(root: str, settings: AccessSettings) -> Filesystem:
    """Return the filesystem for addresses that start with `root`; import the client library on first use."""
    match root:
        case "":
            return Disk()
        case "s3://":
            with explain_missing_extra("s3", root):
                from plumbline.pipelines.base.filesystems.s3 import S3
            return S3(settings)
        case "gs://" | "az://":
            with explain_missing_extra("clouds", root):
                from plumbline.pipelines.base.filesystems.clouds import OPENERS_BY_SCHEME
            return OPENERS_BY_SCHEME[root](settings)
        case _:
            return open_for_reading(root)
