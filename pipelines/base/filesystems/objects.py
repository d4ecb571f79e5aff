"""Object stores: one conditional write is a commit, and no folder is there without an object."""

import mimetypes
import tempfile
from pathlib import Path
from typing import IO, Any, cast

from plumbline.pipelines.base.filesystems.filesystem import Writable

UPLOAD_BYTES = 16 * 2**20
"""Of a large file, sent as one part."""


class ObjectStore(Writable):
    """What object stores have in common, by a client that writes create-only by `mode="create"`."""

    def open(self, path: str, size: int | None, etag: str | None, **options: Any) -> IO[bytes]:
        return cast(IO[bytes], self.fs.open(path, "rb", size=size, **options))

    def read(self, path: str, most: int | None) -> bytes:
        """Whole objects come with one call; s3fs would ask for the size first."""
        options = {"max_concurrency": 1} if most is None else {"start": 0, "end": most}
        return bytes(self.fs.cat_file(path, **options))

    def create(self, path: str, data: bytes) -> bool:
        """One conditional write.

        An object that is there may be of a try of ours whose answer was lost, so that the next one was refused.
        """
        return self._put_new(path, data) or bool(self.fs.cat_file(path) == data)

    def heeds_conditions(self, path: str, data: bytes) -> bool:
        return not (self._put_new(path, data) and self._put_new(path, data))

    def _put_new(self, path: str, data: bytes) -> bool:
        """Whether there was none. SeaweedFS refuses a lost race with errno 22, where others say that it exists."""
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
