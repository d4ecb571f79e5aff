"""Reads ratings of whole images: TIFA160 (two releases), GenAI-Bench, StanfordT23D, T2VScore, Flickr8K-CF, SeeTRUE."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat

import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import DOWNLOAD_AGAIN_REMEDY, require_object
from plumbline.pipelines.metaeval.releases.release import (
    Rating,
    Release,
    group_skills,
    make_column_ratings,
    parse_rating,
    parse_ratings,
    read_ratings_by_generator,
    released,
)
from plumbline.pipelines.metaeval.releases.scores import require_unique_scores, stack_scores
from plumbline.pipelines.metaeval.releases.sheets import (
    exists,
    find_required_file,
    make_sheet,
    name_row,
    read_content,
    read_objects,
    read_sheet,
    read_text,
    require_list,
    require_text,
)
from plumbline.pipelines.sources.prompt_files import read_skills

TIFA_COLUMNS = ("text_id", "image_path", "text", "human_scores", "human_avg")


def read_tifa160(place: Place) -> Release:
    """Read TIFA160: 800 images from five generators for 160 prompts, each rated twice, with scores from ten metrics.

    Source: Yushi-Hu/tifa, human_annotations/human_annotations_with_scores.json, and human_annotations.json, which has
    only the ratings: `{image: {"text_id", "image_path", "text", "human_scores": [1-5, 1-5], "human_avg", <metric>:
    number}}`. An image is named `<text_id>_<generator>`. All fields except TIFA_COLUMNS are metrics.
    """
    records = read_objects(place)
    names = list(dict.fromkeys(name for record in records.values() for name in record))
    metrics = [name for name in names if name not in TIFA_COLUMNS]
    sheet = make_sheet(place.url, names, records.values(), ["text_id", *metrics])
    ids = {"image_id": list(records), "prompt_id": sheet.ids("text_id"), "generator": list[str]()}
    ratings = []
    for row, (image_id, prompt_id) in enumerate(zip(records, ids["prompt_id"], strict=True)):
        where = name_row(place.url, row, image_id)
        generator = image_id.removeprefix(f"{prompt_id}_")
        if generator in ("", image_id):
            raise SourceError(
                f"{where}: expected an image named {prompt_id}_<generator>; check that this is the released file"
            )
        ids["generator"].append(generator)
        ratings += parse_ratings(records[image_id].get("human_scores"), image_id, prompt_id, generator, where)
    return released(ratings=ratings, scores=stack_scores(ids, {name: sheet.numbers(name) for name in metrics}))


LIKERT_FILE = "tifa160-likert-anns.csv"
LIKERT_COLUMNS = ("item_id", "source_id", "worker_id", "answer")
GENERATOR_COLUMNS = ("t2i_model", "model_type")
TIFA_GENERATORS = {  # TIFA's names for the generators, by DSG's names
    "mini-dalle": "mini_dalle",
    "vq-diffusion": "vq_diffusion",
    "sd1dot1": "stable_diffusion_v1_1",
    "sd1dot5": "stable_diffusion_v1_5",
    "sd2dot1": "stable_diffusion_v2_1",
}
CHECK_DSG_FILE_REMEDY = "check that this is j-min/DSG's tifa160-likert-anns.csv"


def read_dsg_tifa160(place: Place) -> Release:
    """Read DSG's Likert ratings of TIFA160's 800 images (five generators, 160 prompts), each rated by five people.

    A prompt's skill is the dataset that TIFA took the prompt from (coco, drawbench, ...).

    Source: j-min/DSG, `dsg/data/tifa160-likert-anns.csv`: dsg_prompt_split, t2i_model, item_id (DSG's name for
    the prompt), source_id (TIFA's), worker_id, question, answer (1 to 5). linzhiqiu/t2v_metrics has the same table as
    dsg_tifa160_anns.csv, but its first two columns are data_type and model_type.

    An image is named `<source_id>_<generator>` with TIFA's name for the generator, so that it matches TIFA160's scores.
    Prompt and generator have DSG's names, so that they match DSG's answers.
    """
    sheet = read_sheet(place)
    generator = next((name for name in GENERATOR_COLUMNS if name in sheet.names), GENERATOR_COLUMNS[0])
    sheet.require((*LIKERT_COLUMNS, generator), CHECK_DSG_FILE_REMEDY)
    prompts, sources, generators = (sheet.ids(name) for name in ("item_id", "source_id", generator))
    images = [f"{source}_{TIFA_GENERATORS.get(name, name)}" for source, name in zip(sources, generators, strict=True)]
    ratings = make_column_ratings(
        sheet, images, prompts, sheet.texts("answer"), generators=generators, raters=sheet.ids("worker_id")
    )
    sets = (source.rpartition("_")[0] for source in sources)
    return released(ratings=ratings, skills=group_skills(zip(prompts, sets, strict=True)))


GENAI_SKILLS_FILE = "genai_skills.json"


def read_genai_bench(place: Place) -> Release:
    """Read GenAI-Bench: images from six generators for 527 prompts, each rated from 1 to 5 by three people.

    Images are named `<prompt_id>/<generator>`; skills are read if their file is in the same folder.

    Source: linzhiqiu/t2v_metrics, genai_bench_527_image_ratings.json (also released as genai_image.json): `{prompt_id:
    {"id", "prompt", "prompt in Chinese"?, "models": {generator: [rating, rating, rating]}}}`. The key is the prompt's
    id; some values of `id` differ from it. The skills are in genai_skills.json: `{skill: [number of the prompt, ...]}`,
    where prompt 7 has the id `00007`.
    """
    ratings = read_ratings_by_generator(place)
    file = place.parent / GENAI_SKILLS_FILE
    skills = read_skills(read_content(file), file.url) if exists(file) else {}
    rated = {prompt_id: skills[prompt_id] for prompt_id in skills.keys() & {rating.prompt_id for rating in ratings}}
    notes = [] if skills else [f"no {GENAI_SKILLS_FILE} next to the ratings: no skills"]
    if unrated := len(skills) - len(rated):
        notes.append(f"{unrated} prompts of {GENAI_SKILLS_FILE} are not rated")
    return released(ratings=ratings, skills=rated, notes=notes)


def read_stanfordt23d(place: Place) -> Release:
    """Read StanfordT23D: 360 3D assets from six generators for 60 prompts, each rated from 1 to 5 by three people.

    Assets are named `<prompt_id>/<generator>`.

    Source: linzhiqiu/t2v_metrics, datasets/stanfordt23d.json: `{prompt_id: {"prompt", "models": {generator: [rating,
    rating, rating]}}}`. The released code leaves out `shap-e`, whose name it spells with a space.
    """
    return released(ratings=read_ratings_by_generator(place))


T2VSCORE_RATINGS_FILES = ("t2vscore_human_ratings.json", "t2vscore_alignment_score.json")
T2VSCORE_SCORES_FILE = "t2vscore_results.csv"
T2VSCORE_COLUMNS = ("model_name", "video_id", "prompt")


def read_t2vscore(place: Place) -> Release:
    """Read T2VScore: 2,543 rated videos from five generators for 512 prompts, with scores from four metrics.

    Videos are named `<video_id>/<generator>`; ratings without scores, and scores without ratings, are kept too.

    Source: linzhiqiu/t2v_metrics, a folder with t2vscore_human_ratings.json (upstream's t2vscore_alignment_score.json),
    `{video_id: {"prompt", "models": {generator: [rating]}}}`, and t2vscore_results.csv, whose columns are model_name
    (the generator), video_id, prompt, and one per metric. A `video_id` identifies a prompt, with one video by each
    generator. Each video has a single rating, which is not an integer, so it is a mean over people.
    """
    ratings = read_ratings_by_generator(find_required_file(place, T2VSCORE_RATINGS_FILES))
    remedy = "check that this is the file that t2v_metrics releases"
    sheet = read_sheet(place / T2VSCORE_SCORES_FILE).require(T2VSCORE_COLUMNS, remedy)
    prompts, generators = sheet.ids("video_id"), sheet.ids("model_name")
    videos = [f"{prompt}/{generator}" for prompt, generator in zip(prompts, generators, strict=True)]
    ids = {"image_id": videos, "prompt_id": prompts, "generator": generators}
    metrics = {name: sheet.numbers(name) for name in sheet.names if name not in T2VSCORE_COLUMNS}
    scores = require_unique_scores(stack_scores(ids, metrics), sheet.url, len(sheet))
    rated, scored = {rating.image_id for rating in ratings}, set(videos)
    unmatched = {"rated videos have no score": rated - scored, "scored videos have no rating": scored - rated}
    notes = [f"{len(listed)} {what}" for what, listed in unmatched.items() if listed]
    return released(ratings=ratings, scores=scores, notes=["a video has one rating, a mean over its raters", *notes])


YES_FRACTION_TEMPLATE = "share_yes"
FLICKR_FIELDS = (
    "the image",
    "the caption's id",
    "the fraction of yes answers",
    "the number of yes answers",
    "the number of no answers",
)
MAX_ROUNDING_ERROR = 1e-3


def read_flickr8k_cf(place: Place) -> Release:
    """Read Flickr8K-CF: the fraction of people (0 to 1) who answered that a caption describes a photo.

    One of two sources is read:
    - the Flickr8k release, CrowdFlowerAnnotations.txt, tab-separated and without a header: the image's file, the
      caption's id (`<image file>#<number>`), the fraction of people who answered yes, the number of yes answers, and
      the number of no answers (3 or more answers in all);
    - jmhessel/clipscore, crowdflower_flickr8k.json, which its download.py makes: `{image file: {"image_path",
      "ground_truth", "human_judgement": [{"image_path", "caption", "rating"}]}}`, where `rating` is the same fraction.
      A caption's id is its text. If a text occurs twice for an image, the second rating is treated as another rater's.
    The photos have no generator.
    """
    is_json = place.path.lower().endswith(".json")
    ratings = list(_read_judgements(place) if is_json else _read_lines(place))
    for rating in ratings:
        if rating.rating is not None and not 0 <= rating.rating <= 1:
            raise SourceError(
                f"{rating.where}: expected the fraction of yes answers (0 to 1), found {rating.rating:g}; if "
                "this is the experts' file (ExpertAnnotations.txt, flickr8k.json), its ratings range from 1 to 4: read "
                "it as a long table"
            )
    again = sum(rating.rater != "0" for rating in ratings)
    notes = (
        [f"{again} captions occur again with the same image; their ratings count as those of other raters"]
        if again
        else []
    )
    return released(ratings=ratings, notes=notes)


def _read_lines(place: Place) -> Iterator[Rating]:
    for row, line in enumerate(read_text(place).split("\n"), 1):
        if not line.strip():
            continue
        where, cells = f"{place.url}, line {row}", line.rstrip("\r").split("\t")
        if len(cells) != len(FLICKR_FIELDS):
            expected = ", ".join(FLICKR_FIELDS)
            raise SourceError(
                f"{where}: expected {expected} separated by tabs, found {len(cells)} fields; {DOWNLOAD_AGAIN_REMEDY}"
            )
        image, caption, *counts = cells
        share, *votes = (parse_rating(cell, where) for cell in counts)
        yes, no = (math.nan if number is None else number for number in votes)
        if share is not None and abs(share * (yes + no) - yes) > MAX_ROUNDING_ERROR * (yes + no):
            raise SourceError(
                f"{where}: {yes:g} yes and {no:g} no answers do not give the fraction {share:g}; correct one of them"
            )
        yield Rating(image, caption, None, "0", YES_FRACTION_TEMPLATE, share, where)


def _read_judgements(place: Place) -> Iterator[Rating]:
    for row, (image, record) in enumerate(read_objects(place).items()):
        where, raters = name_row(place.url, row, image), Counter[str]()
        for number, value in enumerate(
            require_list(record.get("human_judgement"), "judgements (human_judgement)", where)
        ):
            at = f"{where}, judgement {number}"
            judgement = require_object(value, at)
            caption = require_text(judgement, "caption", at)
            yield Rating(
                image,
                caption,
                None,
                str(raters[caption]),
                YES_FRACTION_TEMPLATE,
                parse_rating(judgement.get("rating"), at),
                at,
            )
            raters[caption] += 1


SEETRUE_COLUMNS = ("image", "text", "label", "dataset_source")
SEETRUE_PAIR_COLUMN = "original_dataset_id"
SEETRUE_PATH_COLUMN = "image.path"  # column of the images' names in the dataset's Parquet, which contains the images
CHECK_SEETRUE_REMEDY = "check that this is SeeTRUE's file"


def read_seetrue(place: Place) -> Release:
    """Read SeeTRUE: image-text pairs with a binary label, from DrawBench, COCO, EditBench, Winoground and others.

    Labels become ratings of 0 and 1 by rater 0; the skills of a text are the datasets that contain it.

    Source: yonatanbitton/SeeTRUE, SeeTRUE.csv (the same file is in linzhiqiu/t2v_metrics) or its Parquet: image (the
    file's name), text, label (1 if the text matches the image), original_dataset_id, dataset_source. A text's id is the
    text itself, because `original_dataset_id` identifies the pair. An image can have several texts.

    If a pair occurs again with another `original_dataset_id`, the second label is treated as another rater's.
    """
    image = SEETRUE_PATH_COLUMN if place.path.lower().endswith(".parquet") else "image"
    sheet = read_sheet(place, [image, *SEETRUE_COLUMNS[1:], SEETRUE_PAIR_COLUMN]).require(
        SEETRUE_COLUMNS, CHECK_SEETRUE_REMEDY
    )
    column = sheet.table.column("image").combine_chunks()
    if pa.types.is_struct(column.type):  # images, which are replaced by their names
        if column.type.get_field_index("path") < 0:
            raise SourceError(
                f"{sheet.url}: expected each image's name in the field image.path, found no such field; "
                f"{CHECK_SEETRUE_REMEDY}"
            )
        index = sheet.table.column_names.index("image")
        sheet = replace(sheet, table=sheet.table.set_column(index, "image", column.field("path")))
    images, texts, labels = sheet.ids("image"), sheet.ids("text"), sheet.numbers("label").to_pylist()
    for row, label in enumerate(labels):
        if label not in (0.0, 1.0):
            raise SourceError(f"{sheet.where(row)}: expected a label of 0 or 1, found {label}; correct or remove it")
    raters = []
    origins_by_pair: dict[tuple[str, str], dict[str | None, int]] = {}
    for pair, origin in zip(zip(images, texts, strict=True), sheet.texts(SEETRUE_PAIR_COLUMN), strict=True):
        origins = origins_by_pair.setdefault(pair, {})
        raters.append(str(origins.setdefault(origin, len(origins))))
    ratings = make_column_ratings(sheet, images, texts, labels, raters=raters, templates=repeat("label"))
    again = sum(rater != "0" for rater in raters)
    notes = (
        [f"{again} pairs occur again with another {SEETRUE_PAIR_COLUMN} and count as those of other raters"]
        if again
        else []
    )
    skills = group_skills(zip(texts, sheet.texts("dataset_source"), strict=True))
    return released(ratings=ratings, skills=skills, notes=notes)
