"""The pages of a store show its content, reject bad requests with a one-line message, and resist hostile input."""

import gc
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from plugins.viewer.tests.page_client import PageClient, open_client
from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.store.cells import Cell
from plumbline.pipelines.store.runs import CELLS_SCHEMA
from plumbline.pipelines.store.store import LATEST_FILE
from plumbline.plugins.viewer.browser import StoreBrowser
from plumbline.plugins.viewer.run_database import Database
from tests.commands import open_store_at
from tests.operators.report.made import (
    HOSTILE_PROMPTS,
    MadeRun,
    draw_noisy_score,
    encode_png,
    make_plain_prompts,
    make_run,
)

EARLIER_RUN, LATER_RUN = "20250101-000000-000000", "20260102-030405-000006"
RUN_PAGE = f"/runs/{LATER_RUN}"
GENERATORS = ("atlas", "<b>bold", "מחולל")
PROMPTS = [*HOSTILE_PROMPTS, *make_plain_prompts(60)]
QUESTIONS_FILE = "questions/00000000/made/00000-00000000.parquet"


def score(generator: str, metric: str, prompt: int) -> float | None:
    return None if (generator, prompt) == ("atlas", 7) else draw_noisy_score(generator, metric, prompt)


def add_questions(run: MadeRun) -> None:
    questions = [
        {
            "prompt_id": f"p{at:04d}",
            "question_id": str(number),
            "text": f"{text} {at}",
            "answer": "yes",
            "kind": "object",
        }
        for at in range(len(PROMPTS))
        for number, text in ((1, "what <colour> is it?"), (2, "is there a star?"))
    ]
    cell = Cell(node="questions", stage="questions", metric="gecko", key="0" * 64, path=QUESTIONS_FILE, inputs={})
    run.store.save(cell, rows.table(questions, schemas.QUESTIONS))
    path = f"runs/{run.run_id}/cells.parquet"
    cells = [*run.store.read_table(path).to_pylist(), {"path": QUESTIONS_FILE, "state": "cached"}]
    run.store.write_table(path, rows.table(cells, CELLS_SCHEMA))


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    folder = tmp_path_factory.mktemp("made")
    make_run(
        folder,
        prompts=PROMPTS,
        generators=GENERATORS,
        run_id=EARLIER_RUN,
        benchmark=HOSTILE_PROMPTS[0],
        judge_metrics=("gecko",),
    )
    run = make_run(
        folder, prompts=PROMPTS, generators=GENERATORS, score=score, judge_metrics=("gecko",),
        errors={"corrupt_image": 2}, lower_is_better=["clipscore"], note="the new <VAE>",
    )  # fmt: skip
    add_questions(run)
    write_report(run.store)
    return run


