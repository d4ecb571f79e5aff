"""A machine that sees other files than the driver gets a different error from a machine that cannot reach storage."""

import os
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.running.driver_environment import DriverEnvironment, VisibilityProbe, probe_file
from plumbline.pipelines.running.errors import RunnerError

STORAGE_CONFIG = StorageConfig()


def enter_environment(probe: VisibilityProbe) -> None:
    DriverEnvironment(variables={}, probes=(probe,)).apply()


@pytest.fixture
def probe(tmp_path: Path) -> VisibilityProbe:
    (tmp_path / "mark").write_text("the driver's")
    return probe_file("store /somewhere", STORAGE_CONFIG.locate(str(tmp_path / "mark")))


def test_a_machine_that_sees_the_same_files_gets_the_drivers_variables(
    probe: VisibilityProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://this.machine")
    DriverEnvironment(variables={"HF_ENDPOINT": "http://the.driver"}, probes=(probe,)).apply()
    assert os.environ["HF_ENDPOINT"] == "http://the.driver"


def test_a_machine_that_sees_other_files_is_refused_with_the_advice_to_share_the_folder(probe: VisibilityProbe) -> None:
    seen = r"the machine \S+ does not see the store /somewhere as the driver does "
    Path(probe.place.path).write_text("somebody else's")
    with pytest.raises(RunnerError, match=seen + r"\(.*/mark: another file is there\); use a cloud address"):
        enter_environment(probe)
    Path(probe.place.path).unlink()
    with pytest.raises(RunnerError, match=seen + r"\(.*/mark: nothing is there\); use a cloud address"):
        enter_environment(probe)


def test_a_machine_that_cannot_reach_s3_is_refused_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class UnreachableClient:
        def info(self, path: str) -> dict[str, Any]:
            raise EndpointConnectionError(endpoint_url="http://s3.example")

    monkeypatch.setattr("plumbline.pipelines.base.filesystems.s3._make_client", lambda settings: UnreachableClient())
    told = r"cannot check the store s3://bucket \(file s3://bucket/mark: cannot be reached \(.*s3\.example"
    with pytest.raises(RunnerError, match=told) as refusal:
        enter_environment(
            VisibilityProbe("store s3://bucket", Place("s3://bucket/mark", StorageConfig(region="unreached")), 1, "1")
        )
    assert "as the driver does" not in str(refusal.value)


def test_a_machine_without_credentials_is_refused_with_that_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    other = StorageConfig(region="of-this-test")
    probe = VisibilityProbe("store s3://bucket", Place("s3://bucket/mark", other), 1, "1")
    with pytest.raises(RunnerError, match=r"cannot check the store s3://bucket \(s3://: no credentials found; set"):
        DriverEnvironment(variables={}, probes=(probe,)).apply()
