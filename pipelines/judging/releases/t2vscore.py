"""T2VScore's text-to-video ratings: 2,543 videos of 512 prompts by five generators, and four metrics' scores of them.

Source: linzhiqiu/t2v_metrics, a folder with t2vscore_human_ratings.json (upstream's t2vscore_alignment_score.json),
`{video_id: {"prompt", "models": {generator: [rating]}}}`, and t2vscore_results.csv, whose columns are model_name (the
generator), video_id, prompt, and one per metric. A `video_id` is a prompt's: it has a video by each generator. The one
rating of a video is not a whole number, so it is a mean over people.
"""

import pyarrow as pa

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, ratings_by_generator, released
from plumbline.pipelines.judging.releases.scores import check_once, wide_scores
from plumbline.pipelines.judging.releases.tables import one_that_exists, read_sheet

RATINGS = ("t2vscore_human_ratings.json", "t2vscore_alignment_score.json")
SCORES = "t2vscore_results.csv"
DESCRIPTIONS = ("model_name", "video_id", "prompt")


def read(location: Place) -> Release:
    """The ratings and scores, which meet in images named `<video_id>/<generator>`; what meets nothing is kept too."""
    ratings = ratings_by_generator(one_that_exists(location, RATINGS))
    scores = _scores(location / SCORES)
    rated, scored = {rating.image_id for rating in ratings}, set(scores.column("image_id").to_pylist())
    unmatched = {"rated videos have no score": rated - scored, "scored videos have no rating": scored - rated}
    notes = [f"{len(videos)} {what}" for what, videos in unmatched.items() if videos]
    return released(ratings=ratings, scores=scores, notes=["a video has one rating, a mean over its raters", *notes])


def _scores(location: Place) -> pa.Table:
    sheet = read_sheet(location).require(DESCRIPTIONS, "is this the file that t2v_metrics releases?")
    prompts, generators = sheet.ids("video_id"), sheet.ids("model_name")
    images = [f"{prompt}/{generator}" for prompt, generator in zip(prompts, generators, strict=True)]
    ids = {"image_id": images, "prompt_id": prompts, "generator": generators}
    metrics = {name: sheet.numbers(name) for name in sheet.names if name not in DESCRIPTIONS}
    return check_once(wide_scores(ids, metrics), location.url, len(sheet))
