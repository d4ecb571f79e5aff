"""In a real browser, a report opens from a file, logs nothing, can be sorted and filtered, and escapes text."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
pytest.importorskip("axe_core_python", reason="needs axe-core: pip install -e '.[test]'")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from plumbline.pipelines.report.report import write_report
from tests.browser.opened import (
    DESKTOP_SLOW,
    DESKTOP_WIDTH,
    NEEDS_BROWSER,
    ON_DESKTOP,
    WIDTHS_AND_SCHEMES,
    find,
    find_accessibility_problems,
    find_shown,
    open_page,
    press_enter,
    read_texts,
    set_preferred_scheme,
)
from tests.commands import run_for_output
from tests.operators.report.made import (
    HOSTILE_PROMPTS,
    QUALITY_BY_GENERATOR,
    Score,
    draw_noisy_score,
    make_plain_prompts,
    make_run,
)

pytestmark = NEEDS_BROWSER

GENERATOR_NAMES = ("atlas", "<b>bold", "cobalt", "מחולל")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a run with hostile prompts and names, failed rows and an earlier run; return its path."""
    folder = tmp_path_factory.mktemp("run")
    prompts = [*HOSTILE_PROMPTS, *make_plain_prompts(9)]

    def score(generator: str, metric: str, prompt: int) -> float | None:
        return None if (generator, prompt) == ("cobalt", 7) else draw_noisy_score(generator, metric, prompt)

    make_run(folder, prompts=prompts, generators=GENERATOR_NAMES, run_id="20250101-000000-000000")
    run = make_run(folder, prompts=prompts, generators=GENERATOR_NAMES, score=score)
    write_report(run.store, compare="previous")
    return run.folder / "report.html"


@pytest.fixture
def page(browser: WebDriver, report: Path, width: int) -> WebDriver:
    """Open the report from its file; fail if it logs anything to the console."""
    return open_page(browser, report, width)


def find_cards(page: WebDriver) -> list[WebElement]:
    return find_shown(page, ".card")


def test_the_page_starts_with_the_decision_and_never_scrolls_sideways(page: WebDriver, width: int) -> None:
    assert page.find_element(By.TAG_NAME, "h1").text == "atlas is the best generator — by both metrics."
    wide = page.execute_script("return document.documentElement.scrollWidth")  # type: ignore[no-untyped-call]
    assert wide <= width
    means, picture = find(page, "#leaderboard td .value"), find(page, "#leaderboard tbody img")[0]
    screen = page.execute_script("return innerHeight")  # type: ignore[no-untyped-call]
    assert means[0].location["y"] < screen and (width < 560 or picture.location["y"] < screen)
    charts = find(page, "#spread svg")
    assert len(charts) == 4 and all(chart.size["width"] > 200 for chart in charts)


@ON_DESKTOP
def test_prompts_and_names_are_neither_executed_nor_rendered_as_markup(page: WebDriver) -> None:
    assert page.execute_script("return window.hacked") is None  # type: ignore[no-untyped-call]
    assert find(page, "main b b, .prompt b, .prompt i, .prompt img, .prompt script") == []
    find(page, "[data-more=cards]")[0].click()
    texts = [
        card.find_element(By.CSS_SELECTOR, ".prompt").get_attribute("textContent") or "" for card in find(page, ".card")
    ]
    plain = [text.replace(" (wrong)", "").replace(" (right)", "").replace(" (unsure)", "") for text in texts]
    assert set(HOSTILE_PROMPTS) <= set(plain), "every hostile prompt is shown in full"
    assert "<b>bold" in page.find_element(By.CSS_SELECTOR, "#leaderboard tbody").text


@ON_DESKTOP
def test_right_to_left_prompts_read_from_the_right(page: WebDriver) -> None:
    hebrew = next(one for one in find(page, ".prompt") if (one.get_attribute("textContent") or "").startswith("נחש"))
    assert page.execute_script("return getComputedStyle(arguments[0]).direction", hebrew) == "rtl"  # type: ignore[no-untyped-call]


