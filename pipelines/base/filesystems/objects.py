"""Object stores: one conditional write is a commit, and folders exist only with objects in them."""

import mimetypes
import tempfile
from pathlib import Path
from typing import IO, Any, cast

from plumbline.pipelines.base.filesystems.filesystem import Writable

UPLOAD_BYTES = 16 * 2**20
"""Size of the parts in which a large file is uploaded."""


class ObjectStore(Writable):
    """Base of object stores whose fsspec client supports `mode="create"` for conditional writes."""

    def open(self, path: str, size: int | None, etag: str | None, **options: Any) -> IO[bytes]:
        return cast(IO[bytes], self.fs.open(path, "rb", size=size, **options))

    def read(self, path: str, limit: int | None) -> bytes:
        """Return the bytes with a single request; s3fs would ask for the size first."""
        options = {"max_concurrency": 1} if limit is None else {"start": 0, "end": limit}
        return bytes(self.fs.cat_file(path, **options))

    def create(self, path: str, data: bytes) -> bool:
        """Write an object if it does not exist.

        An existing object may come from our own attempt whose response was lost, so that our retry was refused.
        """
        return self._create(path, data) or bool(self.fs.cat_file(path) == data)

    def heeds_conditions(self, path: str, data: bytes) -> bool:
        return not (self._create(path, data) and self._create(path, data))

    def _create(self, path: str, data: bytes) -> bool:
        """Write an object; return False if it existed.

        After a lost race, SeaweedFS replies errno 22, whereas other servers reply that the object exists.
        """
        try:
            self.fs.pipe_file(path, data, mode="create")
        except OSError:
            if not self.fs.exists(path):
                raise
            return False
        return True

    def write(self, path: str, data: bytes) -> None:
        content_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        self.fs.pipe_file(path, data, ContentType=content_type)

    def draft_folder(self, path: str) -> Path:
        return Path(tempfile.gettempdir())

    def put(self, draft: Path, path: str, *, replace: bool) -> bool:
        mode = "overwrite" if replace else "create"
        try:
            self.fs.put_file(str(draft), path, mode=mode, chunksize=UPLOAD_BYTES, max_concurrency=2)
        except OSError:
            if replace or not self.fs.exists(path):
                raise
            return False
        return True

    def copy(self, source: str, target: str) -> None:
        self.fs.cp_file(source, target)
