"""S3 on AWS and other servers: the client, which renews credentials, and its errors."""

import errno
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from random import random
from typing import IO, Any, cast
from xml.etree import ElementTree

import fsspec
from aiobotocore.session import AioSession
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError, FlexibleChecksumError
from botocore.session import Session
from botocore.utils import parse_timestamp
from s3fs.core import set_custom_error_handler  # type: ignore[import-untyped]

from plumbline.operators.base.errors import ConfigError, hide_secrets
from plumbline.pipelines.base.filesystems.filesystem import RENEW_CREDENTIALS_REMEDY, AccessSettings, Entry, ObjectStore

SET_CREDENTIALS_REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or storage.key and storage.secret, "
    "or storage.anon=true for a public bucket"
)
CORRECT_SETTINGS_REMEDY = "correct AWS_ENDPOINT_URL (http://HOST:PORT), AWS_REGION and AWS_PROFILE, or storage.*"
CHECK_CONNECTION_ADVICE = "AWS_ENDPOINT_URL or storage.endpoint_url, and the network"
RENEW_OR_CHECK_REMEDY = (
    f"if the credentials are those of a session, it may have expired: {RENEW_CREDENTIALS_REMEDY}; "
    f"or check {CHECK_CONNECTION_ADVICE}"
)
"""Remedy for an unspecific error: a HEAD reply has only a status, and S3 replies with 400 both to an expired session
and to a malformed call.
"""
EXPIRED_CREDENTIAL_CODES = ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired")
"""S3's error codes for expired credentials."""
MAX_RETRIES = 5
"""Number of retries by botocore, with doubling delays; on temporary errors, s3fs repeats the whole series five times.
"""
TEMPORARY_STATUSES = (429, 500, 502, 503, 504)
"""Status codes of an S3 server that is busy or broken, although the call itself may be valid."""
TOO_MANY_REQUESTS_STATUS = 429
USER_AGENT = "plumbline"
"""User agent in the server's log. Botocore's own is longer and is recomputed for each call."""
FILES_PER_DELETION = 1000
"""Number of objects deleted per request."""
REFUSAL_STATUSES = (400, 401, 403)
"""Status codes for refused credentials. AWS replies with 400 to an expired session and with 403 to a deleted key; a
reply to a HEAD request has no body with further details.
"""
REPEATED_CALL_KEY = "plumbline_renewed"
"""Key in a call's context that marks the call as a repetition with renewed credentials."""


class S3(ObjectStore):
    """S3 via s3fs."""

    check = CHECK_CONNECTION_ADVICE
    reads_one_version = True

    def __init__(self, settings: AccessSettings) -> None:
        """Create the client without contacting the server; raise ConfigError if it rejects the settings."""
        try:
            super().__init__("s3://", _make_client(settings))
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(
                f"s3://: {hide_secrets(str(error).splitlines()[0])}; {CORRECT_SETTINGS_REMEDY}"
            ) from error

    def open(self, path: str, size: int | None, etag: str | None, **options: Any) -> IO[bytes]:
        stream: Any = super().open(path, size, etag, **options)
        if size is not None:
            stream.details = {"name": path, "size": size}  # s3fs would request them on the first read
        if etag is not None:
            stream.details = {**stream.details, "ETag": f'"{etag}"'}  # s3fs compares it with the ETag of every response
        return cast(IO[bytes], stream)

    def read(self, path: str, limit: int | None) -> bytes:
        try:
            return super().read(path, limit)
        except OSError as error:  # S3 refuses a range of an empty object
            if limit is None or error.errno != errno.EINVAL or self.get_entry(path).size:
                raise
            return b""

    def _iterate_below(self, path: str) -> Iterator[tuple[str, Entry]]:
        bucket, key, _ = self.fs.split_path(path)
        prefix, further = f"{key}/" if key else "", dict[str, str]()
        while True:
            page = self.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **further)
            for found in page.get("Contents", ()):
                if not found["Key"].endswith("/"):  # S3 consoles create such objects to mark folders
                    etag, written = found["ETag"].strip('"'), found["LastModified"].timestamp()
                    yield found["Key"].removeprefix(prefix), Entry("file", found["Size"], etag, written)
            if not page.get("IsTruncated"):
                return
            further = {"ContinuationToken": page["NextContinuationToken"]}

    def remove_all(self, paths: Sequence[str]) -> None:
        for first in range(0, len(paths), FILES_PER_DELETION):
            buckets, keys, _ = zip(*map(self.fs.split_path, paths[first : first + FILES_PER_DELETION]), strict=True)
            objects = [{"Key": key} for key in keys]
            reply = self.fs.call_s3("delete_objects", Bucket=buckets[0], Delete={"Objects": objects, "Quiet": True})
            for refused in reply.get("Errors", ()):
                raise PermissionError(f"{refused['Key']}: {refused.get('Message') or refused.get('Code')}")

    def find_renewal_remedy(self, error: Exception) -> str | None:
        for source in (error, error.__cause__, error.__context__):
            code = (getattr(source, "response", None) or {}).get("Error", {}).get("Code")
            if code in EXPIRED_CREDENTIAL_CODES:
                return RENEW_CREDENTIALS_REMEDY
            if code == "400":
                return RENEW_OR_CHECK_REMEDY
        return None


