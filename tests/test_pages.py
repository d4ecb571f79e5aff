"""The docs are consistent: every link has a target, every promise names its test, every page is on the site."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "plugins").glob("*/*.md")),
]
LINK_PATTERN = re.compile(r"\]\(([^)\s]+)\)")


def remove_code(page: Path) -> str:
    """Return the text of the page without its fenced and indented code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site generate them."""
    headings = re.findall(r"^#+ (.*)$", remove_code(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_has_a_target(page: Path) -> None:
    for link in LINK_PATTERN.findall(remove_code(page)):
        if "://" in link:
            continue
        address, _, anchor = link.partition("#")
        target = (page.parent / address).resolve() if address else page
        assert target.exists(), link
        assert not anchor or anchor in list_anchors(target), link
        assert not is_in_site(page) or is_in_site(target), f"{link} is not in the site"


def is_in_site(path: Path) -> bool:
    """Return True if the site contains the file: everything in docs/, and pages and images in the plugins' folders."""
    place = path.relative_to(ROOT)
    return place.parts[0] == "docs" or (place.parts[0] == "plugins" and place.suffix in (".md", ".png"))


def test_every_page_is_in_the_sites_navigation() -> None:
    text = (ROOT / "zensical.toml").read_text()
    tomllib.loads(text)
    pages = {str(page.relative_to(ROOT)).removeprefix("docs/") for page in PAGES if is_in_site(page)}
    assert pages <= set(re.findall(r'"([\w/-]+\.md)"', text))


def test_the_reference_has_every_exported_name() -> None:
    stubs = "".join((ROOT / "plumbline" / f"{name}.pyi").read_text() for name in ("__init__", "statistics"))
    exported = {
        f"plumbline.{module}.{name}" for module, name in re.findall(r"^from \.(\S+) import (\w+)", stubs, re.MULTILINE)
    }
    text = (ROOT / "docs/reference.md").read_text()
    assert exported == set(re.findall(r"^::: (\S+)$", text, re.MULTILINE)) and len(exported) > 15


@pytest.mark.parametrize(("page", "least"), [("security", 20), ("reliability", 10)])
def test_every_promise_on_a_page_names_tests_that_exist(page: str, least: int) -> None:
    """A promise is a row of a table whose last column is `test`."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    tables = re.findall(r"^\|.*\| test \|\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    promises = [line for table in tables for line in table.splitlines()]
    for promise in promises:
        named = re.findall(r"`((?:tests|plugins)/[a-z_/]+\.py)::(test_[a-z0-9_]+)`", promise)
        assert named, promise
        for file, name in named:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
    assert len(promises) > least


def test_every_make_target_that_is_named_exists_and_help_lists_all() -> None:
    makefile = (ROOT / "Makefile").read_text()
    listed = re.findall(r"^([a-z0-9-]+):.*  ## \S", makefile, flags=re.MULTILINE)
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    assert listed[0] == "help" and set(listed) == set(phony.split())
    quoted = {name for page in PAGES for name in re.findall(r"\bmake ([a-z0-9-]+)`", page.read_text())}
    commands = {
        name for page in PAGES for name in re.findall(r"^    make ([a-z0-9-]+)", page.read_text(), re.MULTILINE)
    }
    assert {"sweep", "test"} <= commands and (quoted | commands) - set(listed) == set()


def test_architecture_is_two_pages_with_a_short_glossary() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 200 and max(map(len, lines)) <= 120
    (glossary,) = re.findall(r"^## Glossary\n(.*?)^## ", "\n".join(lines), flags=re.DOTALL | re.MULTILINE)
    assert len(re.findall(r"^\| \*\*", glossary, flags=re.MULTILINE)) <= 25
