"""Small exports of annotation tools in all supported formats."""

import json
from collections.abc import Mapping
from typing import Any

from tests.pipelines.metaeval.releases.files import Layout, Rows


def make_annotation(rater: Any, *results: tuple[str, str, Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a Label Studio annotation; each result consists of a tag's name, a type and a value."""
    result = [{"from_name": name, "to_name": "x", "type": kind, "value": value} for name, kind, value in results]
    return {"id": 1, "completed_by": rater, "was_cancelled": False, "result": result, "lead_time": 3.5, **fields}


RED_DOG = {"prompt_id": "p1", "prompt": "a red dog"}
ATLAS_RECORD = {
    **RED_DOG,
    "image_id": "i1",
    "generator": "atlas",
    "skills": "color; animal",
    "image": "https://x.org/1.png",
}
RED_WORD = {"start": 2, "end": 5, "text": "red", "labels": ["missing"]}
LABEL_STUDIO_TASKS: Rows = [
    {"id": 1, "data": ATLAS_RECORD, "predictions": [], "annotations": [
        make_annotation(
            {"id": 7, "email": "ann@x.org"},
            ("likert", "rating", {"rating": 4}), ("shown", "choices", {"choices": ["Yes"]}), ("wl", "labels", RED_WORD),
            ("comment", "textarea", {"text": ["nice"]}),
        ),
        make_annotation(8, ("likert", "rating", {"rating": 2}), ("shown", "choices", {"choices": ["unsure"]})),
        make_annotation(9, was_cancelled=True),
    ]},
    {"id": 2, "data": {**RED_DOG, "image_a": "i1", "image_b": "i2", "generator_a": "atlas"}, "annotations": [
        make_annotation(8, ("better", "pairwise", {"selected": "right"})),
    ]},
    {"id": 3, "data": ATLAS_RECORD, "annotations": []},
]  # fmt: skip
MARKED_SPAN = {"start": 2, "end": 5, "label": "missing"}
ARGILLA_DATA = {name: ATLAS_RECORD[name] for name in ("image_id", "prompt_id", "generator")}
ARGILLA_RECORDS: Rows = [
    {"id": "r1", "fields": {"prompt": "a red dog"}, "metadata": {**ARGILLA_DATA, "skills": ["color", "animal"]},
     "suggestions": {}, "vectors": {}, "status": "completed", "_server_id": None,
     "responses": {
         "likert": [{"value": 4, "user_id": "ann@x.org"}, {"value": 2, "user_id": "8"}],
         "shown": [{"value": "Yes", "user_id": "ann@x.org"}, {"value": "unsure", "user_id": "8"}],
         "wl": [{"value": [MARKED_SPAN], "user_id": "ann@x.org"}],
         "comment": [{"value": "nice", "user_id": "ann@x.org"}],
     }},
    {"id": "r2", "fields": {"prompt": "a red dog"}, "suggestions": {}, "responses": {
        "better": [{"value": "b", "user_id": "8"}],
    }, "metadata": {"prompt_id": "p1", "image_a": "i1", "image_b": "i2", "generator_a": "atlas"}},
]  # fmt: skip


def convert_to_argilla_1(record: Mapping[str, Any]) -> dict[str, Any]:
    by_user: dict[str, Any] = {}
    for question, responses in record["responses"].items():
        for response in responses:
            by_user.setdefault(response["user_id"], {})[question] = {"value": response["value"]}
    said = [{"user_id": user, "values": values, "status": "submitted"} for user, values in by_user.items()]
    draft = {"user_id": "9", "values": {"likert": {"value": 1}}, "status": "draft"}
    return {**{name: record[name] for name in ("fields", "metadata")}, "responses": [*said, draft], "external_id": "r"}


def flatten_record(record: Mapping[str, Any]) -> dict[str, Any]:
    flat = {"id": record["id"], **record["fields"], **record["metadata"]}
    for question, responses in record["responses"].items():
        flat[f"{question}.responses"] = [response["value"] for response in responses]
        flat[f"{question}.responses.users"] = [response["user_id"] for response in responses]
        flat[f"{question}.responses.status"] = ["submitted"] * len(responses)
    return flat


def convert_to_hub_row(record: Mapping[str, Any]) -> dict[str, Any]:
    said = {
        name: [{**one, "status": "submitted"} for one in responses] for name, responses in record["responses"].items()
    }
    return {**record["fields"], **said, "metadata": json.dumps(record["metadata"]), "external_id": record["id"]}


LAYOUTS: Mapping[str, Layout] = {
    "Label Studio": Layout("annotations", {"export.json": LABEL_STUDIO_TASKS}),
    "Argilla": Layout("annotations", {"export.json": ARGILLA_RECORDS}),
    "flat": Layout("annotations", {"export.json": list(map(flatten_record, ARGILLA_RECORDS))}),
    "version 1": Layout("annotations", {"export.json": list(map(convert_to_argilla_1, ARGILLA_RECORDS))}),
    "Hub": Layout(
        "annotations", {"export.jsonl": "".join(f"{json.dumps(convert_to_hub_row(one))}\n" for one in ARGILLA_RECORDS)}
    ),
}