def _make_client(settings: AccessSettings) -> fsspec.AbstractFileSystem:
    named = settings.anon or settings.key is not None
    if not named and Session().get_credentials() is None:
        raise ConfigError(f"s3://: no credentials found; {SET_CREDENTIALS_REMEDY}")
    set_custom_error_handler(_is_temporary)
    session = AioSession() if named else _open_renewing_session()
    session.register("needs-retry.s3", _delay_if_busy)
    session.register("before-parse.s3.ListObjectsV2", _parse_objects)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_parse_time)
    client = fsspec.filesystem(
        "s3",
        session=session,
        anon=settings.anon,
        key=settings.key,
        secret=settings.secret,
        endpoint_url=settings.endpoint_url,
        client_kwargs={"region_name": settings.region} if settings.region else {},
        config_kwargs={
            "connect_timeout": 5,
            "retries": {"max_attempts": MAX_RETRIES, "mode": "standard"},
            "user_agent": USER_AGENT,
        },
        use_listings_cache=False,
        local_expiry_check=True,
    )
    client.connect()
    return client


def _open_renewing_session() -> AioSession:
    """Return a session with the standard AWS credential chain that outlives its first credentials.

    By itself, botocore renews credentials that have an expiry date (from a role, a service or a process). Other
    credentials, such as a shared file that another program rewrites, are only found to be expired when a call is
    refused. Such a call is repeated once with the credentials that are in the file at that time.
    """
    session = AioSession()

    async def renew(response: tuple[Any, Any] | None, request_dict: dict[str, Any], **_: Any) -> int | None:
        """Handle botocore's event after each attempt: return 0 to repeat the call at once, or None otherwise."""
        context = request_dict["context"]
        if response is None or response[0].status_code not in REFUSAL_STATUSES or REPEATED_CALL_KEY in context:
            return None
        context[REPEATED_CALL_KEY] = True
        credentials = await session.get_credentials()
        if credentials is None or isinstance(credentials, RefreshableCredentials):
            return None
        try:
            fresh = await AioSession().get_credentials()
        except BotoCoreError:  # for example, the file is half written
            return None
        if fresh is None:
            return None
        now = await fresh.get_frozen_credentials()
        credentials.access_key, credentials.secret_key, credentials.token = now.access_key, now.secret_key, now.token
        return 0

    session.register("needs-retry.s3", renew)
    return session


def _parse_time(value: Any) -> datetime:
    """Parse a time in a response. Botocore's parser tries several formats, which takes 80% of the time of a listing."""
    try:
        return datetime.fromisoformat(value)  # in a listing
    except (TypeError, ValueError):
        pass
    try:
        return parsedate_to_datetime(value)  # in a header
    except (TypeError, ValueError):
        return cast(datetime, parse_timestamp(value))


def _parse_objects(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Handle botocore's event before it parses a listing: parse the objects, and remove them from the response.

    Botocore would look for every field that an object can have, which takes three times as long. It still parses all
    other responses.
    """
    try:
        listing = ElementTree.fromstring(response_dict["body"])
    except ElementTree.ParseError:
        return
    space = listing.tag.removesuffix("ListBucketResult")
    if space == listing.tag:
        return
    objects = listing.findall(f"{space}Contents")
    texts = [{field.tag.removeprefix(space): field.text or "" for field in item} for item in objects]
    customized_response_dict["Contents"] = [
        {**each, "Size": int(each["Size"]), "LastModified": _parse_time(each["LastModified"])} for each in texts
    ]
    listing[:] = [child for child in listing if child.tag != f"{space}Contents"]
    response_dict["body"] = ElementTree.tostring(listing)


def _is_temporary(error: Exception) -> bool:
    """Return True if the server is at fault, two conditional PUTs collided (409), or the response was garbled."""
    response = getattr(error, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    conflict = response.get("Error", {}).get("Code") == "ConditionalRequestConflict"
    return status in TEMPORARY_STATUSES or conflict or isinstance(error, FlexibleChecksumError)


def _delay_if_busy(response: tuple[Any, Any] | None, attempts: int, **_: Any) -> float | None:
    """Handle botocore's event after each attempt: return the seconds to wait after a 429, or None otherwise.

    Botocore recognises this response only by its error code, and some servers send a different code.
    """
    if response is None or response[0].status_code != TOO_MANY_REQUESTS_STATUS or attempts > MAX_RETRIES:
        return None
    return random() * 2.0 ** (attempts - 1)


def collect_s3_settings(settings: AccessSettings) -> dict[str, str]:
    """Return the known settings for other libraries' S3 clients: endpoint_url, region, key, secret and token.

    Settings that are not configured come from the same sources as for AWS tools: environment variables, profiles, and
    the machine's role.
    """
    session = Session()
    found = session.get_credentials() if settings.key is None else None
    frozen = found.get_frozen_credentials() if found is not None else None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    given = {
        "endpoint_url": settings.endpoint_url or endpoint,
        "region": settings.region or session.get_config_variable("region"),
        "key": frozen.access_key if frozen is not None else settings.key,
        "secret": frozen.secret_key if frozen is not None else settings.secret,
        "token": frozen.token if frozen is not None else None,
    }
    return {name: value for name, value in given.items() if value}
