"""Runs the server of a study."""

from collections.abc import Callable

from plumbline.operators.base.errors import ConfigError, format_install_remedy
from plumbline.pipelines.web.listening import (
    format_server_url,
    list_allowed_hosts,
    open_listening_socket,
    run_app,
    take_token,
)
from plumbline.plugins.rating.rate_config import RateConfig

SHUTDOWN_SECONDS = 10
"""Time in seconds that unfinished requests have to complete when the server stops."""


def serve_study(config: RateConfig, ready: Callable[[str, str], None], report: Callable[[str], None]) -> None:
    """Serve a study until the process is stopped.

    Calls `ready` with the study's folder and address, and `report` with each warning. Raises ConfigError if there is
    nothing to ask or a library is missing, and OSError if the port is in use.
    """
    try:
        import uvicorn  # noqa: F401

        from plumbline.plugins.rating.app import make_app
    except ImportError as error:
        raise ConfigError(f"module {error.name} is not installed; {format_install_remedy('view')}") from error
    from plumbline.plugins.rating.study import open_study

    token = take_token(config.host, config.token_variable)
    with open_listening_socket(config.host, config.port) as listener:
        study = open_study(config, report)
        ready(study.place.url, format_server_url(config.host, listener))
        run_app(
            make_app(study, token, list_allowed_hosts(config.host, config.hosts)), listener, patience=SHUTDOWN_SECONDS
        )
