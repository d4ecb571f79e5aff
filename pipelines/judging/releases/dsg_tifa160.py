"""DSG's Likert ratings of TIFA160's images: 800 images of 160 prompts by five generators, each rated by five people.

Source: j-min/DSG, `dsg/data/tifa160-likert-anns.csv`: dsg_prompt_split, t2i_model, item_id (DSG's name of the prompt),
source_id (TIFA's), worker_id, question, answer (1 to 5). linzhiqiu/t2v_metrics has the same table as
dsg_tifa160_anns.csv, where the first two columns are data_type and model_type.

An image is named as TIFA names it, `<source_id>_<generator>` with the generator's name there, so that TIFA160's own
scores meet it; prompt and generator have DSG's names, by which DSG's answers do.
"""

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, column_ratings, released, skills_of
from plumbline.pipelines.judging.releases.tables import read_sheet

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


def read(location: Place) -> Release:
    """The table's ratings; a prompt's skill is the set that TIFA took it from (coco, drawbench, ...)."""
    sheet = read_sheet(location)
    generator = next((name for name in GENERATOR if name in sheet.names), GENERATOR[0])
    sheet.require((*COLUMNS, generator), RELEASED)
    prompts, sources, generators = (sheet.ids(name) for name in ("item_id", "source_id", generator))
    images = [f"{source}_{NAMES.get(name, name)}" for source, name in zip(sources, generators, strict=True)]
    ratings = column_ratings(
        sheet, images, prompts, sheet.texts("answer"), generators=generators, raters=sheet.ids("worker_id")
    )
    sets = (source.rpartition("_")[0] for source in sources)
    return released(ratings=ratings, skills=skills_of(zip(prompts, sets, strict=True)))
