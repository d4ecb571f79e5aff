"""WISE_Verified (Niu et al. 2025): an explanation of what a right image shows, for each of 1,000 prompts.

Source: PKU-YuanGroup/WISE, `data_verified/merge.json`, or the folder with its three parts: objects with `Prompt`,
`Explanation` and `prompt_id`. A prompt's category follows from its number, as in `calculate_verified.py`, and is its
skill. The overall score, 0.4 culture and 0.12 of each other, is the mean over all prompts, for so many they are. Both
conventions read the files alike.
"""

from collections.abc import Iterator

from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    Line,
    PackRow,
    PackRows,
    read_lines,
    read_rows,
    the_id,
    the_text,
)

PARTS = ("cultural_common_sense", "spatio-temporal_reasoning", "natural_science")
LAST = {"culture": 400, "time": 520, "space": 640, "biology": 760, "physics": 880, "chemistry": 1000}
"""Of every category the last prompt's number."""


def read(place: Place, convention: Convention) -> PackRows:
    """The explanations of merge.json, or of the three files of a folder."""
    whole = place.path.lower().endswith(".json")
    for file in [place] if whole else [place / f"{part}_verified.json" for part in PARTS]:
        yield from read_rows(read_lines(file), _row)


def _row(line: Line) -> Iterator[PackRow]:
    prompt_id = the_id(line.values, "prompt_id")
    number = int(prompt_id) if prompt_id.isdecimal() else 0
    category = next((name for name, last in LAST.items() if 0 < number <= last), None)
    if category is None:
        raise Refused("no_category", f"expected 'prompt_id' from 1 to 1000, found {prompt_id}")
    asked = WrittenQuestion("1", the_text(line.values, "Explanation"), (), kind=category)
    yield PackRow(line.where, prompt_id, the_text(line.values, "Prompt"), asked, (category,))