@ON_DESKTOP
def test_tables_can_be_sorted_with_the_keyboard(page: WebDriver) -> None:
    table = page.find_element(By.CSS_SELECTOR, "table.board")
    by_name, _, by_gecko = (head.find_element(By.TAG_NAME, "button") for head in find(table, "thead th")[:3])
    press_enter(page, by_gecko)
    values = [float(cell.get_attribute("data-value") or "nan") for cell in find(table, "tbody td:nth-child(3)")]
    assert values == sorted(values, reverse=True)
    press_enter(page, by_gecko)
    assert find(table, "tbody td:nth-child(3)")[0].get_attribute("data-value") == str(min(values))
    assert find(table, "th[aria-sort='ascending']")[0].text.startswith("gecko")
    press_enter(page, by_name)
    names = [head.text for head in find(table, "tbody th")]
    assert names[1:3] == ["atlas", "cobalt"] and len(find(table, "th[aria-sort]")) == 1


def test_the_gallery_shows_images_with_marked_words_and_questions(page: WebDriver) -> None:
    cards = find_cards(page)
    assert len(cards) == 12
    widths = page.execute_script(
        "return Array.from(document.querySelectorAll('.card img')).map(one => one.naturalWidth)"
    )  # type: ignore[no-untyped-call]
    assert len(widths) == len(find(page, ".card")) and min(widths) > 0
    wrong = find_shown(page, ".prompt mark.wrong")[0]
    assert "wavy" in wrong.value_of_css_property("text-decoration")
    assert wrong.get_attribute("title")
    details = next(one for one in find(cards[0], "details"))
    press_enter(page, details.find_element(By.TAG_NAME, "summary"))
    assert "what <colour> is it?" in details.text and "expected red" in details.text


COLOURS_SCRIPT = """
const [word, under] = arguments, canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const drawn = (...colours) => {
  for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  return Array.from(canvas.getImageData(0, 0, 1, 1).data).slice(0, 3);
};
const style = getComputedStyle(word);
const ground = ["#fff", getComputedStyle(document.body).backgroundColor, getComputedStyle(under).backgroundColor];
return [drawn(...ground, style.backgroundColor, style.color), drawn(...ground, style.backgroundColor)];
"""
"""Script that returns the colours of a word and of its background as drawn."""


