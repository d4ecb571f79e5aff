"""A served study can be rated by keyboard and touch, even while its server is down, as tested in a real browser."""

import io
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from PIL import Image

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
pytest.importorskip("axe_core_python", reason="needs axe-core: pip install -e '.[test]'")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.interaction import POINTER_TOUCH
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from plumbline.plugins.rating.answers import Answer, parse_answer
from tests.browser.opened import (
    DESKTOP_WIDTH,
    NEEDS_BROWSER,
    PHONE_WIDTH,
    find,
    find_accessibility_problems,
    open_page,
    set_preferred_scheme,
)
from tests.operators.report.made import HOSTILE_PROMPTS, MadeRun, encode_png, make_plain_prompts, make_run
from tests.s3 import find_free_ports

pytestmark = NEEDS_BROWSER
ROOT = Path(__file__).parents[3]
TEMPLATE_NAMES = ("likert", "words", "questions", "side_by_side", "vote")
QUESTIONS = ("is there a star?", "is it <b>red</b>?", "how many cups are there: more than two?")
TIMEOUT_SECONDS = 60
"""Timeout in seconds for a page on a busy machine."""
PAGE_IS_READY_SCRIPT = "return document.querySelector('#rating')?.getAttribute('aria-busy') === 'false'"


class Server:
    """`jobs.rate` in a separate process, which can be killed and restarted at the same address."""

    def __init__(self, folder: Path, *words: str) -> None:
        (port,) = find_free_ports(1)
        self.study, self.log = folder / "study", folder / "log"
        self.command = [sys.executable, "-m", "jobs.rate", f"study={self.study}", f"port={port}", *words]
        self.address = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(self.command, stdout=stream, stderr=stream, cwd=ROOT)
        waiting = threading.Event()
        while self.address.encode() not in self.log.read_bytes():
            assert self.process.poll() is None, self.log.read_text()
            waiting.wait(0.1)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def read_answers(self, rater: str) -> list[Answer]:
        files = sorted((self.study / "answers" / rater).glob("*.json"))
        return [parse_answer(file.read_bytes(), str(file)) for file in files]


def make_sources(prompt: int) -> list[bytes]:
    return [encode_png(500 + prompt)] if prompt % 3 == 0 else []


@contextmanager
def serve_study(folder: Path, made: MadeRun, templates: Sequence[str] = TEMPLATE_NAMES) -> Iterator[Server]:
    server = Server(folder, f"store={made.store.place.url}", f"templates=[{','.join(templates)}]", "repeats=0")
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("study")
    made = make_run(
        folder, prompts=HOSTILE_PROMPTS, generators=("atlas", "<b>bold"), sources=make_sources, questions=QUESTIONS
    )
    with serve_study(folder, made) as served:
        yield served


def open_rating_page(browser: WebDriver, server: Server, rater: str, width: int = DESKTOP_WIDTH) -> WebDriver:
    page = open_page(browser, f"{server.address}/rate?rater={rater}", width)
    wait_until_ready(page)
    return page


def run_script(page: WebDriver, code: str, *given: object) -> Any:
    return page.execute_script(code, *given)  # type: ignore[no-untyped-call]


def wait_until(page: WebDriver, condition: Callable[[WebDriver], object]) -> None:
    WebDriverWait(page, TIMEOUT_SECONDS, poll_frequency=0.05).until(condition)


def wait_until_ready(page: WebDriver) -> None:
    wait_until(page, lambda seen: run_script(seen, PAGE_IS_READY_SCRIPT))


def read_template_name(page: WebDriver) -> str:
    return str(run_script(page, "return document.querySelector('#rating').dataset.template"))


def read_state(page: WebDriver) -> str:
    return page.find_element("id", "state").text


def press_keys(page: WebDriver, *keys: str) -> None:
    ActionChains(page, duration=0).send_keys(*keys).perform()


