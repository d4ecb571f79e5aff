"""Ratings that a simulated judge returns for the plugin's metrics."""

from plumbline.operators.metrics.wording import read_prompt_template
from plumbline.plugins.third_party_benchmarks.judges.qwen_image_bench import FACETS_TEMPLATE_NAME, read_dimensions

FACET_MARKS = {
    f"{one.key}: {facet}": 1
    for one in read_dimensions(read_prompt_template(FACETS_TEMPLATE_NAME))
    for facet in one.facets
}
CHECKLIST_ANSWERS = {"question 1": 1, "question 2": 0, "question 3": 1, "question 4": 0}
RATING_BY_NAME = {
    **{"score": 1, "Style": 1, "Attribute - Color": 0, "alignment": 7, "aesthetics": 4},
    **FACET_MARKS,
    **CHECKLIST_ANSWERS,
}