def compute_contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast ratio of two colours as defined by WCAG 2."""
    linear = [[((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 3294.6 for c in colour] for colour in (one, other)]
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (high + 0.05) / (low + 0.05)


@ON_DESKTOP
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_are_redder_for_lower_scores_of_each_metric_and_readable(page: WebDriver, theme: str) -> None:
    set_preferred_scheme(page, theme)
    heats = []
    for card in find_cards(page)[:4]:
        press_enter(page, card.find_element(By.TAG_NAME, "summary"))
        for word in card.find_elements(By.CSS_SELECTOR, ".heated mark.h"):
            score = float((word.get_attribute("textContent") or "").rpartition("(")[2].rstrip(")"))
            text, ground = page.execute_script(COLOURS_SCRIPT, word, card)  # type: ignore[no-untyped-call]
            heats.append((score, ground[0] - ground[1]))
            assert compute_contrast(text, ground) >= 4.5, (score, text, ground)
    set_preferred_scheme(page, "")
    low, high = (max(heats, key=lambda one: sign * one[0]) for sign in (-1, 1))
    assert low[0] < 0.5 < high[0] and low[1] > high[1], "low scores are red, high scores are green"


@DESKTOP_SLOW
def test_the_gallery_filters_by_kind_metric_generator_skill_and_words(page: WebDriver) -> None:
    form = page.find_element(By.CSS_SELECTOR, "[data-list=cards]")
    select = {name: Select(form.find_element(By.NAME, name)) for name in ("kind", "metric", "generator", "skill")}
    select["generator"].select_by_visible_text("<b>bold")
    assert {card.find_element(By.CSS_SELECTOR, ".who b").text for card in find_cards(page)} == {"<b>bold"}
    select["kind"].select_by_visible_text("worst")
    select["metric"].select_by_visible_text("gecko")
    select["skill"].select_by_visible_text("counting")
    assert all("lowest by gecko" in card.text or "gecko" in card.text for card in find_cards(page))
    page.find_element(By.CSS_SELECTOR, "[data-list=cards] button[type=reset]").click()
    form.find_element(By.NAME, "text").send_keys("בלתי־נמצא")
    assert find_cards(page) == [] and page.find_element(By.CSS_SELECTOR, "[data-list=cards] output").text.startswith(
        "0 of "
    )
    form.find_element(By.NAME, "text").clear()
    form.find_element(By.NAME, "text").send_keys("BLUE cups")
    assert find_cards(page) and all("blue cups" in card.text for card in find_cards(page))


@DESKTOP_SLOW
def test_a_prompt_is_shown_with_every_generators_image_scores_and_answers(page: WebDriver) -> None:
    entries = find_shown(page, "#sides > article")
    assert len(entries) == 3
    heads = [one.text for one in find(entries[0], "thead th bdi")]
    assert heads == ["atlas", "<b>bold", "מחולל", "cobalt"]
    assert all(len(find(row, "td")) == len(heads) for row in find(entries[0], "tbody tr"))
    assert all(image.size["width"] > 90 for image in find(entries[0], "img"))
    press_enter(page, find(entries[0], "summary")[0])
    asked = find(entries[0], "details tbody tr")
    assert asked[0].text.startswith("what <colour> is it? red") and "✗" in asked[0].text
    find(page, "[data-more=sides]")[0].click()
    assert len(find_shown(page, "#sides > article")) == 14


@DESKTOP_SLOW
def test_prompts_side_by_side_can_be_searched(page: WebDriver) -> None:
    words = find(page, "[data-list=sides] input")[0]
    words.send_keys("p0008 BLUE")
    (entry,) = find_shown(page, "#sides > article")
    assert find(entry, "h3")[0].text == "a red star beside 3 blue cups"
    assert find(page, "[data-list=sides] output")[0].text == "1 of 14 prompts"
    assert len(find_cards(page)) == 12, "the gallery has its own filters"


def read_enlarged(page: WebDriver) -> str:
    """Return the generator and the position of the enlarged image, or an empty string if no image is enlarged."""
    (zoom,) = find(page, "#zoom")
    return find(zoom, "#zoom-name")[0].text if zoom.is_displayed() else ""


def test_an_image_enlarges_and_the_arrow_keys_show_the_next(page: WebDriver, width: int) -> None:
    buttons = find(page, "#sides article:first-child [data-zoom]")
    press_enter(page, buttons[1])
    assert read_enlarged(page) == "<b>bold 2 of 4"
    image = find(page, "#zoom .pair img")[0]
    assert 0.8 * width < image.size["width"] < width or image.size["width"] > 600
    assert image.get_attribute("src") == find(buttons[1], "img")[0].get_attribute("src")
    keys = page.switch_to.active_element
    for key, name in ((Keys.ARROW_RIGHT, "מחולל 3 of 4"), (Keys.ARROW_RIGHT, "cobalt 4 of 4"),
                      (Keys.ARROW_RIGHT, "atlas 1 of 4"), (Keys.ARROW_LEFT, "cobalt 4 of 4")):  # fmt: skip
        keys.send_keys(key)
        assert read_enlarged(page) == name
    find(page, "[data-step='-1']")[0].click()
    assert read_enlarged(page) == "מחולל 3 of 4"
    assert "gecko" in find(page, "#zoom-about")[0].text
    page.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert read_enlarged(page) == ""
    assert page.switch_to.active_element == buttons[2], "the image that was shown last has the focus"


@DESKTOP_SLOW
def test_a_gallery_image_enlarges_with_its_marked_prompt_and_a_click_outside_closes_it(page: WebDriver) -> None:
    (button,) = find(find_cards(page)[0], "[data-zoom]")
    button.click()
    assert read_enlarged(page).endswith("1 of 12") and find(page, "#zoom-about .prompt")
    assert page.execute_script("return window.hacked") is None  # type: ignore[no-untyped-call]
    assert find_accessibility_problems(page) == []
    page.execute_script("document.querySelector('#zoom').click()")  # type: ignore[no-untyped-call]
    assert read_enlarged(page) == ""


@ON_DESKTOP
def test_the_leaderboard_can_be_downloaded_from_the_file(page: WebDriver, report: Path, tmp_path: Path) -> None:
    page.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    for link in find(page, ".downloads a"):
        link.click()
    WebDriverWait(page, 120).until(
        lambda _: {one.name for one in tmp_path.iterdir()} == {"leaderboard.csv", "leaderboard.tex"}
    )
    assert (tmp_path / "leaderboard.csv").read_text() == (report.parent / "summary.csv").read_text()
    assert "\\toprule" in (tmp_path / "leaderboard.tex").read_text()


@ON_DESKTOP
def test_choosing_a_metric_changes_both_skills_and_pairs(page: WebDriver) -> None:
    def list_panels() -> set[str | None]:
        return {one.get_attribute("data-panel") for one in find_shown(page, "[data-panel]")}

    assert list_panels() == {"gecko"}
    press_enter(page, find_shown(page, "[data-choose='clipscore']")[0])
    assert list_panels() == {"clipscore"}
    assert {one.get_attribute("data-choose") for one in find(page, "[aria-pressed='true']")} == {"clipscore"}


@ON_DESKTOP
def test_dark_and_light_follow_the_system_and_the_button(page: WebDriver) -> None:
    def get_background() -> str:
        return page.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")

    light = get_background()
    set_preferred_scheme(page, "dark")
    assert get_background() != light
    press_enter(page, page.find_element(By.ID, "theme"))
    assert get_background() == light
    set_preferred_scheme(page, "")


@ON_DESKTOP
def test_changes_and_failures_are_shown(page: WebDriver) -> None:
    assert "20250101-000000-000000" in page.find_element(By.ID, "changes").text
    health = page.find_element(By.ID, "health").text
    assert "corrupt_image" in health and "bytes <b>unreadable</b>" in health


@ON_DESKTOP
def test_everything_named_can_be_reached_and_every_control_has_a_name(page: WebDriver) -> None:
    for control in find_shown(page, "button, select, input"):
        assert control.accessible_name, control.get_attribute("outerHTML")
    assert all(image.get_attribute("alt") for image in find(page, "img"))
    anchors = [one.get_attribute("href") or "" for one in find(page, "nav a")]
    assert all(find(page, f"#{anchor.rpartition('#')[2]}") for anchor in anchors)


def test_the_printed_page_has_every_metric_and_no_control(page: WebDriver) -> None:
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert find_shown(page, "[data-panel]") == find(page, "[data-panel]")
    assert find_shown(page, ".filters") == []
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@WIDTHS_AND_SCHEMES
def test_axe_core_finds_no_accessibility_problem(page: WebDriver, scheme: str) -> None:
    set_preferred_scheme(page, scheme)
    assert find_accessibility_problems(page) == []
    set_preferred_scheme(page, "")


WORD_ORDER_SCRIPT = """
const places = [], walker = document.createTreeWalker(arguments[0], NodeFilter.SHOW_TEXT);
for (let node; (node = walker.nextNode()); ) {
  for (const { 0: text, index } of node.data.matchAll(/[^\\s,.;:()]+/g)) {
    const range = document.createRange();
    range.setStart(node, index);
    range.setEnd(node, index + text.length);
    const { top, left } = range.getClientRects()[0];
    places.push([Math.round(top / 9), left, text]);
  }
}
const seen = [...places].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
return [places, seen].map((words) => words.map((word) => word[2]));
"""
"""Script that returns the words of a sentence as written, and as displayed from left to right."""


def test_a_right_to_left_name_does_not_reverse_any_word_on_the_screen(browser: WebDriver, tmp_path: Path) -> None:
    names = ("אטלס", "מחולל", "cobalt")
    quality = dict(zip(names, (0.8, 0.8, 0.3), strict=True))
    score = lambda name, metric, prompt: quality[name] + draw_noisy_score(name, metric, prompt) / 10  # noqa: E731
    run = make_run(tmp_path, prompts=make_plain_prompts(16), generators=names, score=score)
    write_report(run.store)
    sentences = find(open_page(browser, run.folder / "report.html", 1280), "h1, #decision li")
    both = [browser.execute_script(WORD_ORDER_SCRIPT, sentence) for sentence in sentences]  # type: ignore[no-untyped-call]
    assert sum("אטלס" in written and "מחולל" in written for written, _ in both) > 1
    assert all(written == seen for written, seen in both)


def read_sizes(page: WebDriver, selector: str, side: str) -> list[float]:
    """Return the length of one side of each element's rectangle, in one call to the browser."""
    script = """
        const [selector, side] = arguments;
        return Array.from(document.querySelectorAll(selector), (one) => one.getBoundingClientRect()[side]);
    """
    return list(page.execute_script(script, selector, side))  # type: ignore[no-untyped-call]


