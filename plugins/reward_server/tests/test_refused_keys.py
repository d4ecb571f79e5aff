"""If a model service rejects the API key, jobs.serve reports an error before it starts Ray."""

import pytest

from plumbline.operators.base.errors import ModelError
from plumbline.pipelines.running import session
from plumbline.plugins.reward_server import run_service
from tests.commands import load_job_config
from tests.operators.models.endpoint import KEY_VARIABLE, Server, make_error


def test_a_rejected_api_key_is_an_error_before_ray_starts(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "open_ray_session", None)  # starting it would fail
    server.script = lambda number, body: make_error(401, "no such key")
    model = ("model@models.vqa=api", "models.vqa.checkpoint=m", f"models.vqa.key_variable={KEY_VARIABLE}")
    given = ["metric=[vqascore]", "models=shapes", *model, f"models.vqa.endpoint={server.url}", "port=0"]
    with pytest.raises(ModelError, match="answered 401 for the key"):
        run_service.serve(load_job_config("serve", *given), lambda address: None)