def answer_with_keyboard(page: WebDriver) -> None:
    wait_until_ready(page)
    keys = {
        "likert": "4",
        "words": f"{Keys.ARROW_RIGHT} {Keys.ARROW_RIGHT}  {Keys.ENTER}",
        "questions": "ync"[: len(find(page, ".asked"))] + Keys.ENTER,
        "side_by_side": "a",
        "vote": "t",
    }[read_template_name(page)]
    press_keys(page, keys)


def tap(page: WebDriver, element: WebElement) -> None:
    run_script(page, "arguments[0].scrollIntoView({block: 'center'})", element)
    touch = ActionBuilder(page, mouse=PointerInput(POINTER_TOUCH, "finger"), duration=0)
    touch.pointer_action.move_to(element).pointer_down().pointer_up()
    touch.perform()


def answer_by_touch(page: WebDriver) -> None:
    wait_until_ready(page)
    template = read_template_name(page)
    for question in find(page, ".asked"):
        tap(page, question.find_element("css selector", "label:nth-child(2)"))
    if template == "words":
        tap(page, find(page, ".word")[0])
    place = {"likert": 1, "side_by_side": 2, "vote": 1}.get(template, 0)
    tap(page, find(page, "#choices button")[place])


def rate_all_tasks(page: WebDriver, answer: Callable[[WebDriver], None], *, with_axe: bool = True) -> None:
    seen: set[str] = set()
    while template := read_template_name(page):
        if template not in seen and with_axe:
            width = run_script(page, "return innerWidth")
            assert run_script(page, "return document.documentElement.scrollWidth") <= width, template
            assert find_accessibility_problems(page) == [], template
        seen.add(template)
        answer(page)
        wait_until_ready(page)
    assert run_script(page, "return window.hacked") is None and page.get_log("browser") == []  # type: ignore[no-untyped-call]
    assert seen == set(TEMPLATE_NAMES)
    wait_until(
        page, lambda _: run_script(page, "return Object.keys(localStorage).every(key => !key.includes('answer '))")
    )


def test_all_templates_can_be_rated_by_keyboard(browser: WebDriver, server: Server) -> None:
    rate_all_tasks(open_rating_page(browser, server, "keys"), answer_with_keyboard)
    assert "Thank you, keys" in browser.find_element("id", "question").text
    kept = server.read_answers("keys")
    assert len(kept) == len({answer.task_id for answer in kept})
    for answer in kept:
        assert (
            answer.answer
            == {
                "likert": 4,
                "words": {"wrong": [0], "unsure": [1]},
                "questions": dict(zip(("q0", "q1", "q2"), ("yes", "no", "cannot_tell"), strict=True)),
                "side_by_side": "ab"[answer.shown[0]],
                "vote": "tie",
            }[answer.template]
        )


@pytest.mark.slow
def test_all_templates_can_be_rated_by_touch_on_a_phone(browser: WebDriver, server: Server) -> None:
    set_preferred_scheme(browser, "dark")
    rate_all_tasks(open_rating_page(browser, server, "touch", PHONE_WIDTH), answer_by_touch)
    set_preferred_scheme(browser, "")
    for answer in server.read_answers("touch"):
        assert (
            answer.answer
            == {
                "likert": 2,
                "words": {"wrong": [0], "unsure": []},
                "questions": dict.fromkeys(("q0", "q1", "q2"), "no"),
                "side_by_side": "ab"[answer.shown[-1]],
                "vote": "tie",
            }[answer.template]
        )


