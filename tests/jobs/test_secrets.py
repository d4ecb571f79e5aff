"""Secrets in the configuration and the environment never appear on the terminal, in a manifest or in a message."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from plumbline.jobs.command import get_command, load_values
from plumbline.operators.base.errors import ConfigError, hide_secrets
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import RowError, decode_row_image
from plumbline.pipelines.base.storage import StorageConfig, convert_read_errors
from plumbline.pipelines.plans.sweep_config import SweepConfig, read_config
from plumbline.pipelines.sweeps.writing import make_public_config
from tests.commands import load_job_config, run, run_refused

SECRET = "hush-hush"
SECRET_KEYS_MESSAGE = "only storage.key, storage.secret and nightly.webhook may use ${oc.env:...}"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", SECRET)


def run_command(*arguments: str) -> tuple[int, str]:
    """Run a sweep of the embedded benchmark; return its exit code, and its output followed by its error output."""
    code, out, err = run("sweep", "sweep=shapes", *arguments)
    return code, out + err


@pytest.mark.parametrize(
    "arguments",
    [
        ["storage.key=hush-hush", "storage.secret=hush-hush"],
        ["storage.key=${oc.env:A_SECRET}", "storage.secret=${oc.env:A_SECRET}"],
        ["storage.secret=${oc.env:NOBODY_SET_IT,hush-hush}"],
        ["+models.llm.api_key=hush-hush", "+hf_token=hush-hush", "+login={password: hush-hush}"],
        ["storage.endpoint_url=http://user:hush-hush@host:9000"],
        ["store=s3://user:hush-hush@bucket/store"],
        ["benchmark.images='https://host/images?X-Amz-Signature=hush-hush'"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_printed_configuration_shows_no_secret(arguments: Sequence[str]) -> None:
    code, said = run_command(*arguments, "--config")
    assert code == 0 and SECRET not in said and "***" in said


def test_secrets_from_the_environment_reach_the_storage() -> None:
    values = load_values(get_command("sweep"), ["sweep=shapes", "storage.key=${oc.env:A_SECRET}", "storage.secret=x"])
    storage = read_config(values, SweepConfig).storage
    assert (storage.key, storage.secret) == (SECRET, "x") and SECRET not in repr(storage)


@pytest.mark.parametrize(
    "override",
    [
        "benchmark.name=${oc.env:A_SECRET}",
        "store=s3://bucket/${oc.env:A_SECRET}",
        "benchmark.generators=[a,'${oc.env:A_SECRET}']",
        "benchmark.name='${oc.${benchmark.suffix}:A_SECRET}'",
        "benchmark.name='${oc.decode:${oc.env:A_SECRET}}'",
        "storage.region=${oc.env:A_SECRET}",
    ],
)
@pytest.mark.parametrize("flag", [["--config"], []])
def test_no_other_value_reads_the_environment(override: str, flag: list[str]) -> None:
    line = run_refused("sweep", "sweep=shapes", override, "+benchmark.suffix=env", "dry_run=true", *flag)
    assert SECRET not in line and line.startswith("error: config key") and SECRET_KEYS_MESSAGE in line


@pytest.mark.parametrize("reference", ["${storage.secret}", "${storage}", "${oc.select:storage.secret,nothing}"])
def test_no_other_value_can_name_a_secret(reference: str) -> None:
    assert SECRET not in run_command("storage.secret=hush-hush", f"benchmark.name='{reference}'", "--config")[1]


@pytest.mark.parametrize("value", ["{hush-hush", "hush-hush,b", "[hush-hush", "'hush-hush"])
def test_a_command_line_that_cannot_be_read_is_repeated_without_its_secret(value: str) -> None:
    code, said = run_command(f"storage.secret={value}")
    assert code != 0 and said.startswith("error: ") and SECRET not in said


def test_a_manifest_contains_no_secret() -> None:
    overrides = ["sweep=shapes", "storage.key=${oc.env:A_SECRET}", "storage.secret=hush-hush"]
    config = load_job_config("sweep", *overrides)
    stored = make_public_config(config)
    assert SECRET not in json.dumps(stored) and not {"key", "secret"} & stored["storage"].keys()


@pytest.mark.parametrize("endpoint", ["http://user:hush-hush@host:9000", "http://host:9000/?signature=hush-hush"])
def test_an_endpoint_with_credentials_is_refused_without_repeating_them(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.endpoint_url: expected an address without credentials") as error:
        StorageConfig(endpoint_url=endpoint)
    assert "storage.secret" in str(error.value) and SECRET not in str(error.value)


def test_an_address_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(ConfigError, match="expected an address without credentials") as error:
        StorageConfig(anon=True).locate(f"s3://user:{SECRET}@bucket/store")
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no http://u:hush-hush@host:9000/b here", "no http://***@host:9000/b here"),
        ("https://host/a.png?X-Amz-Signature=hush-hush&b=1 failed", "https://host/a.png?*** failed"),
        ("account.example.net/c/a.png?sig=hush-hush&b=1 failed", "account.example.net/c/a.png?*** failed"),
        ("a 'part-?.parquet', b?c=", "a 'part-?.parquet', b?c="),
        ("mail a@b.c, a/b?c and s3://bucket/a.png", "mail a@b.c, a/b?c and s3://bucket/a.png"),
    ],
)
def test_addresses_in_messages_lose_their_credentials_and_queries(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_a_clients_message_about_its_endpoint_is_shown_without_credentials(tmp_path: Path) -> None:
    """The client reads AWS_ENDPOINT_URL itself and includes it in its messages."""
    said = f"Could not connect to the endpoint URL: http://user:{SECRET}@host:9000/bucket"
    for error in (OSError(said), PermissionError(said)):
        with pytest.raises(ConfigError) as raised, convert_read_errors(StorageConfig().locate(str(tmp_path)), "store"):
            raise error
        assert SECRET not in str(raised.value) and "***@host:9000" in str(raised.value)


def test_the_error_of_a_row_shows_no_credentials_of_its_address() -> None:
    def fetch(uri: str) -> bytes:
        raise OSError(f"cannot open {uri}")

    for uri, shown in (
        (f"https://u:{SECRET}@host/a.png?signature={SECRET}", "https://***@host/a.png?***"),
        (f"host/a.png?sv=2022&sig={SECRET}", "host/a.png?***"),
    ):
        error = decode_row_image({"uri": uri}, ImageLimits(), fetch)
        assert isinstance(error, RowError) and SECRET not in error.message and shown in error.message
