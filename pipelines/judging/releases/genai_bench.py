"""GenAI-Bench: 527 prompts by six image generators, each image rated by three people from 1 to 5.

Source: linzhiqiu/t2v_metrics, genai_bench_527_image_ratings.json (also released as genai_image.json):
`{prompt_id: {"id", "prompt", "prompt in Chinese"?, "models": {generator: [rating, rating, rating]}}}`. The key is the
prompt's id; the `id` within is written otherwise in some. Its skills are released in a file of their own,
genai_skills.json: `{skill: [number of the prompt, ...]}`, where prompt 7 has the id `00007`.
"""

from collections.abc import Iterator

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, ratings_by_generator, released, skills_of
from plumbline.pipelines.judging.releases.tables import as_list, beside, exists, read_json

SKILLS = "genai_skills.json"


def read(location: Place) -> Release:
    """The ratings by raters 0 to 2, images named `<prompt_id>/<generator>`; with skills where their file is beside."""
    ratings = ratings_by_generator(location)
    file = beside(location, SKILLS)
    skills = skills_of(_prompts_with_skills(file)) if exists(file) else {}
    rated = {prompt_id: skills[prompt_id] for prompt_id in skills.keys() & {rating.prompt_id for rating in ratings}}
    notes = [] if skills else [f"no {SKILLS} beside the ratings: no skills"]
    if unrated := len(skills) - len(rated):
        notes.append(f"{unrated} prompts of {SKILLS} are not rated")
    return released(ratings=ratings, skills=rated, notes=notes)


def _prompts_with_skills(location: Place) -> Iterator[tuple[str, str]]:
    prompts_by_skill = read_json(location)
    if not isinstance(prompts_by_skill, dict):
        kind = type(prompts_by_skill).__name__
        raise SourceError(f"{location.url}: expected an object of prompts by skill, found {kind}")
    for skill, prompts in prompts_by_skill.items():
        for prompt in as_list(prompts, "prompt numbers", f"{location.url}, {skill!r}"):
            yield (f"{prompt:05d}" if isinstance(prompt, int) else str(prompt)), skill
