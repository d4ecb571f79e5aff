"""The comparison with other packages measures and writes its page; here it runs Plumbline's command alone."""

import json
from pathlib import Path

from tests.benchmarks.peers.__main__ import main
from tests.benchmarks.size import choose_size


def test_the_comparison_writes_a_page_with_what_it_measured(tmp_path: Path) -> None:
    images = choose_size(200, 12)
    sizes = ["--images", f"{images}", "--side", "64", "--corrupt", f"{images}", "--asked", "2", "--many", "2"]
    own = ["--measures", "vqascore", "--only", "Plumbline, in process", "--cases", "corrupt", "asked"]
    page, record = tmp_path / "compare.md", tmp_path / "compare.json"
    assert main([*sizes, *own, "--folder", f"{tmp_path}", "--json", f"{record}", "--page", f"{page}"]) == 0
    (contender,) = json.loads(record.read_text())["contenders"]
    runs = contender["runs"]
    assert (runs["base"]["scored"], runs["base"]["measured"]["exit_code"]) == (images, 0)
    assert (runs["corrupt"]["scored"], runs["corrupt"]["nulls"]) == (images - 1, 1)
    assert runs["asked"]["scored"] == 20
    assert runs["base"]["measured"]["cpu_seconds"] > 1 and runs["base"]["measured"]["rss_bytes"] > 1e8
    assert f"{images - 1:,} of {images:,} scored, a null with its reason" in page.read_text()
