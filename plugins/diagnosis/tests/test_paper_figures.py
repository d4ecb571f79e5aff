"""The plugin's page compares the paper's figures with figures computed from the published files."""

from plumbline.assets.making.paper_figures import make_published_tables
from plumbline.operators.report.rendering import format_tables_markdown
from plumbline.pipelines.base.storage import StorageConfig
from tests.pipelines.metaeval.releases.files import NEEDS_REFERENCE_DATA, REFERENCE_FOLDER, ROOT


@NEEDS_REFERENCE_DATA
def test_the_page_shows_the_figures_of_the_published_files() -> None:
    tables = make_published_tables(StorageConfig().locate(str(REFERENCE_FOLDER)))
    assert format_tables_markdown(tables, 3).strip() in (ROOT / "plugins/diagnosis/README.md").read_text()
    correlations, _, questions = tables
    lengths = next(row for row in correlations.rows if row[1:3] == ("TIFA", "length"))
    assert lengths[3:6] == ("−0.74 to −0.45", "−0.42 to −0.17", "−0.78 to −0.61")
    assert [row[3] for row in questions.rows[:3]] == ["898", "100.0%", "100.0%"]