def test_grades_are_entered_with_digit_keys_and_fit_on_a_phone(browser: WebDriver, tmp_path: Path) -> None:
    """The key 0 means 0 errors, or the grade 10 in templates without a grade 0."""
    graded = ("genai_bench", "gecko_likert", "llmscore_overall", "llmscore_errors")
    with serve_study(
        tmp_path, make_run(tmp_path, prompts=make_plain_prompts(1), generators=("atlas",)), graded
    ) as server:
        page = open_rating_page(browser, server, "ann", PHONE_WIDTH)
        seen = {}
        while template := read_template_name(page):
            assert (
                run_script(page, "return document.documentElement.scrollWidth") <= PHONE_WIDTH
                and find_accessibility_problems(page) == []
            )
            seen[template] = [button.text.split("\n") for button in find(page, "#choices button")]
            press_keys(page, "2" if template in graded[:2] else "0")
            wait_until_ready(page)
        wait_until(page, lambda _: len(server.read_answers("ann")) == len(graded))
        answers = {answer.template: answer.answer for answer in server.read_answers("ann")}
    assert answers == {"genai_bench": 2, "gecko_likert": 2, "llmscore_overall": 10, "llmscore_errors": 0}
    assert seen["genai_bench"][1] == ["2", "Has significant discrepancies."]
    assert seen["llmscore_overall"] == [[str(grade)] for grade in range(1, 11)]


def answer_whole_task(page: WebDriver, label: str) -> None:
    wait_until_ready(page)
    tap(page, next(button for button in find(page, "#whole button") if button.text == label))
    wait_until_ready(page)


def undo_answer(page: WebDriver) -> list[str]:
    """Undo the last answer; return the labels of the buttons that are then shown as pressed."""
    press_keys(page, "z")
    wait_until_ready(page)
    return [button.text for button in find(page, "#whole [aria-pressed=true]")]


def test_undo_shows_the_earlier_answer_and_a_new_answer_replaces_it(browser: WebDriver, server: Server) -> None:
    page = open_rating_page(browser, server, "undo")
    answer_whole_task(page, "Unsure")
    press_keys(page, "m")
    press_keys(page, "zu: blurred", Keys.ESCAPE)
    answer_whole_task(page, "Cannot tell")
    assert undo_answer(page) == ["Cannot tell"]
    assert page.find_element("id", "note").get_attribute("value") == "zu: blurred"
    assert undo_answer(page) == ["Unsure"]
    answer_whole_task(page, "Cannot tell")
    tap(page, page.find_element("id", "leave"))
    wait_until(page, lambda _: len(server.read_answers("undo")) == 3)
    kept = server.read_answers("undo")
    assert len({answer.task_id for answer in kept}) == 2
    said = Counter((str(answer.answer), answer.note) for answer in kept)
    assert said == Counter([("unsure", ""), ("cannot_tell", ""), ("cannot_tell", "zu: blurred")])


def wait_until_preloaded(page: WebDriver, server: Server, rater: str) -> None:
    tasks = httpx.get(f"{server.address}/tasks", params={"rater": rater, "count": 3}).json()
    wanted = {server.address + picture for task in tasks for picture in (*task["pictures"], *task["sources"])}
    loaded = "return performance.getEntriesByType('resource').map(one => one.name)"
    wait_until(page, lambda seen: wanted <= set(run_script(seen, loaded)))


@contextmanager
def go_offline(page: WebDriver) -> Iterator[None]:
    page.execute_cdp_cmd("Network.enable", {})
    page.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*"]})
    yield
    page.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def discard_browser_errors(page: WebDriver) -> None:
    page.get_log("browser")  # type: ignore[no-untyped-call]


def test_a_source_image_can_be_shown_over_its_edit_without_rating(browser: WebDriver, server: Server) -> None:
    page = open_rating_page(browser, server, "edits")
    while not find(page, ".wipe"):
        answer_with_keyboard(page)
        wait_until_ready(page)
    before = page.find_element("id", "left").text
    find(page, ".wipe input")[0].send_keys(Keys.END, Keys.ARROW_LEFT, "t4y")
    assert find(page, ".before")[0].value_of_css_property("clip-path") == "inset(0px 5% 0px 0px)"
    assert page.find_element("id", "left").text == before


def test_rating_continues_without_a_network_and_answers_are_sent_later(browser: WebDriver, server: Server) -> None:
    page = open_rating_page(browser, server, "offline")
    wait_until_preloaded(page, server, "offline")
    with go_offline(page):
        answer_with_keyboard(page)
        wait_until(
            page, lambda seen: read_state(seen).startswith("The server does not answer. 1 answer saved in this browser")
        )
    wait_until(page, lambda seen: read_state(seen) == "The server answers again, and all answers are saved.")
    assert len(server.read_answers("offline")) == 1
    discard_browser_errors(page)


