"""A comparison of two runs, generators or settings shows mean changes and the images whose scores changed most."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest

from plugins.viewer.tests.page_client import PageClient, open_client
from tests.operators.report.made import MadeRun, make_plain_prompts, make_run

LEFT_RUN, RIGHT_RUN = "20250101-000000-000000", "20260102-030405-000006"
COMPARISON_PAGE = f"/compare?left={LEFT_RUN}&right={RIGHT_RUN}"
PROMPTS = make_plain_prompts(12)
ATLAS_CHANGES = (0.30, -0.02, 0.04, -0.06, 0.08, -0.10, 0.12, -0.14, 0.16, -0.18, 0.20, None)
"""Change of each prompt's score; the last prompt's image has no score in the later run."""


def score_left_run(generator: str, metric: str, prompt: int) -> float:
    return 0.45


def score_right_run(generator: str, metric: str, prompt: int) -> float | None:
    moved = ATLAS_CHANGES[prompt] if generator == "atlas" else 0.1
    return None if moved is None else 0.45 + moved


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    folder = tmp_path_factory.mktemp("sides")
    shared = {"prompts": PROMPTS, "generators": ("atlas", "cobalt"), "metrics": ("gecko",)}
    make_run(folder, **shared, score=score_left_run, run_id=LEFT_RUN)
    run = make_run(
        folder, **shared, score=score_right_run, judge_metrics=("gecko",), first_recipe=1, errors={"corrupt_image": 1}
    )
    with open_client(run.store, folder / "rows") as pages:
        yield pages


def read_text(ask: PageClient, path: str, status: int = 200) -> str:
    answer = ask(path)
    assert answer.status_code == status, answer.text
    plain = re.sub(r"<(style|script)>.*?</\1>", "", answer.text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", plain).split())


def list_changes(text: str) -> list[str]:
    return re.findall(r"([+−]?\d\.\d{3}) by gecko", text.partition("Images whose scores changed")[2])


def test_clear_and_unclear_changes_are_shown_overall_and_by_skill(ask: PageClient) -> None:
    page = read_text(ask, COMPARISON_PAGE)
    assert "cobalt is better by gecko (+0.100). No clear change: atlas." in page
    assert "cobalt gecko 0.450 0.550 +0.100 no interval +1.00" in page
    assert page.index("▲ better") < page.index("The others: 1 not clear") < page.index("atlas gecko")
    assert "Changes by skill, gecko: 4 not clear" in page, "six prompts per skill are too few for a clear change"
    assert page.count("▲ better") == 1 and page.count(" not clear") == 5 + 2


def test_the_largest_changes_come_first_with_both_images_and_the_changed_answers(ask: PageClient) -> None:
    page = read_text(ask, f"{COMPARISON_PAGE}&generator=atlas")
    shown = sorted((one for one in ATLAS_CHANGES if one is not None), key=lambda moved: -abs(moved))
    assert list_changes(page) == [f"{'+' if one > 0 else '−'}{abs(one):.3f}" for one in shown[:10]]
    rose = ["+0.300", "+0.200", "+0.160", "+0.120", "+0.080", "+0.040"]
    up = read_text(ask, f"{COMPARISON_PAGE}&generator=atlas&sort=up")
    assert list_changes(up) == [*rose, "−0.020", "−0.060", "−0.100", "−0.140"]
    assert list_changes(read_text(ask, f"{COMPARISON_PAGE}&generator=atlas&sort=down"))[:2] == ["−0.180", "−0.140"]
    first = ask(f"{COMPARISON_PAGE}&generator=atlas&sort=up&skill=counting&words=p0000").text
    assert [f"/runs/{run}/pictures/0" in first for run in (LEFT_RUN, RIGHT_RUN)] == [True, True]
    said = read_text(ask, f"{COMPARISON_PAGE}&generator=atlas&sort=up&words=p0000")
    assert "what &lt;colour&gt; is it? red ✗ wrong blue 0.45 ✓ right red 0.75" in said
    assert "no reason given One of two is missing." in said and "is there a star?" not in said


def test_changes_are_paged_and_counted(ask: PageClient) -> None:
    assert "1–10 of 23 prompts" in read_text(ask, COMPARISON_PAGE)
    last = read_text(ask, f"{COMPARISON_PAGE}&page=3")
    assert len(list_changes(last)) == 3 and "21–23 of 23 prompts" in last


def test_prompts_without_a_score_on_one_side_are_found_by_their_error(ask: PageClient) -> None:
    for kind in ("any", "corrupt_image"):
        page = read_text(ask, f"{COMPARISON_PAGE}&kind={kind}")
        assert "1–1 of 1 prompt" in page and "not scored on both sides" in page and "beside 11 blue cups" in page
    assert "no prompt matches" in read_text(ask, f"{COMPARISON_PAGE}&kind=unreadable_uri")


def test_two_generators_of_a_run_are_compared_prompt_by_prompt(ask: PageClient) -> None:
    page = read_text(
        ask, f"/compare?left={RIGHT_RUN}&right={RIGHT_RUN}&left_generator=cobalt&right_generator=atlas&sort=up"
    )
    rose = ["+0.200", "+0.100", "+0.060", "+0.020"]
    assert list_changes(page) == [*rose, "−0.020", "−0.060", "−0.120", "−0.160", "−0.200", "−0.240"]
    assert "left: cobalt in" in page and "cobalt left" in page and "atlas right" in page
    assert "1–10 of 11 prompts" in page


def test_two_settings_of_a_run_are_compared_prompt_by_prompt(tmp_path: Path) -> None:
    with open_client(make_run_with_two_settings(tmp_path).store, tmp_path / "rows") as pages:
        both = f"/compare?left={RIGHT_RUN}&right={RIGHT_RUN}&left.cfg=4&right.cfg=7"
        page = read_text(pages, both)
        assert "atlas is better by gecko (+0.100)." in page and f"left: {RIGHT_RUN} , cfg 4" in page
        assert f"cobalt was generated with other settings: steps 30 here, 20 in {RIGHT_RUN}. Its changes" in page
        assert "1–10 of 24 prompts" in page and set(list_changes(page)) == {"+0.100"}
        named = read_text(pages, f"{both}&left_generator=cobalt&right_generator=atlas&words=p0003")
        assert "left: cobalt in" in named and "1–1 of 1 prompt" in named and "0.450" in named and "0.550" in named
        assert '<input type="hidden" name="left.cfg" value="4">' in pages(both).text, (
            "the filter form keeps the settings of both sides"
        )
        assert "share no generator with scores" in read_text(pages, f"{both}&left.steps=30")
        assert "cfg=9: not in run" in read_text(pages, both.replace("cfg=7", "cfg=9"), 404)


def make_run_with_two_settings(folder: Path) -> MadeRun:
    """Make a run that contains every image twice.

    The second copy, at cfg 7, has a better score; cobalt's copies were also made with more steps.
    """
    run = make_run(
        folder, prompts=PROMPTS, generators=("atlas", "cobalt"), metrics=("gecko",), question_metrics=(),
        score=score_left_run, image_settings=lambda prompt: {"cfg": "4", "steps": "20"},
    )  # fmt: skip
    path = f"runs/{RIGHT_RUN}/scores.parquet"
    first = run.store.read_table(path).to_pylist()
    again = [
        row | {"image_id": f"{row['image_id']}-7", "score": row["score"] + 0.1,
               "settings": {"cfg": "7", "steps": "20" if row["generator"] == "atlas" else "30"}}
        for row in first
    ]  # fmt: skip
    run.store.write_table(path, pa.Table.from_pylist([*first, *again], run.store.read_table(path).schema))
    manifest = run.store.read_json(f"runs/{RIGHT_RUN}/manifest.json") or {}
    cfg, steps = {"4": 12, "7": 12}, {"20": 12, "30": 12}
    manifest["settings"] = {"atlas": {"cfg": cfg, "steps": {"20": 24}}, "cobalt": {"cfg": cfg, "steps": steps}}
    run.store.write_json(f"runs/{RIGHT_RUN}/manifest.json", manifest)
    return run


def test_prompts_whose_images_have_notes_are_found_on_either_side(ask: PageClient) -> None:
    assert "no prompt matches" in read_text(ask, f"{COMPARISON_PAGE}&notes=any")
    note = {"author": "ann", "text": "two cups"}
    for run, row in ((LEFT_RUN, 3), (RIGHT_RUN, 15)):
        assert ask(f"/runs/{run}/scores/{row}/notes", method="POST", json=note).status_code == 201
    assert "1–2 of 2 prompts" in read_text(ask, f"{COMPARISON_PAGE}&notes=any")
    assert "1–1 of 1 prompt" in read_text(ask, f"{COMPARISON_PAGE}&notes=any&generator=atlas")


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        (f"/compare?left=20200101-000000-000000&right={RIGHT_RUN}", "run 20200101-000000-000000: not found"),
        (f"/compare?left={RIGHT_RUN}&right={RIGHT_RUN}", "choose two runs, or two generators or settings of one run"),
        (f"{COMPARISON_PAGE}&left_generator=atlas", "choose a generator on both sides, or on neither"),
        (f"{COMPARISON_PAGE}&left_generator=dune&right_generator=atlas", f"generator=dune: not in run {LEFT_RUN}"),
        (f"{COMPARISON_PAGE}&generator=dune", f"generator=dune: not in run {RIGHT_RUN}; choose one of atlas, cobalt"),
        (f"{COMPARISON_PAGE}&metric=tifa", f"metric=tifa: not in run {RIGHT_RUN}; choose one of gecko"),
        (f"{COMPARISON_PAGE}&skill=flying", f"skill=flying: not in run {RIGHT_RUN}; choose one of colour, counting"),
        (f"/runs/{RIGHT_RUN}/scores?skill=flying", f"skill=flying: not in run {RIGHT_RUN}"),
        (f"/runs/{RIGHT_RUN}/scores?generator={quote('<b>')}", "generator=&lt;b&gt;: not in run"),
    ],
)
def test_an_unknown_name_in_a_link_is_reported(path: str, missing: str, ask: PageClient) -> None:
    assert missing in read_text(ask, path, 404)


def test_an_unknown_sort_order_is_refused(ask: PageClient) -> None:
    assert "sort=lowest: expected one of up, down" in read_text(ask, f"{COMPARISON_PAGE}&sort=lowest", 400)


def test_the_newest_comparable_run_is_suggested_for_a_comparison(ask: PageClient) -> None:
    page = ask(f"/compare?right={RIGHT_RUN}").text
    assert f'<option value="{LEFT_RUN}" selected>' in page and f'<option value="{RIGHT_RUN}" selected>' in page
    assert "What changed" not in page
