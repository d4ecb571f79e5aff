"""Notes on images are permanent, visible in all viewers of the store, and accepted only from the viewer's own pages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.viewer.tests.page_client import PageClient, open_client
from tests.operators.report.made import HOSTILE_PROMPTS, MadeRun, make_run

RUN_PAGE = "/runs/20260102-030405-000006"
SENT_NOTE = {"author": "Ann", "text": "a handle too many", "tag": "wrong-object"}


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run(tmp_path_factory.mktemp("noted"), generators=("atlas",), metrics=("gecko",))


@pytest.fixture(scope="module")
def ask(shared_run: MadeRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    with open_client(shared_run.store, tmp_path_factory.mktemp("rows")) as pages:
        yield pages


def make_image_address(row: int) -> str:
    return f"{RUN_PAGE}/scores/{row}"


def send(ask: PageClient, page: str, **request: Any) -> httpx.Response:
    return ask(f"{page}/notes", method="POST", **({"json": SENT_NOTE} | request))


def list_note_files(shared_run: MadeRun) -> list[str]:
    return sorted(shared_run.store.list_files("notes"))


def test_every_viewer_shows_a_note_on_its_image_and_in_the_list(
    ask: PageClient, shared_run: MadeRun, tmp_path: Path
) -> None:
    assert "This image has no notes yet." in ask(make_image_address(3)).text
    assert send(ask, make_image_address(3)).status_code == 201
    assert send(ask, make_image_address(3), json={"author": "bob", "text": "no, it has two"}).status_code == 201
    assert [path.rpartition("/")[2] for path in list_note_files(shared_run)] == ["000000.json", "000001.json"]
    with open_client(shared_run.store, tmp_path / "rows") as others:
        page = others(make_image_address(3)).text
        assert page.index("no, it has two") < page.index("a handle too many"), "the newest note comes first"
        assert "This image has no notes" in others(make_image_address(4)).text
        for listed in (f"{RUN_PAGE}/scores", f"{RUN_PAGE}/scores?notes=any&words=p0003", f"{RUN_PAGE}/prompt?id=p0003"):
            assert f'href="{make_image_address(3)}#notes">2 notes</a>' in others(listed).text
        assert "1 row" in others(f"{RUN_PAGE}/scores?notes=any&generator=atlas").text
        assert "no row matches" in others(f"{RUN_PAGE}/scores?notes=any&words=p0004").text
        for asked, said in (("", "1–2 of 2 notes"), ("?tag=wrong-object", "1–1 of 1 note"),
                            ("?words=TWO+bob", "1–1 of 1 note"), ("?tag=other", "no note matches")):  # fmt: skip
            assert said in others(f"/notes{asked}").text


def test_a_repeated_note_is_stored_only_once(ask: PageClient, shared_run: MadeRun) -> None:
    before = len(list_note_files(shared_run))
    assert [send(ask, make_image_address(5)).status_code for _ in range(2)] == [201, 201] and len(
        list_note_files(shared_run)
    ) == before + 1


def test_notes_are_escaped(ask: PageClient) -> None:
    before = ask(make_image_address(6)).text.count("<script")
    assert send(ask, make_image_address(6), json={"author": "נחש", "text": HOSTILE_PROMPTS[0]}).status_code == 201
    for path in (make_image_address(6), "/notes"):
        page = ask(path).text
        assert "&lt;script&gt;window.hacked" in page and page.count("<script") == before


@pytest.mark.parametrize(
    ("page", "request_", "status", "said"),
    [
        (
            make_image_address(7),
            {"json": SENT_NOTE | {"text": "  "}},
            400,
            "text: String should have at least 1 character",
        ),
        (
            make_image_address(7),
            {"json": SENT_NOTE | {"text": "a" * 2001}},
            400,
            "text: String should have at most 2000 characters",
        ),
        (make_image_address(7), {"json": SENT_NOTE | {"author": "../ann"}}, 400, "author: expected a name"),
        (make_image_address(7), {"json": SENT_NOTE | {"tag": "<b>"}}, 400, "tag: String should match"),
        (make_image_address(7), {"json": SENT_NOTE | {"row": 5}}, 400, "row: Unexpected keyword argument"),
        (
            make_image_address(7),
            {"json": SENT_NOTE | {"text": "a" * 70_000}},
            413,
            "expected a note of at most 65536 bytes",
        ),
        (make_image_address(7), {"json": None, "data": SENT_NOTE}, 415, "expected a note as application/json"),
        (make_image_address(7), {"headers": {"Origin": "http://evil.example"}}, 403, "another origin"),
        (make_image_address(7), {"headers": {"Origin": "null"}}, 403, "another origin"),
        (make_image_address(999), {}, 404, "has no row 999"),
        ("/runs/20200101-000000-000000/scores/3", {}, 404, "not found in"),
    ],
)
def test_invalid_notes_and_notes_from_other_sites_are_refused(
    page: str, request_: dict[str, Any], status: int, said: str, ask: PageClient, shared_run: MadeRun
) -> None:
    before, refused = list_note_files(shared_run), send(ask, page, **request_)
    assert refused.status_code == status and said in refused.text and list_note_files(shared_run) == before


def test_notes_need_the_token_and_can_be_switched_off(ask: PageClient, shared_run: MadeRun, tmp_path: Path) -> None:
    before = len(list_note_files(shared_run))
    with open_client(shared_run.store, tmp_path / "token", token="secret") as guarded:
        assert send(guarded, make_image_address(8)).status_code == 401 and len(list_note_files(shared_run)) == before
        assert send(guarded, make_image_address(8), auth=("anybody", "secret")).status_code == 201
    with open_client(shared_run.store, tmp_path / "shown", notes=False) as shown:
        page = shown(make_image_address(8)).text
        assert (
            "a handle too many" in page and 'id="note"' not in page and 'id="note"' in ask(make_image_address(8)).text
        )
        assert send(shown, make_image_address(9)).status_code == 403 and len(list_note_files(shared_run)) == before + 1


def test_a_damaged_note_is_reported_by_path_and_other_notes_are_shown(
    ask: PageClient, shared_run: MadeRun, tmp_path: Path
) -> None:
    before = list_note_files(shared_run)
    for text in ("the first", "the second"):
        send(ask, make_image_address(10), json=SENT_NOTE | {"text": text})
    (first, _) = (path for path in list_note_files(shared_run) if path not in before)
    shared_run.store.write_text(first, "{half")
    with open_client(shared_run.store, tmp_path / "rows") as others:
        page = others(make_image_address(10)).text
        assert "the second" in page and "the first" not in page and f"{first}: not a note" in page