def test_no_answer_is_lost_or_duplicated_if_the_server_is_killed_and_the_window_closed(
    browser: WebDriver, server: Server
) -> None:
    page = open_rating_page(browser, server, "killed")
    answer_with_keyboard(page)
    wait_until(page, lambda _: len(server.read_answers("killed")) == 1)
    wait_until_preloaded(page, server, "killed")
    server.kill()
    for _ in range(2):
        answer_with_keyboard(page)
        wait_until_ready(page)
        assert all(run_script(page, "return Array.from(document.images, image => image.naturalWidth)"))
    wait_until(page, lambda seen: "2 answers saved in this browser" in read_state(seen))
    page.get("about:blank")
    discard_browser_errors(page)
    server.start()
    page = open_rating_page(browser, server, "killed")
    answer_with_keyboard(page)
    wait_until(page, lambda _: len(server.read_answers("killed")) == 4)
    assert len({answer.task_id for answer in server.read_answers("killed")}) == 4


def test_an_answer_from_another_window_is_shown_before_it_is_replaced(browser: WebDriver, server: Server) -> None:
    page = open_rating_page(browser, server, "two")
    first = page.current_window_handle
    page.switch_to.new_window("tab")
    open_rating_page(browser, server, "two")
    answer_whole_task(page, "Unsure")
    wait_until(page, lambda _: len(server.read_answers("two")) == 1)
    page.close()
    page.switch_to.window(first)
    answer_whole_task(page, "Cannot tell")
    wait_until(page, lambda seen: find(seen, "#refused li"))
    (refused,) = find(page, "#refused li")
    assert "Another answer was saved: unsure. Yours was: cannot tell." in refused.text
    assert [answer.answer for answer in server.read_answers("two")] == ["unsure"]
    tap(page, find(refused, "button")[0])
    wait_until(page, lambda _: [answer.answer for answer in server.read_answers("two")] == ["unsure", "cannot_tell"])
    assert find(page, "#refused li") == []
    discard_browser_errors(page)


def test_the_start_page_asks_for_a_name_and_refuses_an_invalid_one(browser: WebDriver, server: Server) -> None:
    page = open_page(browser, server.address, PHONE_WIDTH)
    assert find_accessibility_problems(page) == []
    page.find_element("id", "rater").send_keys("../ann", Keys.ENTER)
    wait_until(page, lambda seen: find(seen, "#problem"))
    assert "a name of up to 48 characters" in page.find_element("id", "problem").text
    field = page.find_element("id", "rater")
    field.clear()
    field.send_keys("Ann Ü", Keys.ENTER)
    wait_until(page, lambda seen: find(seen, "#rating"))
    wait_until_ready(page)
    assert "Ann Ü" in page.find_element("css selector", ".eyebrow").text
    discard_browser_errors(page)


BRIGHTNESS_SCRIPT = """
return Array.from(document.querySelectorAll("#pictures img"), image => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d");
  canvas.drawImage(image, 0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data[0];
});
"""
"""JavaScript that returns the brightness of each image, 0 to 255."""


