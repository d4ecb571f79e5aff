"""The ratings that linzhiqiu/t2v_metrics releases: GenAI-Bench's images and T2VScore's videos."""

from collections.abc import Iterator

import pyarrow as pa

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, ratings_by_generator, released, skills_of
from plumbline.pipelines.judging.releases.scores import check_once, wide_scores
from plumbline.pipelines.judging.releases.sheets import as_list, beside, exists, one_that_exists, read_json, read_sheet

SKILLS = "genai_skills.json"


def read_genai_bench(place: Place) -> Release:
    """The ratings by raters 0 to 2, images named `<prompt_id>/<generator>`; with skills where their file is beside.

    GenAI-Bench: 527 prompts by six image generators, each image rated by three people from 1 to 5.

    Source: linzhiqiu/t2v_metrics, genai_bench_527_image_ratings.json (also released as genai_image.json): `{prompt_id:
    {"id", "prompt", "prompt in Chinese"?, "models": {generator: [rating, rating, rating]}}}`. The key is the prompt's
    id; the `id` within is written otherwise in some. Its skills are released in a file of their own, genai_skills.json:
    `{skill: [number of the prompt, ...]}`, where prompt 7 has the id `00007`.
    """
    ratings = ratings_by_generator(place)
    file = beside(place, SKILLS)
    skills = skills_of(_prompts_with_skills(file)) if exists(file) else {}
    rated = {prompt_id: skills[prompt_id] for prompt_id in skills.keys() & {rating.prompt_id for rating in ratings}}
    notes = [] if skills else [f"no {SKILLS} beside the ratings: no skills"]
    if unrated := len(skills) - len(rated):
        notes.append(f"{unrated} prompts of {SKILLS} are not rated")
    return released(ratings=ratings, skills=rated, notes=notes)


def _prompts_with_skills(place: Place) -> Iterator[tuple[str, str]]:
    prompts_by_skill = read_json(place)
    if not isinstance(prompts_by_skill, dict):
        kind = type(prompts_by_skill).__name__
        raise SourceError(f"{place.url}: expected an object of prompts by skill, found {kind}")
    for skill, prompts in prompts_by_skill.items():
        for prompt in as_list(prompts, "prompt numbers", f"{place.url}, {skill!r}"):
            yield (f"{prompt:05d}" if isinstance(prompt, int) else str(prompt)), skill


RATINGS = ("t2vscore_human_ratings.json", "t2vscore_alignment_score.json")
SCORES = "t2vscore_results.csv"
DESCRIPTIONS = ("model_name", "video_id", "prompt")


def read_t2vscore(place: Place) -> Release:
    """The ratings and scores, which meet in images named `<video_id>/<generator>`; what meets nothing is kept too.

    T2VScore's text-to-video ratings: 2,543 videos of 512 prompts by five generators, and four metrics' scores of them.

    Source: linzhiqiu/t2v_metrics, a folder with t2vscore_human_ratings.json (upstream's t2vscore_alignment_score.json),
    `{video_id: {"prompt", "models": {generator: [rating]}}}`, and t2vscore_results.csv, whose columns are model_name
    (the generator), video_id, prompt, and one per metric. A `video_id` is a prompt's: it has a video by each generator.
    The one rating of a video is not a whole number, so it is a mean over people.
    """
    ratings = ratings_by_generator(one_that_exists(place, RATINGS))
    scores = _scores(place / SCORES)
    rated, scored = {rating.image_id for rating in ratings}, set(scores.column("image_id").to_pylist())
    unmatched = {"rated videos have no score": rated - scored, "scored videos have no rating": scored - rated}
    notes = [f"{len(videos)} {what}" for what, videos in unmatched.items() if videos]
    return released(ratings=ratings, scores=scores, notes=["a video has one rating, a mean over its raters", *notes])


def _scores(place: Place) -> pa.Table:
    sheet = read_sheet(place).require(DESCRIPTIONS, "is this the file that t2v_metrics releases?")
    prompts, generators = sheet.ids("video_id"), sheet.ids("model_name")
    images = [f"{prompt}/{generator}" for prompt, generator in zip(prompts, generators, strict=True)]
    ids = {"image_id": images, "prompt_id": prompts, "generator": generators}
    metrics = {name: sheet.numbers(name) for name in sheet.names if name not in DESCRIPTIONS}
    return check_once(wide_scores(ids, metrics), place.url, len(sheet))
