"""GenAI-Bench: 527 prompts by six image generators, each image rated by three people from 1 to 5.

Source: linzhiqiu/t2v_metrics, genai_bench_527_image_ratings.json (also released as genai_image.json):
`{prompt_id: {"id", "prompt", "prompt in Chinese"?, "models": {generator: [rating, rating, rating]}}}`. The key is the
prompt's id; the `id` within is written otherwise in some. Its skills are released in a file of their own,
genai_skills.json: `{skill: [number of the prompt, ...]}`, where prompt 7 has the id `00007`.
"""

from collections.abc import Mapping, Sequence

from operators.errors import SourceError
from pipelines.judging.releases.ratings import empty_notes, ratings_by_generator, ratings_table
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.tables import as_list, beside, exists, read_json
from pipelines.storage import Location

SKILLS = "genai_skills.json"


def read(location: Location) -> Release:
    """The ratings by raters 0 to 2, images named `<prompt_id>/<generator>`; with skills where their file is beside."""
    found = ratings_by_generator(location)
    ratings = ratings_table(found)
    file = beside(location, SKILLS)
    skills = _skills(file) if exists(file) else {}
    prompts = set(ratings.column("prompt_id").to_pylist())
    notes = [] if skills else [f"no {SKILLS} beside the ratings: no skills"]
    if others := len(skills.keys() - prompts):
        notes.append(f"{others} prompts of {SKILLS} are not rated")
    given = {prompt_id: names for prompt_id, names in skills.items() if prompt_id in prompts}
    return Release(ratings=ratings, skills=given, notes=[*empty_notes(ratings), *notes])


def _skills(location: Location) -> Mapping[str, Sequence[str]]:
    by_skill = read_json(location)
    if not isinstance(by_skill, dict):
        raise SourceError(f"{location.url}: expected an object of prompts by skill, found {type(by_skill).__name__}")
    skills: dict[str, list[str]] = {}
    for skill, prompts in by_skill.items():
        for prompt in as_list(prompts, "prompt numbers", f"{location.url}, {skill!r}"):
            skills.setdefault(_prompt_id(prompt), []).append(skill)
    return skills


def _prompt_id(prompt: object) -> str:
    return f"{prompt:05d}" if isinstance(prompt, int) else str(prompt)