def make_grey_png(number: int) -> bytes:
    """Return a grey image for `number` (100 * generator + prompt); the first generator's images are the brightest."""
    buffer = io.BytesIO()
    Image.new("L", (48, 48), 230 - 70 * (number // 100) - 9 * (number % 100)).save(buffer, "PNG")
    return buffer.getvalue()


def answer_by_brightness(page: WebDriver, mood: int) -> None:
    """Answer the current task by its images' brightness, plus `mood`, which differs by rater."""
    wait_until_ready(page)
    looks = [look + mood for look in run_script(page, BRIGHTNESS_SCRIPT)]
    bright = looks[0] > 128
    keys = {
        "likert": str(min(max(round(looks[0] / 51), 1), 5)),
        "words": Keys.ENTER if bright else f"{Keys.ARROW_RIGHT} {Keys.ENTER}",
        "questions": ("y" if bright else "n") * len(QUESTIONS) + Keys.ENTER,
        "side_by_side": "a" if looks[0] > looks[-1] else "b",
        "vote": "t",
    }[read_template_name(page)]
    press_keys(page, keys)


@pytest.mark.slow
def test_all_answers_of_three_raters_reach_the_report_exactly_once(browser: WebDriver, tmp_path: Path) -> None:
    """The raters take turns in separate windows; halfway through, the server is killed and is down for one turn."""
    made = make_run(
        tmp_path,
        prompts=make_plain_prompts(12),
        generators=("atlas", "cobalt"),
        image=make_grey_png,
        questions=QUESTIONS,
    )
    windows: dict[str, str] = {}
    with serve_study(tmp_path, made) as server:
        for name in ("ann", "ben", "cem"):
            if windows:
                browser.switch_to.new_window("window")
            windows[name] = open_rating_page(browser, server, name).current_window_handle
        for turn in range(96):
            if turn == 48:
                for window in windows.values():
                    browser.switch_to.window(window)
                    wait_until_ready(browser)
                server.kill()
            if turn == 49:
                server.start()
            for place, window in enumerate(windows.values()):
                browser.switch_to.window(window)
                answer_by_brightness(browser, mood=(7 * turn + 11 * place) % 41 - 20)
        for name in windows:
            wait_until(browser, lambda _, name=name: len(server.read_answers(name)) == 96)
            assert len({answer.task_id for answer in server.read_answers(name)}) == 96
            assert {answer.template for answer in server.read_answers(name)} == set(TEMPLATE_NAMES)
        for window in [*windows.values()][1:]:
            browser.switch_to.window(window)
            browser.close()
        browser.switch_to.window(windows["ann"])
        discard_browser_errors(browser)
    words = [f"run={made.run_id}", f"store={made.store.place.url}", "protocol=study", f"protocol.path={server.study}"]
    subprocess.run([sys.executable, "-m", "jobs.report", *words], cwd=ROOT, check=True)
    judged = pd.read_parquet(made.folder / "metaeval/judgements.parquet").query(
        "subset == 'overall' and generator == ''"
    )
    value = judged.set_index(["template", "metric", "statistic"])["value"]
    assert value["likert", "people", "alpha_ordinal"] > 0.8
    assert value["side_by_side", "gecko", "binary_accuracy"] == 1
    assert all(value[template, "gecko", "spearman"] > 0.3 for template in ("likert", "wl", "dsg_h"))
    corrected = pd.read_parquet(made.folder / "metaeval/corrected.parquet").query("scale == 'rating'")
    means = corrected.set_index(["template", "metric", "generator", "other"])
    atlas, cobalt = (means.loc["likert", "gecko", name, ""] for name in ("atlas", "cobalt"))
    assert atlas["low"] > cobalt["high"] and atlas["n_rated"] == 12
    assert "contradicts people" not in made.html


@pytest.mark.slow
def test_raters_see_which_of_their_answers_an_edited_study_refuses(browser: WebDriver, tmp_path: Path) -> None:
    with serve_study(tmp_path, make_run(tmp_path, prompts=make_plain_prompts(3)), ["words"]) as server:
        page = open_rating_page(browser, server, "ann")
        server.kill()
        server.command = [word.replace("[words]", "[likert]") for word in server.command]
        server.start()
        answer_with_keyboard(page)
        wait_until(page, lambda seen: read_template_name(seen) == "likert")
        assert (
            "was not kept: the task is from version 1 of the study, which now has version 2"
            in page.find_element("id", "refused").text
        )
        answer_with_keyboard(page)
        wait_until(page, lambda _: [answer.version for answer in server.read_answers("ann")] == [2])
        page.refresh()
        wait_until_ready(page)
        assert len(find(page, "#refused li")) == 1
        discard_browser_errors(page)
