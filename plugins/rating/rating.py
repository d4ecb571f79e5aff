"""A study from its configuration to the end of its server."""

from collections.abc import Callable

from plumbline.operators.base.errors import ConfigError, install
from plumbline.pipelines.web.listening import allowed_hosts, listening, run_app, server_url, take_token
from plumbline.plugins.rating.rate_config import RateConfig

PATIENCE = 10
"""Seconds that requests under way are waited for at the end."""


def rate(config: RateConfig, ready: Callable[[str, str], None], report: Callable[[str], None]) -> None:
    """Serves a study until the process is told to stop; `ready` is told its folder and its address.

    `report` is told what people should know, a line each. Raises ConfigError where there is nothing to ask, or what the
    pages need is not installed; OSError where the port is taken.
    """
    try:
        import uvicorn  # noqa: F401

        from plumbline.plugins.rating.app import make_app
    except ImportError as error:
        raise ConfigError(f"expected {error.name}, found none; {install('view')}") from error
    from plumbline.plugins.rating.study import open_study

    token = take_token(config.host, config.token_variable)
    with listening(config.host, config.port) as listener:
        study = open_study(config, report)
        ready(study.place.url, server_url(config.host, listener))
        run_app(make_app(study, token, allowed_hosts(config.host, config.hosts)), listener, patience=PATIENCE)
