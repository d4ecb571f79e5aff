"""Expired credentials are read again from their file during a run; explicitly configured credentials are not."""

import json
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig, WriteError
from plumbline.pipelines.store.store import Store, StoreError
from tests.commands import open_store_at
from tests.faults.proxy import FaultProxy, run_proxy
from tests.s3 import S3Server


@pytest.fixture
def proxy(bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Yield a proxy for the S3 server that accepts a single key, which no environment variable contains."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    passing = FaultProxy(s3_server, 0, share=0.0)
    passing.valid = s3_server.with_extra_key(0).key
    with run_proxy(passing) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        yield passing


def make_profile(server: S3Server) -> str:
    return f"[default]\naws_access_key_id = {server.key}\naws_secret_access_key = {server.secret}\n"


def test_a_rewritten_credentials_file_is_read_again_after_a_refusal(
    bucket: str, proxy: FaultProxy, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text(make_profile(s3_server.with_extra_key(0)))
    place = StorageConfig().locate(bucket)
    assert (place / "cell").create(b"first")

    proxy.valid = s3_server.with_extra_key(1).key
    with pytest.raises(OSError, match=r"Bad Request|expired|fault of the test"):
        (place / "cell").read()
    file.write_text(make_profile(s3_server.with_extra_key(1)))
    assert (place / "cell").read() == b"first"

    proxy.valid = s3_server.with_extra_key(2).key
    file.write_text(make_profile(s3_server.with_extra_key(2)))
    assert not (place / "cell").create(b"second")
    assert (place / "cell").exists()
    assert proxy.counts["400"] > 0


def test_an_expired_session_is_reported_as_expired(bucket: str, proxy: FaultProxy) -> None:
    """HEAD requests are included, although their responses only have a status."""
    store = Store(StorageConfig(key="of-yesterday", secret="secret").locate(bucket))
    remedy = "may have expired: renew the credentials; or check AWS_ENDPOINT_URL"
    with pytest.raises(ConfigError, match=rf"store {bucket}: cannot be reached \(.*Bad Request\); .*{remedy}"):
        store.exists("note")
    with pytest.raises(ConfigError, match=r"access denied \(a fault of the test\); renew the credentials"):
        store.list_files("notes")
    with pytest.raises(
        StoreError, match=r"the cell cannot be read \(a fault of the test\); renew the credentials and run"
    ):
        store.read("cell.parquet")
    with pytest.raises(WriteError, match=r"note: cannot be written \(.*\); .*renew the credentials.* and run again"):
        store.write_text("note", "text")


def test_a_credential_process_is_asked_again_before_its_credentials_expire(
    bucket: str, proxy: FaultProxy, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, script = tmp_path / "answer", tmp_path / "config"
    command = f"{shlex.quote(sys.executable)} -c \"print(open('{answer}').read())\""
    script.write_text(f"[default]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(script))

    def write_credentials(number: int, minutes: int) -> None:
        server, ends = s3_server.with_extra_key(number), datetime.now(UTC) + timedelta(minutes=minutes)
        keys = {"AccessKeyId": server.key, "SecretAccessKey": server.secret, "Expiration": ends.isoformat()}
        answer.write_text(json.dumps({"Version": 1, **keys}))

    write_credentials(0, 1)  # within the period in which botocore refreshes credentials
    store = open_store_at(bucket)
    store.write_text("note", "first")
    proxy.valid = s3_server.with_extra_key(1).key
    write_credentials(1, 60)
    assert store.read_text("note") == "first"
    assert proxy.counts["400"] == 0


def test_explicitly_configured_credentials_are_not_renewed(
    bucket: str, proxy: FaultProxy, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text(make_profile(s3_server.with_extra_key(1)))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    given = s3_server.with_extra_key(0)
    place = StorageConfig(key=given.key, secret=given.secret).locate(bucket)
    proxy.valid = s3_server.with_extra_key(1).key
    with pytest.raises(WriteError, match=r"Bad Request|expired|fault of the test"):
        (place / "cell").write(b"first")
