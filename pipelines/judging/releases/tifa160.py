"""Ratings of TIFA160's 800 images of 160 prompts by five generators: TIFA's own and DSG's."""

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, column_ratings, listed_ratings, released, skills_of
from plumbline.pipelines.judging.releases.scores import wide_scores
from plumbline.pipelines.judging.releases.sheets import read_objects, read_sheet, row_name, sheet_of

DESCRIPTIONS = ("text_id", "image_path", "text", "human_scores", "human_avg")


def read_tifa160(place: Place) -> Release:
    """The file's ratings by raters 0 and 1, and its metrics' scores under their names in the file.

    TIFA160: 800 images of 160 prompts by five generators, each rated twice, and what ten metrics score them.

    Source: Yushi-Hu/tifa, human_annotations/human_annotations_with_scores.json, and human_annotations.json, which has
    the ratings alone: `{image: {"text_id", "image_path", "text", "human_scores": [1-5, 1-5], "human_avg", <metric>:
    number}}`. An image is named `<text_id>_<generator>`. What is no description is a metric.
    """
    records = read_objects(place)
    names = list(dict.fromkeys(name for record in records.values() for name in record))
    metrics = [name for name in names if name not in DESCRIPTIONS]
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
COLUMNS = ("item_id", "source_id", "worker_id", "answer")
GENERATOR = ("t2i_model", "model_type")
NAMES = {
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
    generator = next((name for name in GENERATOR if name in sheet.names), GENERATOR[0])
    sheet.require((*COLUMNS, generator), RELEASED)
    prompts, sources, generators = (sheet.ids(name) for name in ("item_id", "source_id", generator))
    images = [f"{source}_{NAMES.get(name, name)}" for source, name in zip(sources, generators, strict=True)]
    ratings = column_ratings(
        sheet, images, prompts, sheet.texts("answer"), generators=generators, raters=sheet.ids("worker_id")
    )
    sets = (source.rpartition("_")[0] for source in sources)
    return released(ratings=ratings, skills=skills_of(zip(prompts, sets, strict=True)))
