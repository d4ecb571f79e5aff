"""Ratings of whole images: TIFA160 and DSG's, GenAI-Bench, StanfordT23D, T2VScore, Flickr8K-CF and SeeTRUE."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import AGAIN, as_object
from plumbline.pipelines.judging.releases.release import (
    Rating,
    Release,
    column_ratings,
    listed_ratings,
    rating_value,
    ratings_by_generator,
    released,
    skills_of,
)
from plumbline.pipelines.judging.releases.scores import check_once, wide_scores
from plumbline.pipelines.judging.releases.sheets import (
    Sheet,
    as_list,
    as_text,
    exists,
    one_that_exists,
    read_content,
    read_objects,
    read_sheet,
    read_text,
    row_name,
    sheet_of,
)
from plumbline.pipelines.sources.prompt_files import read_skills

TIFA_DESCRIPTIONS = ("text_id", "image_path", "text", "human_scores", "human_avg")


def read_tifa160(place: Place) -> Release:
    """The file's ratings by raters 0 and 1, and its metrics' scores under their names in the file.

    TIFA160: 800 images of 160 prompts by five generators, each rated twice, and what ten metrics score them.

    Source: Yushi-Hu/tifa, human_annotations/human_annotations_with_scores.json, and human_annotations.json, which has
    the ratings alone: `{image: {"text_id", "image_path", "text", "human_scores": [1-5, 1-5], "human_avg", <metric>:
    number}}`. An image is named `<text_id>_<generator>`. What is no description is a metric.
    """
    records = read_objects(place)
    names = list(dict.fromkeys(name for record in records.values() for name in record))
    metrics = [name for name in names if name not in TIFA_DESCRIPTIONS]
    sheet = sheet_of(place.url, names, records.values(), ["text_id", *metrics])
    ids = {"image_id": list(records), "prompt_id": sheet.ids("text_id"), "generator": list[str]()}
    ratings = []
    for row, (image_id, prompt_id) in enumerate(zip(records, ids["prompt_id"], strict=True)):
        where = row_name(place.url, row, image_id)
        generator = image_id.removeprefix(f"{prompt_id}_")
        if generator in ("", image_id):
            raise SourceError(f"{where}: expected an image named {prompt_id}_<generator>; is this the released file?")
        ids["generator"].append(generator)
        ratings += listed_ratings(records[image_id].get("human_scores"), image_id, prompt_id, generator, where)
    return released(ratings=ratings, scores=wide_scores(ids, {name: sheet.numbers(name) for name in metrics}))


LIKERT_FILE = "tifa160-likert-anns.csv"
LIKERT_COLUMNS = ("item_id", "source_id", "worker_id", "answer")
GENERATOR_COLUMNS = ("t2i_model", "model_type")
TIFA_GENERATORS = {
    "mini-dalle": "mini_dalle",
    "vq-diffusion": "vq_diffusion",
    "sd1dot1": "stable_diffusion_v1_1",
    "sd1dot5": "stable_diffusion_v1_5",
    "sd2dot1": "stable_diffusion_v2_1",
}
"""What TIFA calls the generators."""
RELEASED = "is this j-min/DSG's tifa160-likert-anns.csv?"


def read_dsg_tifa160(place: Place) -> Release:
    """The table's ratings; a prompt's skill is the set that TIFA took it from (coco, drawbench, ...).

    DSG's Likert ratings of TIFA160's images: 800 images of 160 prompts by five generators, each rated by five people.

    Source: j-min/DSG, `dsg/data/tifa160-likert-anns.csv`: dsg_prompt_split, t2i_model, item_id (DSG's name of the
    prompt), source_id (TIFA's), worker_id, question, answer (1 to 5). linzhiqiu/t2v_metrics has the same table as
    dsg_tifa160_anns.csv, where the first two columns are data_type and model_type.

    An image is named as TIFA names it, `<source_id>_<generator>` with the generator's name there, so that TIFA160's own
    scores meet it; prompt and generator have DSG's names, by which DSG's answers do.
    """
    sheet = read_sheet(place)
    generator = next((name for name in GENERATOR_COLUMNS if name in sheet.names), GENERATOR_COLUMNS[0])
    sheet.require((*LIKERT_COLUMNS, generator), RELEASED)
    prompts, sources, generators = (sheet.ids(name) for name in ("item_id", "source_id", generator))
    images = [f"{source}_{TIFA_GENERATORS.get(name, name)}" for source, name in zip(sources, generators, strict=True)]
    ratings = column_ratings(
        sheet, images, prompts, sheet.texts("answer"), generators=generators, raters=sheet.ids("worker_id")
    )
    sets = (source.rpartition("_")[0] for source in sources)
    return released(ratings=ratings, skills=skills_of(zip(prompts, sets, strict=True)))


GENAI_SKILLS = "genai_skills.json"


def read_genai_bench(place: Place) -> Release:
    """The ratings by raters 0 to 2, images named `<prompt_id>/<generator>`; with skills where their file is beside.

    GenAI-Bench: 527 prompts by six image generators, each image rated by three people from 1 to 5.

    Source: linzhiqiu/t2v_metrics, genai_bench_527_image_ratings.json (also released as genai_image.json): `{prompt_id:
    {"id", "prompt", "prompt in Chinese"?, "models": {generator: [rating, rating, rating]}}}`. The key is the prompt's
    id; the `id` within is written otherwise in some. Its skills are released in a file of their own, genai_skills.json:
    `{skill: [number of the prompt, ...]}`, where prompt 7 has the id `00007`.
    """
    ratings = ratings_by_generator(place)
    file = place.parent / GENAI_SKILLS
    skills = read_skills(read_content(file), file.url) if exists(file) else {}
    rated = {prompt_id: skills[prompt_id] for prompt_id in skills.keys() & {rating.prompt_id for rating in ratings}}
    notes = [] if skills else [f"no {GENAI_SKILLS} beside the ratings: no skills"]
    if unrated := len(skills) - len(rated):
        notes.append(f"{unrated} prompts of {GENAI_SKILLS} are not rated")
    return released(ratings=ratings, skills=rated, notes=notes)


def read_stanfordt23d(place: Place) -> Release:
    """Return the ratings by raters 0 to 2 of 3D assets, which are named `<prompt_id>/<generator>`.

    StanfordT23D: 360 assets of 60 prompts by six generators, each rated by three people from 1 to 5.

    Source: linzhiqiu/t2v_metrics, datasets/stanfordt23d.json: `{prompt_id: {"prompt", "models": {generator: [rating,
    rating, rating]}}}`. The released code leaves out `shap-e`, whose name it writes with a space.
    """
    return released(ratings=ratings_by_generator(place))


T2VSCORE_RATINGS = ("t2vscore_human_ratings.json", "t2vscore_alignment_score.json")
T2VSCORE_SCORES = "t2vscore_results.csv"
T2VSCORE_DESCRIPTIONS = ("model_name", "video_id", "prompt")


def read_t2vscore(place: Place) -> Release:
    """The ratings and scores, which meet in images named `<video_id>/<generator>`; what meets nothing is kept too.

    T2VScore's text-to-video ratings: 2,543 videos of 512 prompts by five generators, and four metrics' scores of them.

    Source: linzhiqiu/t2v_metrics, a folder with t2vscore_human_ratings.json (upstream's t2vscore_alignment_score.json),
    `{video_id: {"prompt", "models": {generator: [rating]}}}`, and t2vscore_results.csv, whose columns are model_name
    (the generator), video_id, prompt, and one per metric. A `video_id` is a prompt's: it has a video by each generator.
    The one rating of a video is not a whole number, so it is a mean over people.
    """
    ratings = ratings_by_generator(one_that_exists(place, T2VSCORE_RATINGS))
    scores = _t2vscore_scores(place / T2VSCORE_SCORES)
    rated, scored = {rating.image_id for rating in ratings}, set(scores.column("image_id").to_pylist())
    unmatched = {"rated videos have no score": rated - scored, "scored videos have no rating": scored - rated}
    notes = [f"{len(videos)} {what}" for what, videos in unmatched.items() if videos]
    return released(ratings=ratings, scores=scores, notes=["a video has one rating, a mean over its raters", *notes])


def _t2vscore_scores(place: Place) -> pa.Table:
    sheet = read_sheet(place).require(T2VSCORE_DESCRIPTIONS, "is this the file that t2v_metrics releases?")
    prompts, generators = sheet.ids("video_id"), sheet.ids("model_name")
    images = [f"{prompt}/{generator}" for prompt, generator in zip(prompts, generators, strict=True)]
    ids = {"image_id": images, "prompt_id": prompts, "generator": generators}
    metrics = {name: sheet.numbers(name) for name in sheet.names if name not in T2VSCORE_DESCRIPTIONS}
    return check_once(wide_scores(ids, metrics), place.url, len(sheet))


SHARE = "share_yes"
FLICKR_FIELDS = ("the image", "the caption's id", "the share of yeses", "the yeses", "the noes")
ROUNDING = 1e-3


def read_flickr8k_cf(place: Place) -> Release:
    """One rating for each judged pair: the share of yeses, from 0 to 1.

    Flickr8K-CF: how many people of CrowdFlower said that a caption describes a photo.

    Sources, of which either is read:
    - the Flickr8k release, CrowdFlowerAnnotations.txt, tab separated and without a header: the image's file, the
      caption's id (`<image file>#<number>`), the share of people who said yes, the number of yeses, the number of noes
      (3 or more in all);
    - jmhessel/clipscore, crowdflower_flickr8k.json, which its download.py makes: `{image file: {"image_path",
      "ground_truth", "human_judgement": [{"image_path", "caption", "rating"}]}}`, where `rating` is that share. Here a
      caption has no id, so it is its own, and one whose text stands twice with an image counts as rated by a further
      person.
    The photos have no generator.
    """
    ratings = _of_json(place) if place.path.lower().endswith(".json") else _of_text(place)
    again = sum(rating.rater != "0" for rating in ratings)
    notes = [f"{again} captions stand with the same image again: they count as further raters'"] if again else []
    return released(ratings=ratings, notes=notes)


def _of_text(place: Place) -> list[Rating]:
    lines = read_text(place).split("\n")
    return [_of_line(line, f"{place.url}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _of_line(line: str, where: str) -> Rating:
    cells = line.rstrip("\r").split("\t")
    if len(cells) != len(FLICKR_FIELDS):
        raise SourceError(
            f"{where}: expected {', '.join(FLICKR_FIELDS)} between tabs, found {len(cells)} fields; {AGAIN}"
        )
    image, caption, *counts = cells
    share, *votes = (rating_value(cell, where) for cell in counts)
    yes, no = (math.nan if number is None else number for number in votes)
    if share is not None and abs(share * (yes + no) - yes) > ROUNDING * (yes + no):
        raise SourceError(f"{where}: {yes:g} yeses and {no:g} noes are not a share of {share:g}; correct one of them")
    return _share_rating(image, caption, 0, share, where)


def _of_json(place: Place) -> list[Rating]:
    return [
        rating
        for row, (image, record) in enumerate(read_objects(place).items())
        for rating in _of_image(image, record, row_name(place.url, row, image))
    ]


def _of_image(image: str, record: Mapping[str, Any], where: str) -> list[Rating]:
    raters: Counter[str] = Counter()
    ratings = []
    for number, given in enumerate(as_list(record.get("human_judgement"), "judgements (human_judgement)", where)):
        at = f"{where}, judgement {number}"
        judgement = as_object(given, at)
        caption = as_text(judgement, "caption", at)
        share = rating_value(judgement.get("rating"), at)
        ratings.append(_share_rating(image, caption, raters[caption], share, at))
        raters[caption] += 1
    return ratings


def _share_rating(image: str, caption: str, rater: int, share: float | None, where: str) -> Rating:
    if share is not None and not 0 <= share <= 1:
        raise SourceError(
            f"{where}: expected a share of yeses from 0 to 1, found {share:g}; is this the experts' file "
            "(ExpertAnnotations.txt, flickr8k.json)? Those ratings are 1 to 4: read them as a long table"
        )
    return Rating(image, caption, None, str(rater), SHARE, share, where)


SEETRUE_COLUMNS = ("image", "text", "label", "dataset_source")
ORIGIN = "original_dataset_id"
IMAGE = "image.path"
"""Where the dataset's Parquet has the image itself, with its name beside it."""
SEETRUE = "is this SeeTRUE's file?"


def read_seetrue(place: Place) -> Release:
    """The labels as ratings 0 and 1 of rater 0; a text's skills are the sets it is from.

    SeeTRUE: image and text pairs with a binary label, from DrawBench, COCO, EditBench, Winoground and others.

    Source: yonatanbitton/SeeTRUE, SeeTRUE.csv (the same file is in linzhiqiu/t2v_metrics) or its Parquet: image (the
    file's name), text, label (1 where the text fits the image), original_dataset_id, dataset_source. The text has no
    id, so it is its own; `original_dataset_id` tells the pair and not the text. An image may stand with several texts.

    A pair that stands there again under another `original_dataset_id` counts as labelled by a further rater.
    """
    image = IMAGE if place.path.lower().endswith(".parquet") else "image"
    sheet = _with_names(read_sheet(place, [image, *SEETRUE_COLUMNS[1:], ORIGIN]).require(SEETRUE_COLUMNS, SEETRUE))
    images, texts = sheet.ids("image"), sheet.ids("text")
    raters = _raters(list(zip(images, texts, strict=True)), sheet.texts(ORIGIN))
    ratings = column_ratings(sheet, images, texts, _labels(sheet), raters=raters, templates=["label"] * len(sheet))
    again = sum(rater != "0" for rater in raters)
    notes = [f"{again} pairs stand there again under another {ORIGIN}: they count as further raters'"] if again else []
    skills = skills_of(zip(texts, sheet.texts("dataset_source"), strict=True))
    return released(ratings=ratings, skills=skills, notes=notes)


def _with_names(sheet: Sheet) -> Sheet:
    """The table with the images' names where it has the images themselves."""
    column = sheet.table.column("image").combine_chunks()
    if not pa.types.is_struct(column.type):
        return sheet
    if column.type.get_field_index("path") < 0:
        raise SourceError(f"{sheet.url}: expected the name of each image as image.path, found none; {SEETRUE}")
    index = sheet.table.column_names.index("image")
    return replace(sheet, table=sheet.table.set_column(index, "image", column.field("path")))


def _raters(pairs: list[tuple[str, str]], origins: list[str | None]) -> list[str]:
    """For each row, how many other origins the pair had before."""
    known: dict[tuple[str, str], dict[str | None, int]] = {}
    raters = []
    for pair, origin in zip(pairs, origins, strict=True):
        numbers = known.setdefault(pair, {})
        raters.append(str(numbers.setdefault(origin, len(numbers))))
    return raters


def _labels(sheet: Sheet) -> list[float]:
    labels: list[float] = sheet.numbers("label").to_pylist()
    for row, label in enumerate(labels):
        if label not in (0.0, 1.0):
            raise SourceError(f"{sheet.where(row)}: expected a label of 0 or 1, found {label}; correct or remove it")
    return labels