def test_thirty_long_names_take_at_most_two_lines_and_their_headers_stay_visible(
    browser: WebDriver, tmp_path: Path
) -> None:
    names = [f"diffusion-{number:02d}-xl-turbo-1024px-base" for number in range(30)]
    metrics = ("gecko", "clipscore", "vqascore", "tifa", "dsg", "pickscore")
    run = make_run(tmp_path, prompts=make_plain_prompts(6), generators=names, metrics=metrics)
    write_report(run.store)
    page = open_page(browser, run.folder / "report.html", 1280)
    assert max(read_sizes(page, "[data-panel=gecko] table.matrix tbody tr", "height")) < 40
    for table in ("table.board", "[data-panel=gecko] table.heat"):
        assert max(read_sizes(page, f"{table} tbody tr", "height")) < 75, table
        row = page.find_element(By.CSS_SELECTOR, f"{table} tbody tr")
        page.execute_script("arguments[0].closest('.scroll').scrollTop = 900", row)  # type: ignore[no-untyped-call]
        head, box = find(page, f"{table} thead")[0], row.find_element(By.XPATH, "ancestor::div[1]")
        top = "return arguments[0].querySelector('th').getBoundingClientRect().top"
        below = f"{top} - arguments[1].getBoundingClientRect().top"
        assert abs(page.execute_script(below, head, box)) < 40, table  # type: ignore[no-untyped-call]
        assert page.execute_script("return arguments[0].scrollTop", box) > 0, table  # type: ignore[no-untyped-call]


