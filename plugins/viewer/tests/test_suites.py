"""The viewer shows the page of a suite."""

from pathlib import Path

from plugins.viewer.tests.page_client import open_client
from tests.commands import open_store_at, run


def test_the_viewer_lists_and_shows_a_suite(tmp_path: Path) -> None:
    words = ("benchmarks=[shapes,shapes_spatial]", "models=shapes", "metric=[edge_density]", "limit=2", "cluster=here")
    assert run("sweep", "sweep=suite", *words, f"store={tmp_path}/store").code == 0
    (folder,) = (tmp_path / "store/suites").iterdir()
    with open_client(open_store_at(tmp_path / "store"), tmp_path / "rows") as ask:
        page = f"/suites/{folder.name}/report.html"
        assert f'<a href="{page}"><bdi>shapes, shapes_spatial</bdi>' in ask("/").text
        assert ask(page).text == (folder / "report.html").read_text()
        assert ask("/suites/nobodys/report.html").status_code == ask("/suites/%2e%2e/report.html").status_code == 404