@pytest.fixture(scope="module")
def ask(shared_run: MadeRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    with open_client(shared_run.store, tmp_path_factory.mktemp("rows")) as pages:
        yield pages


class ParsedPage(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._skipped = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._skipped = tag in ("script", "style")
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        self._skipped = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._skipped else data


def read(ask: PageClient, path: str) -> ParsedPage:
    answer = ask(path)
    assert answer.status_code == 200, answer.text
    return ParsedPage(answer.text)


def list_row_numbers(page: ParsedPage) -> list[str]:
    return [link.partition("?")[0].rpartition("/")[2] for link in page.links if "/scores/" in link][::2]


def test_runs_are_listed_newest_first_with_their_failures_and_reports(ask: PageClient) -> None:
    page = read(ask, "/")
    runs = [link for link in page.links if link.count("/") == 2 and link.startswith("/runs/")]
    assert runs == [RUN_PAGE, f"/runs/{EARLIER_RUN}"]
    assert (
        "latest" in page.text
        and f"{RUN_PAGE}/report" in page.links
        and f"{RUN_PAGE}/scores?kind=corrupt_image" in page.links
    )
    assert HOSTILE_PROMPTS[0] in page.text
    assert "the new <VAE>" in page.text and "note: the new <VAE>" in read(ask, RUN_PAGE).text
    assert f"{RUN_PAGE}/report" in read(ask, "/?words=new+%3Cvae").links
    assert LATER_RUN not in read(ask, "/?words=script").text


def test_the_list_of_runs_shows_what_changed_since_the_previous_run_of_the_benchmark(tmp_path: Path) -> None:
    runs = {"20260101-000000-000000": "first", "20260102-000000-000000": "other", "20260103-000000-000000": "first"}
    for number, (run_id, name) in enumerate(runs.items()):
        run = make_run(
            tmp_path,
            prompts=make_plain_prompts(2),
            run_id=run_id,
            benchmark=name,
            first_recipe=10 * number,
            config={"benchmark": {"name": name}, "metrics": {"gecko": {"kind": "gecko", "threshold": f"{number}<"}}},
        )
    with open_client(run.store, tmp_path / "rows") as ask:
        rows = re.findall(r"<tr>.*?</tr>", ask("/").text, flags=re.DOTALL)[1:]
    differing = [row.rpartition("<td")[2] for row in rows]
    assert "config.metrics.gecko.threshold</bdi>: <bdi>0&lt; → 2&lt;</bdi>" in differing[0]
    assert "config.benchmark.name" not in differing[0] and all("–" in other for other in differing[1:])


def test_a_mean_links_to_its_images_worst_first(ask: PageClient) -> None:
    page = read(ask, RUN_PAGE)
    assert "coverage 100.00%" in page.text
    by_gecko = f"{RUN_PAGE}/scores?generator=atlas&metric=gecko&skill=&sort=lowest"
    assert by_gecko in page.links and by_gecko.replace("gecko", "clipscore").replace("lowest", "highest") in page.links
    summary = read(ask, f"{RUN_PAGE}?skill=counting")
    assert f"{RUN_PAGE}/scores?generator=atlas&metric=gecko&skill=counting&sort=lowest" in summary.links


def test_scores_are_paged_sorted_and_filtered(ask: PageClient) -> None:
    assert list_row_numbers(read(ask, f"{RUN_PAGE}/scores")) == [str(row) for row in range(50)]
    assert list_row_numbers(read(ask, f"{RUN_PAGE}/scores?page=2")) == [str(row) for row in range(50, 100)]
    of_atlas = [(score("atlas", "gecko", at), at) for at in range(len(PROMPTS))]
    lowest = sorted(one for one in of_atlas if one[0] is not None)
    assert list_row_numbers(read(ask, f"{RUN_PAGE}/scores?generator=atlas&metric=gecko&sort=lowest")) == [
        str(at) for _, at in lowest[:50]
    ]
    between = [str(at) for value, at in lowest if value is not None and 0.85 <= value <= 0.95]
    assert (
        list_row_numbers(read(ask, f"{RUN_PAGE}/scores?generator=atlas&metric=gecko&sort=lowest&low=0.85&high=0.95"))
        == between
    )
    skilled = read(ask, f"{RUN_PAGE}/scores?generator=atlas&metric=gecko&skill=counting")
    assert set(list_row_numbers(skilled)) == {str(at) for at in range(0, len(PROMPTS), 2)}


def test_a_failed_row_has_its_reason_and_is_sorted_last(ask: PageClient) -> None:
    page = read(ask, f"{RUN_PAGE}/scores?kind=any")
    assert len(list_row_numbers(page)) == 2 and "bytes <b>unreadable</b>" in page.text
    assert list_row_numbers(read(ask, f"{RUN_PAGE}/scores?kind=corrupt_image")) == list_row_numbers(page)
    for sort in ("lowest", "highest"):
        last = read(ask, f"{RUN_PAGE}/scores?generator=atlas&metric=gecko&sort={sort}&page=2")
        assert list_row_numbers(last)[-1] == "7"


def test_prompts_are_searched_by_all_words_in_any_case_or_by_an_id(ask: PageClient) -> None:
    one = read(ask, f"{RUN_PAGE}/scores?metric=gecko&generator=atlas&words=CUPS 59 star")
    assert list_row_numbers(one) == ["64"]
    assert list_row_numbers(read(ask, f"{RUN_PAGE}/scores?metric=gecko&words=p0064")) == list_row_numbers(
        read(ask, f"{RUN_PAGE}/scores?metric=gecko&words=cups 59")
    )
    assert len(list_row_numbers(read(ask, f"{RUN_PAGE}/scores?words=atlas-p0064"))) == 2
    assert (
        list_row_numbers(read(ask, f"{RUN_PAGE}/scores?words=' OR 1=1 --"))
        == []
        == list_row_numbers(read(ask, f"{RUN_PAGE}/scores?words=a%25blue"))
    )


def test_the_page_of_an_image_has_its_scores_questions_reasons_and_neighbours(ask: PageClient) -> None:
    listed = read(ask, f"{RUN_PAGE}/scores?metric=gecko&generator=atlas&sort=lowest")
    order = list_row_numbers(listed)
    address = next(link for link in listed.links if link.startswith(f"{RUN_PAGE}/scores/{order[1]}?"))
    page = read(ask, address)
    assert f"{RUN_PAGE}/pictures/{order[1]}?large" in page.links
    for text in ("what <colour> is it?", "is it round?", "One of two is missing.", "objects matched", "clipscore"):
        assert text in page.text, text
    assert re.search(r"gecko: 0\.\d+ has percentile rank \d+% among the \d+ images scored so far on made", page.text)
    around = [link for link in page.links if f"{RUN_PAGE}/scores/" in link]
    assert [link.partition("?")[0].rpartition("/")[2] for link in around] == [order[0], order[2]]
    assert list_row_numbers(read(ask, f"{RUN_PAGE}/scores?page=1"))  # the first page is still listed
    failed = read(ask, f"{RUN_PAGE}/scores/7")
    assert failed.text.count("bytes <b>unreadable</b>") == 2, "both metrics show the error"


@pytest.mark.parametrize("seed", range(2))
def test_a_score_has_the_same_percentile_rank_wherever_it_is_shown(seed: int, tmp_path: Path) -> None:
    """Some scores are tied, and lower scores are better for clipscore."""
    rng = Random(seed)
    drawn = {
        (name, metric, prompt): rng.choice([0.1, 0.25, 0.5, 0.85])
        for name in ("atlas", "borealis", "cobalt")
        for metric in ("gecko", "clipscore")
        for prompt in range(rng.randint(8, 13))
    }
    run = make_run(
        tmp_path, prompts=make_plain_prompts(1 + max(prompt for _, _, prompt in drawn)), lower_is_better=["clipscore"],
        generators=["atlas", "borealis", "cobalt"], score=lambda *whose: drawn.get(whose),
    )  # fmt: skip
    report = write_report(run.store)
    expected = dict[tuple[str, float], str]()
    for metric, sign in (("gecko", 1), ("clipscore", -1)):
        values = [sign * value for (_, name, _), value in drawn.items() if name == metric]
        for own in set(values):
            twice = sum(2 * (value < own) + (value == own) for value in values)
            expected[metric, abs(own)] = f"{twice / (2 * len(values)):.0%}"
    pictured = Path(report.url).read_text()
    with open_client(run.store, tmp_path / "rows") as ask:
        pages = [ask(f"/runs/{run.run_id}/scores/{row}").text for row in range(0, len(drawn), 7)]
        for metric, other in (("gecko", "clipscore"), ("clipscore", "gecko")):
            listed = ask(f"/runs/{run.run_id}/scores?metric={metric}&against={other}").text
            cells = re.findall(
                r"([\d.]+)</td><td class=.n.>(\d+%)</td><td class=.n.>([\d.]+)</td><td class=.n.>(\d+%)", listed
            )
            assert len(cells) > 10
            for score, rank, others, others_rank in cells:
                assert (rank, others_rank) == (expected[metric, float(score)], expected[other, float(others)])
    for page in (pictured, "\n".join(pages)):
        bars = re.findall(r"percentile rank (\d+%)\W+span><bdi>(\w+)</bdi>.*?width:(\d+%).*?>([\d.]+)</span>", page)
        assert bars and all(rank == width == expected[name, float(score)] for rank, name, width, score in bars)
        usual = re.findall(r"<bdi>(\w+)</bdi>: ([\d.]+) has percentile rank (\d+%) among", page)
        assert usual and all(rank == expected[name, float(score)] for name, score, rank in usual)


def test_a_question_shows_every_generators_image_with_its_answer(ask: PageClient) -> None:
    listed = read(ask, f"{RUN_PAGE}/questions?words=COLOUR 9")
    address = next(link for link in listed.links if "question=1" in link and "p0009" in link)
    page = read(ask, address)
    assert [link for link in page.links if "/pictures/" in link] == [
        f"{RUN_PAGE}/pictures/{place * len(PROMPTS) + 9}" for place in range(3)
    ]
    assert all(name in page.text for name in GENERATORS) and "Question: what <colour> is it?" in page.text
    values = [draw_noisy_score(name, "gecko", 9) for name in GENERATORS]
    assert page.text.count("blue") - page.text.count("blue cups") == 2 * sum(value <= 0.5 for value in values)
    everything = read(ask, f"{RUN_PAGE}/questions").text
    assert f"of {2 * len(PROMPTS)} questions" in everything


def test_an_image_is_sent_as_webp_in_its_own_size(ask: PageClient) -> None:
    answer = ask(f"{RUN_PAGE}/pictures/9")
    assert answer.headers["content-type"] == "image/webp" and "max-age" in answer.headers["cache-control"]
    assert Image.open(io.BytesIO(answer.content)).size == (48, 48)
    assert ask(f"{RUN_PAGE}/pictures/99999").status_code == 404


@pytest.mark.parametrize("sources_in", ["images", "prompts"])
def test_an_edit_is_shown_next_to_its_sources_or_the_reason_why_not(
    sources_in: Literal["images", "prompts"], tmp_path: Path
) -> None:
    sources = [[encode_png(9)], [encode_png(9), encode_png(10)], [b"no image"]]
    run = make_run(
        tmp_path, prompts=make_plain_prompts(3), sources=lambda prompt: sources[prompt], sources_in=sources_in
    )
    with open_client(run.store, tmp_path / "rows") as ask:
        for prompt, count in enumerate((1, 2, 0)):
            shown = ask(f"{RUN_PAGE}/prompt?id=p000{prompt}").text
            assert shown.count(" data-source ") == count, "the sources are shown once for all editors"
            assert shown.count('aria-label="Source over the image by ') == (3 if count else 0)
            alone = ask(f"{RUN_PAGE}/scores/{prompt}").text
            assert alone.count(" data-source ") == count and alone.count('class="wipe"') == (1 if count else 0)
        assert "the source of the edit: " in shown and "the source of the edit: " in alone
        second = ask(f"{RUN_PAGE}/pictures/1?source=1")
        assert second.headers["content-type"] == "image/webp"
        difference = np.subtract(Image.open(io.BytesIO(second.content)).getpixel((5, 5)), (114, 142, 120))
        assert np.abs(difference).max() < 8
        assert ask(f"{RUN_PAGE}/pictures/1?source=2").status_code == 404
        assert ask(f"{RUN_PAGE}/pictures/2?source=0").text.startswith("the source of the edit: ")


def test_reports_and_trends_are_sandboxed(ask: PageClient) -> None:
    for path in (f"{RUN_PAGE}/report", "/trends?benchmark=made"):
        answer = ask(path)
        assert answer.status_code == 200 and "atlas" in answer.text
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none'")
        assert "allow-same-origin" not in policy
    refused = ask(f"/runs/{EARLIER_RUN}/report")
    assert refused.status_code == 404 and f"plumbline report run={EARLIER_RUN}" in refused.text


def test_all_texts_from_the_store_are_escaped(ask: PageClient) -> None:
    pages = [
        "/",
        RUN_PAGE,
        f"{RUN_PAGE}/scores",
        f"{RUN_PAGE}/questions",
        *(f"{RUN_PAGE}/prompt?id=p000{at}" for at in range(5)),
    ]
    pages += [f"{RUN_PAGE}/scores/{row}" for row in (0, 1, 65, 70)]
    for path in pages:
        page = read(ask, path)
        assert page.tags.count("script") == 1 and "<script>" not in "".join(page.links), path
        assert page.tags.count("textarea") == ("/scores/" in path), "the only text area is for a note"
        assert all(link.startswith(("/", "?", "#")) for link in page.links)
    given = f"words={HOSTILE_PROMPTS[0]}&generator={HOSTILE_PROMPTS[0]}&sort=up&left={EARLIER_RUN}&right={LATER_RUN}"
    for path in ("/", f"{RUN_PAGE}/scores", f"{RUN_PAGE}/questions", "/compare"):
        assert ParsedPage(ask(f"{path}?{given}").text).tags.count("script") == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/20990101-000000-000000", 404),
        ("/runs/%2e%2e/report", 404),
        ("/runs/..%2f..%2fetc/report", 404),
        (f"{RUN_PAGE}/../../latest", 404),
        (f"{RUN_PAGE}/scores/99999", 404),
        (f"{RUN_PAGE}/scores/-1", 404),
        *(
            (f"{RUN_PAGE}/{pages}/{digits}", 404)
            for pages in ("scores", "pictures")
            for digits in ("9" * 18, "9" * 5000)
        ),
        ("/trends?benchmark=nobody's", 404),
        (f"{RUN_PAGE}/prompt?id=nothing", 404),
        (f"{RUN_PAGE}/scores?sort=score;drop table scores_0", 400),
        (f"{RUN_PAGE}/scores?low=nan", 400),
        (f"{RUN_PAGE}/scores?high=many", 400),
        (f"{RUN_PAGE}/scores?page=0x1", 400),
        (f"{RUN_PAGE}/scores?page={10**30}", 400),
        (f"{RUN_PAGE}/scores?page={'9':0>20}", 400),
        ("/etc/passwd", 404),
    ],
)
def test_invalid_and_unknown_addresses_are_refused(path: str, status: int, ask: PageClient) -> None:
    answer = ask(path)
    assert answer.status_code == status
    assert "passwd" not in answer.text or path in answer.text
    assert ask(RUN_PAGE).status_code == 200