CUT_OFF_SCRIPT = """
const seen = Array.from(document.querySelectorAll(".scroll, thead th, tbody th bdi")).filter((one) => one.offsetParent);
return seen.filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
  .map((one) => one.ariaLabel || one.textContent);
"""
"""Script that returns the elements that are wider than the space they have."""


@pytest.mark.parametrize("count", [8, pytest.param(17, marks=pytest.mark.slow), 40])
def test_any_number_of_generators_is_shown_at_1280_pixels_with_nothing_cut_off(
    browser: WebDriver, tmp_path: Path, count: int
) -> None:
    """One generator improved, one prompt failed everywhere, and the names of checkpoints differ only at the end."""
    draw = np.random.default_rng(count)
    steps = [f"flint-lr{draw.integers(1, 9)}e-5-step-{number:05d}00" for number in range(count // 2)]
    names = draw.permutation([*steps, *(f"model-{number}" for number in range(count - len(steps)))]).tolist()

    def score(better: float) -> Score:
        return lambda name, metric, prompt: (
            None if prompt == 5 else draw_noisy_score(name, metric, prompt) + better * (name == names[3])
        )

    for run_id, better in (("20250101-000000-000000", 0), ("20250102-000000-000000", 0.1)):
        run = make_run(
            tmp_path,
            prompts=make_plain_prompts(20),
            generators=names,
            score=score(better),
            skills=False,
            run_id=run_id,
            first_recipe=int(10 * better),
        )
    write_report(run.store, compare="previous")
    page = open_page(browser, run.folder / "report.html", 1280)
    assert page.execute_script(CUT_OFF_SCRIPT) == []  # type: ignore[no-untyped-call]
    heads, rows = (read_texts(page, f"[data-panel=gecko] table.matrix {part} th") for part in ("thead", "tbody"))
    assert len({*heads}) == len({*rows}) == count
    assert heads == rows if count == 8 else rows == [f"{at} {row.partition(' ')[2]}" for at, row in enumerate(rows, 1)]
    sides = "#sides article:first-child thead th"
    assert {*read_texts(page, sides)} == {*names} and len(find(page, f"{sides} img")) == count
    assert max(read_sizes(page, f"{sides} img:first-of-type", "right")) < 1280
    charts = find(page, "#spread .chart")
    assert charts
    for chart in charts:
        words = read_texts(page, "text", chart)
        assert len([word for word in {*words} if not word.replace(".", "").isdigit()]) == count
    assert [row.split()[:2] for row in read_texts(page, "#changes tbody tr")] == [
        [names[3], "gecko"],
        [names[3], "clipscore"],
    ]
    health = find(page, "#health")[0].text
    assert f"1 prompt has no score by any metric for any generator: p0005 ({2 * count} rows)." in health
    assert "further rows" not in health


@pytest.fixture(scope="module")
def rated_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a run with people's ratings, which disagree with one of the metrics; return its path."""
    folder = tmp_path_factory.mktemp("judged")

    def score(generator: str, metric: str, prompt: int) -> float:
        return draw_noisy_score(generator, "fit", prompt) + 1.5 * (metric == "clipscore" and generator == "cobalt")

    run = make_run(folder, prompts=make_plain_prompts(24), score=score)
    rated = [
        f"{name}-p{at:04d},{1 + 4 * draw_noisy_score(name, 'fit', at):.2f}"
        for name in QUALITY_BY_GENERATOR
        for at in range(16)
    ]
    (folder / "ratings.csv").write_text("\n".join(["image_id,rating", *rated]) + "\n")
    run_for_output("report", f"store={folder}/store", "protocol=long", f"protocol.path={folder}/ratings.csv")
    return run.folder / "report.html"


def test_peoples_ratings_next_to_metrics_are_accessible(browser: WebDriver, rated_report: Path, width: int) -> None:
    """The page is tested with the dark theme on a desktop and with the light theme on a phone."""
    set_preferred_scheme(browser, "dark" if width == DESKTOP_WIDTH else "light")
    page = open_page(browser, rated_report, width)
    page.execute_script("document.querySelectorAll('#people details').forEach((each) => { each.open = true; })")  # type: ignore[no-untyped-call]
    assert (
        "clipscore contradicts people on atlas and cobalt: people find atlas better by +"
        in page.page_source.replace("</b>", "")
    )
    cards, charts = find(page, "#people .card"), find(page, "#people figure svg")
    widths = page.execute_script(
        "return Array.from(document.querySelectorAll('#people .card img')).map((one) => one.naturalWidth)"
    )  # type: ignore[no-untyped-call]
    assert len(widths) == len(cards) > 0 and min(widths) > 0
    captions = [caption.text for caption in find(page, "#people figcaption")]
    assert captions == ["likert, with gecko", "likert, with clipscore", "ratings by likert"]
    assert len(charts) == 3 and all(chart.size["width"] > 200 for chart in charts)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    assert find_accessibility_problems(page) == []
    set_preferred_scheme(browser, "")
