"""Credentials that are renewed while a run goes on: read anew from where they stand when the S3 server refuses them."""

from typing import Any

from aiobotocore.session import AioSession
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError

REFUSED = (400, 401, 403)
"""AWS answers 400 where a session has expired, 403 where a key is no more; the answer to a HEAD has no other word."""
REPEATED = "plumbline_renewed"
"""Stands in the context of a call that was repeated with credentials read anew."""


def renewing_session() -> AioSession:
    """A session by the standard chain of AWS that survives its credentials.

    Those that say when they end (of a role, a service or a process) are renewed in time by botocore itself. Of others,
    such as a shared file that something outside writes anew, nobody knows until a call is refused: it is repeated once
    with what stands there then.
    """
    session = AioSession()

    async def renew(response: tuple[Any, Any] | None, request_dict: dict[str, Any], **_: Any) -> int | None:
        """Botocore's event after each try: the seconds to wait for the next one, or None where others decide."""
        context = request_dict["context"]
        if response is None or response[0].status_code not in REFUSED or REPEATED in context:
            return None
        context[REPEATED] = True
        return 0 if await _read_anew(session) else None

    session.register("needs-retry.s3", renew)
    return session


async def _read_anew(session: AioSession) -> bool:
    """Puts what stands where the credentials came from in their place; False where there is nothing to read."""
    credentials = await session.get_credentials()
    if credentials is None or isinstance(credentials, RefreshableCredentials):
        return False
    try:
        fresh = await AioSession().get_credentials()
    except BotoCoreError:  # half written, for one
        return False
    if fresh is None:
        return False
    now = await fresh.get_frozen_credentials()
    credentials.access_key, credentials.secret_key, credentials.token = now.access_key, now.secret_key, now.token
    return True
