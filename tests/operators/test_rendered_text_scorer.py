"""The text metric in this process: a prompt that quotes words has a score, one that quotes none its reason."""

from pathlib import Path

from plumbline.jobs.scorer import open_scorer
from tests.operators import tiny
from tests.operators.tiny import detectors


def test_quoted_words_are_compared_with_what_a_reader_reads(tmp_path: Path) -> None:
    reader = f"+models.reader={{family: got_ocr2, checkpoint: {detectors.save_got_ocr2(tmp_path / 'reader')}}}"
    scorer = open_scorer("metric=[text]", "models=shapes", reader)
    image = tiny.encoded(tiny.picture(0))
    prompts = ['a sign "OPEN 24 hours"', "a cat", 'a sign "Привет"', 'a sign "OPEN"', 'a sign "OPEN"']
    scored = scorer.score([image, image, image, b"no image", [image, image]], prompts).to_pylist()
    kinds = [row["error"]["kind"] if row["error"] else None for row in scored]
    assert kinds == [None, "no_text_wanted", "unknown_script", "corrupt_image", None]
    read, *_, film = scored
    assert [element["wanted"] for element in read["elements"]] == ["open", "24", "hours", None]
    assert 0 <= read["score"] <= 1 and {rating["name"] for rating in read["ratings"]} > {"flow_grpo", "oneig"}
    assert len(film["elements"]) == 2
