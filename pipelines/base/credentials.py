"""Renewal of S3 credentials during a run: they are read again from their source when the server refuses them."""

from typing import Any

from aiobotocore.session import AioSession
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError

REFUSED = (400, 401, 403)
"""Status codes of refused credentials. AWS replies 400 for an expired session and 403 for a deleted key; a reply to a
HEAD request has no body that would give more detail."""
REPEATED = "plumbline_renewed"
"""Key in the context of a call that was repeated with renewed credentials."""


def renewing_session() -> AioSession:
    """Return a session with the standard AWS credential chain that outlives its first credentials.

    botocore itself renews credentials with an expiry date (of a role, a service or a process). Other credentials, such
    as a shared file that another program rewrites, are found to be expired only when a call is refused. Such a call is
    repeated once with the credentials that are in the file by then.
    """
    session = AioSession()

    async def renew(response: tuple[Any, Any] | None, request_dict: dict[str, Any], **_: Any) -> int | None:
        """Handle botocore's event after each attempt: return 0 to repeat the call at once, or None otherwise."""
        context = request_dict["context"]
        if response is None or response[0].status_code not in REFUSED or REPEATED in context:
            return None
        context[REPEATED] = True
        return 0 if await _reload(session) else None

    session.register("needs-retry.s3", renew)
    return session


async def _reload(session: AioSession) -> bool:
    """Replace the session's credentials by those that their source has now; return False if the source has none."""
    credentials = await session.get_credentials()
    if credentials is None or isinstance(credentials, RefreshableCredentials):
        return False
    try:
        fresh = await AioSession().get_credentials()
    except BotoCoreError:  # for example, the file is half written
        return False
    if fresh is None:
        return False
    now = await fresh.get_frozen_credentials()
    credentials.access_key, credentials.secret_key, credentials.token = now.access_key, now.secret_key, now.token
    return True