def test_only_notes_can_be_sent(ask: PageClient) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert ask(RUN_PAGE, method=method).status_code == ask(f"{RUN_PAGE}/scores/3", method=method).status_code == 405
    for method in ("PUT", "DELETE"):
        assert ask(f"{RUN_PAGE}/scores/3/notes", method=method).status_code == 405


def test_every_response_has_security_headers(ask: PageClient) -> None:
    for path in ("/", f"{RUN_PAGE}/pictures/1", "/nothing", f"{RUN_PAGE}/scores"):
        headers = ask(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8008", "", "[::2]:8008", "[::1]evil.example"])
def test_requests_for_other_host_names_are_refused(host: str, ask: PageClient) -> None:
    refused = ask("/", headers={"Host": host})
    assert refused.status_code == 400 and "default-src 'none'" in refused.headers["content-security-policy"]


def test_requests_from_another_origin_are_refused(ask: PageClient) -> None:
    assert ask(RUN_PAGE, headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8008", "127.0.0.1", "[::1]:8008"])
def test_requests_for_this_machines_names_are_accepted(host: str, ask: PageClient) -> None:
    assert ask("/", headers={"Host": host}).status_code == 200


def test_a_viewer_with_a_token_shows_nothing_without_it(shared_run: MadeRun, tmp_path: Path) -> None:
    with open_client(shared_run.store, tmp_path / "rows", token="secret") as ask:
        refused = ask("/")
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic")
        assert ask("/", auth=("anybody", "secret")).status_code == 200


def test_duckdb_cannot_open_files_or_change_its_limits(tmp_path: Path) -> None:
    database = Database(tmp_path, 100)
    for statement in (
        "SELECT * FROM read_csv('/etc/passwd')",
        f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
        "SET enable_external_access = true",
        "SET memory_limit = '10GB'",
        "INSTALL httpfs",
    ):
        with pytest.raises(Exception, match=r"disabled|locked|configuration"):
            database.select(statement)
    database.close()


def test_a_damaged_run_is_marked_and_the_others_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path, run_id=EARLIER_RUN)
    run = make_run(tmp_path)
    (run.folder / "manifest.json").write_text("{half")
    part = tmp_path / f"store/runs/{EARLIER_RUN}/scores.parquet"
    with open_client(run.store, tmp_path / "rows") as ask:
        page = read(ask, "/")
        assert "damaged" in page.text and "manifest.json: not a manifest" in page.text and EARLIER_RUN in page.text
        refused = ask(RUN_PAGE)
        assert refused.status_code == 500 and "not a manifest" in refused.text
        whole = part.read_bytes()
        part.write_bytes(whole[: len(whole) // 2])
        broken = ask(f"/runs/{EARLIER_RUN}/scores")
        assert broken.status_code == 500 and "the table is damaged" in ParsedPage(broken.text).text
        part.write_bytes(whole)
        assert ask(f"/runs/{EARLIER_RUN}/scores").status_code == 200, "the restored table can be read again"


def test_a_run_without_its_sources_shows_its_scores_and_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "bench").rename(tmp_path / "elsewhere")
    with open_client(run.store, tmp_path / "rows") as ask:
        page = read(ask, f"{RUN_PAGE}/scores?sort=lowest")
        assert "Prompts and images cannot be shown" in page.text and "p0003" in page.text
        image = read(ask, f"{RUN_PAGE}/scores/3")
        assert "no image" in image.text and "not found" in image.text
        assert ask(f"{RUN_PAGE}/pictures/3").status_code == 404


def test_the_number_of_open_runs_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.plugins.viewer.browser.MAX_OPEN_RUNS", 1)
    make_run(tmp_path, run_id=EARLIER_RUN)
    run = make_run(tmp_path)
    with open_client(run.store, tmp_path / "rows") as ask:
        for run_id in (EARLIER_RUN, LATER_RUN, EARLIER_RUN):
            assert list_row_numbers(read(ask, f"/runs/{run_id}/scores"))
        gc.collect()
        tables = ask.browser._database.select("SELECT count(*) FROM duckdb_tables()")
        assert tables == [(2,)], "only the scores and prompts of the latest run are kept"


def test_a_store_without_runs_is_refused_with_the_remedy(tmp_path: Path) -> None:
    database = Database(tmp_path, 100)
    store = open_store_at(tmp_path / "nothing")
    store.check()
    with pytest.raises(ConfigError, match=r"has no runs yet; start one with: plumbline sweep"):
        StoreBrowser(store, database).check()
    database.close()


@pytest.mark.parametrize("file", ["manifest.json", "summary.parquet", "cells.parquet"])
def test_a_damaged_file_is_named_and_other_pages_still_work(file: str, tmp_path: Path) -> None:
    make_run(tmp_path, run_id=EARLIER_RUN)
    path = make_run(tmp_path).folder / file
    path.write_bytes(path.read_bytes().replace(b"atlas", b"atlat").replace(b"scores", b"scorez"))
    with open_client(open_store_at(tmp_path / "store"), tmp_path / "rows") as ask:
        answer = ask(RUN_PAGE if file != "cells.parquet" else f"{RUN_PAGE}/scores")
        assert f"{file}: the " in answer.text and "damaged" in answer.text and "run the sweep again" in answer.text
        assert ask("/").status_code == ask(f"/runs/{EARLIER_RUN}/scores").status_code == 200


def test_a_run_with_an_old_manifest_is_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.store.write_text(f"runs/{LATER_RUN}/manifest.json", json.dumps({"benchmark": "old"}))
    run.store.write_text(LATEST_FILE, LATER_RUN)
    with open_client(run.store, tmp_path / "rows") as ask:
        assert "old" in read(ask, "/").text and "atlas" in read(ask, RUN_PAGE).text
        assert list_row_numbers(read(ask, f"{RUN_PAGE}/scores"))


def test_a_store_on_s3_is_shown_like_one_on_disk(bucket: str, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    store = open_store_at(f"{bucket}/store")
    place = store.place
    place.fs.put(str(tmp_path / "store"), place.path, recursive=True)
    with open_client(store, tmp_path / "rows") as ask:
        assert run.run_id in read(ask, "/").text
        assert len(list_row_numbers(read(ask, f"{RUN_PAGE}/scores?metric=gecko&sort=lowest"))) == 36
        assert "what <colour> is it?" in read(ask, f"{RUN_PAGE}/scores/3").text
        assert ask(f"{RUN_PAGE}/pictures/3").headers["content-type"] == "image/webp"
        note = {"author": "ann", "text": "two cups"}
        kept = [ask(f"{RUN_PAGE}/scores/{row}/notes", method="POST", json=note).status_code for row in (3, 15)]
        assert kept == [201, 201] and "1–2 of 2 notes" in " ".join(read(ask, "/notes").text.split())
