"""A row's address must point to a regular file in the benchmark's own folders or the allowed folders."""

import os
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from plumbline.operators.base.errors import ConfigError, RefusedUriError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import RowError, decode_row_image
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.uris import ImageFileDigester, UriReader, open_benchmark_uris
from tests.operators.tiny import draw_image, encode_image
from tests.s3 import S3Server

SECRET_BYTES = b"root:x:0:0"
PNG_BYTES = encode_image(draw_image(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a subfolder that contains one image, and another file outside the subfolder."""
    (tmp_path / "images" / "atlas").mkdir(parents=True)
    (tmp_path / "images" / "atlas" / "a.png").write_bytes(PNG_BYTES)
    (tmp_path / "passwd").write_bytes(SECRET_BYTES)
    return tmp_path


def make_uris(images: object, *allowed: object, storage: StorageConfig | None = None) -> UriReader:
    benchmark = BenchmarkConfig(name="own", prompts=None, images=str(images), uri_roots=tuple(map(str, allowed)))
    return open_benchmark_uris(benchmark, storage or StorageConfig(), ImageLimits())


def get_refusal(uris: UriReader, uri: object) -> RowError:
    error = decode_row_image({"uri": str(uri)}, ImageLimits(), uris.read)
    assert isinstance(error, RowError)
    return error


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_an_address_below_the_images_is_read(folder: Path, scheme: str) -> None:
    assert make_uris(folder / "images").read(f"{scheme}{folder}/images/atlas/a.png") == PNG_BYTES


def test_a_relative_address_starts_from_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert make_uris("images").read("images/atlas/a.png") == PNG_BYTES
    assert make_uris(folder / "images").read("images/../images/atlas/a.png") == PNG_BYTES


def test_relative_roots_do_not_change_with_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    uris = make_uris("images")
    monkeypatch.chdir("/")
    assert uris.read(f"{folder}/images/atlas/a.png") == PNG_BYTES


@pytest.mark.parametrize(
    "uri",
    [
        "FOLDER/passwd",
        "file://FOLDER/passwd",
        "FOLDER/images/../passwd",
        "FOLDER/images/atlas/../../passwd",
        "FOLDER/images-of-another/a.png",
        "/proc/self/environ",
        "/dev/zero",
        "~/.ssh/id_rsa",
        "passwd",
        "../passwd",
        "s3://bucket/a.png",
        "FOLDER/nothing-is-here",
    ],
)
def test_an_address_outside_is_refused_with_the_remedy_and_without_any_content_of_the_file(
    folder: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    uri = uri.replace("FOLDER", str(folder))
    error = get_refusal(make_uris(folder / "images"), uri)
    assert error.kind == "uri_refused" and "benchmark.uri_roots" in error.message
    assert error.retryable, "the allowed folders are not part of any key"
    text = error.message.replace(uri, "")
    assert SECRET_BYTES.decode() not in text and not any(sign.isdigit() for sign in text)


@pytest.mark.parametrize("target", ["passwd", "nothing-is-here"])
def test_a_link_out_of_the_images_is_refused_without_naming_its_target(folder: Path, target: str) -> None:
    link = folder / "images" / "link.png"
    link.symlink_to(folder / target)
    error = get_refusal(make_uris(folder / "images"), link)
    assert error.kind == "uri_refused" and target not in error.message


def test_links_are_resolved_before_an_address_is_checked(folder: Path) -> None:
    (folder / "images" / "outside").symlink_to(folder)
    (folder / "images" / "inside").symlink_to(folder / "images" / "atlas")
    uris = make_uris(folder / "images")
    assert get_refusal(uris, folder / "images" / "outside" / "passwd").kind == "uri_refused"
    assert uris.read(f"{folder}/images/inside/a.png") == PNG_BYTES


def test_images_behind_a_configured_link_belong_to_the_benchmark(folder: Path) -> None:
    (folder / "data").symlink_to(folder / "images")
    assert make_uris(folder / "data").read(f"{folder}/data/atlas/a.png") == PNG_BYTES
    assert make_uris(folder / "data").read(f"{folder}/images/atlas/a.png") == PNG_BYTES


def test_an_allowed_folder_is_read_directly_and_through_links(folder: Path) -> None:
    (folder / "others").mkdir()
    (folder / "others" / "b.png").write_bytes(PNG_BYTES)
    (folder / "images" / "b.png").symlink_to(folder / "others" / "b.png")
    assert get_refusal(make_uris(folder / "images"), folder / "images" / "b.png").kind == "uri_refused"
    uris = make_uris(folder / "images", folder / "others")
    assert uris.read(f"{folder}/others/b.png") == uris.read(f"{folder}/images/b.png") == PNG_BYTES
    assert get_refusal(uris, folder / "passwd").kind == "uri_refused"


def test_the_folder_of_a_single_file_belongs_to_the_benchmark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = folder / "images" / "atlas.parquet"
    assert make_uris(table).read(f"{folder}/images/atlas/a.png") == PNG_BYTES
    assert get_refusal(make_uris(table), folder / "passwd").kind == "uri_refused"
    monkeypatch.chdir(folder / "images")
    assert make_uris("atlas.parquet").roots == (f"{folder}/images",)
    assert make_uris("/atlas.parquet").roots == ("/",) and make_uris("s3://b/x/a.parquet").roots == ("s3://b/x/",)


def test_each_generator_given_by_path_is_a_root(folder: Path) -> None:
    places = {"atlas": f"{folder}/images/atlas", "flint": "s3://bucket/flint"}
    benchmark = BenchmarkConfig(name="own", prompts=None, images=None, generators=places)
    uris = open_benchmark_uris(benchmark, StorageConfig(), ImageLimits())
    assert uris.read(f"{folder}/images/atlas/a.png") == PNG_BYTES
    assert uris.roots == tuple(places.values())


def test_a_file_that_is_not_regular_is_refused_without_waiting(folder: Path) -> None:
    os.mkfifo(folder / "images" / "pipe.png")
    uris = make_uris(folder / "images", "/dev")
    for uri in (folder / "images" / "pipe.png", "/dev/zero", "/dev/tty0"):
        error = get_refusal(uris, uri)
        assert error.kind in ("unreadable_uri", "missing_image"), error
    assert "expected a regular file" in get_refusal(uris, folder / "images" / "pipe.png").message
    assert "expected a regular file" in get_refusal(uris, "/dev/zero").message
    assert get_refusal(uris, folder / "images" / "atlas").kind == "unreadable_uri"


def test_an_invalid_allowed_root_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"benchmark\.uri_roots: expected folders or s3:// prefixes, got"):
        make_uris(folder, "")


@pytest.mark.parametrize(
    ("root", "uri", "inside"),
    [
        ("s3://bucket/images", "s3://bucket/images/a.png", True),
        ("s3://bucket/images/", "s3://bucket/images/deep/a.png", True),
        ("s3://bucket", "s3://bucket/a.png", True),
        ("s3://bucket/images", "s3://bucket/images-of-another/a.png", False),
        ("s3://bucket/images", "s3://bucket/images/../secret", False),
        ("s3://bucket/images", "s3://bucket/a.png", False),
        ("s3://bucket", "s3://bucket-of-another/a.png", False),
        ("s3://bucket/images", "bucket/images/a.png", False),
        ("https://host/images", "https://host/images/a.png", True),
        ("https://host/images", "https://host/images/%2e%2E/secret", False),
        ("https://host/images", "http://host/images/a.png", False),
        ("hf://datasets/org/name/images", "hf://datasets/org/name/images/a.png", True),
        ("hf://datasets/org/name/images", "hf://datasets/org/name@other/images/a.png", False),
    ],
)
def test_prefixes_on_s3_are_bounds_too(root: str, uri: str, inside: bool) -> None:
    uris = UriReader(roots=(root,), storage=StorageConfig(anon=True), max_bytes=1)
    if inside:
        assert uris.locate(uri).path == uri.removeprefix("s3://").removeprefix("hf://")
    else:
        with pytest.raises(RefusedUriError):
            uris.locate(uri)


def test_an_image_on_s3_is_read_below_its_prefix(s3_server: S3Server) -> None:
    storage = StorageConfig(key=s3_server.key, secret=s3_server.secret, endpoint_url=s3_server.endpoint)
    files = s3_server.filesystem()
    files.makedirs("uris/images")
    files.pipe_file("uris/images/a.png", PNG_BYTES)
    files.pipe_file("uris/secret", SECRET_BYTES)
    uris = make_uris("s3://uris/images", storage=storage)
    assert uris.read("s3://uris/images/a.png") == PNG_BYTES
    assert get_refusal(uris, "s3://uris/images/b.png").kind == "missing_image"
    assert get_refusal(uris, "s3://uris/secret").kind == "uri_refused"


def test_an_object_on_s3_is_identified_by_its_etag_and_its_folder_is_listed_once(bucket: str) -> None:
    fs = fsspec.filesystem("s3", use_listings_cache=False)
    for name in ("a", "b"):
        fs.pipe_file(f"{bucket}/images/{name}.png", name.encode())
    images = pa.table({"uri": [f"{bucket}/images/{name}.png" for name in ("a", "b", "gone")]})
    reader = UriReader(roots=(f"{bucket}/images",), storage=StorageConfig(), max_bytes=10)
    objects = ImageFileDigester(reader.locate)
    before = objects.digest(images)
    assert list(objects.listings) == [f"{bucket}/images"]
    assert ImageFileDigester(reader.locate).digest(images) == before
    fs.pipe_file(f"{bucket}/images/b.png", b"another")
    replaced = ImageFileDigester(reader.locate).digest(images)
    fs.pipe_file(f"{bucket}/images/gone.png", b"there")
    assert len({before, replaced, ImageFileDigester(reader.locate).digest(images)}) == 3
    outside = pa.table({"uri": ["/etc/passwd", f"{bucket}/others/x.png", "", None, "https://x/y.png"]})
    assert ImageFileDigester(reader.locate).digest(outside) == ImageFileDigester(reader.locate).digest(outside)
