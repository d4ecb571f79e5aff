"""Creates tiny question packs with the layouts of the published packs, but invented content."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench_of import read_prompt_rows
from tests.question_packs import write_csv, write_geneval2, write_json, write_propositions


def write_oneig(folder: Path, count: int = 4) -> Path:
    texts = {f"{number:03}": one["text"] for number, one in enumerate(read_prompt_rows(count))}
    asked = {"1": "Is there a circle?", "2": "Is the circle red?"}
    spelled = {"question": json.dumps(asked), "dependency": json.dumps({"1": [0], "2": [1]})}
    questions = folder / "scripts/alignment/Q_D"
    questions.mkdir(parents=True)
    for name in ("anime", "human", "object"):
        write_json(questions / f"{name}.json", dict.fromkeys(texts, spelled) if name == "object" else {})
    rows = [
        {"category": "General_Object", "id": key, "prompt_en": text, "type": "NP", "prompt_length": "short"}
        for key, text in texts.items()
    ]
    write_csv(folder / "OneIG-Bench.csv", [*rows[0]], rows)
    return folder


def write_wise_verified(path: Path, count: int = 4) -> Path:
    return write_json(
        path,
        [
            {"Prompt": one["text"], "Explanation": "This is a circle", "Category": "time", "prompt_id": 401 + number}
            for number, one in enumerate(read_prompt_rows(count))
        ],
    )


def write_unigenbench(path: Path, count: int = 4) -> Path:
    told = {
        "Primary Categories": "Art",
        "Testpoints": ["Style", "Attribute - Color"],
        "Testpoint Description": ["flat shapes", "red"],
    }
    rows = [
        {"index": number, "prompt_en": one["text"], "sub_dims_en": json.dumps(told)}
        for number, one in enumerate(read_prompt_rows(count))
    ]
    return write_csv(path, [*rows[0]], rows)


def write_t2i_corebench(path: Path, count: int = 4) -> Path:
    checklist = [
        {"question": "Is there a circle?", "tags": ["content"]},
        {"question": "Is the circle on the left?", "tags": ["layout"]},
    ]
    own = {"Main Class": "Composition", "Sub Class": "Multi-Instance", "Checklist": checklist}
    texts = {one["prompt_id"]: one["text"] for one in read_prompt_rows(count)}
    return write_json(path, {name: {**own, "Prompt": text} for name, text in texts.items()})


def write_tiif_bench(folder: Path, count: int = 4) -> Path:
    """Write two questions about each of the first shapes prompts. Each long prompt repeats the short prompt."""
    asked = {"type": "numeracy", "yn_question_list": ["Is there a circle? ", "Is it square?"]}
    described = [
        {"short_description": one["text"], "long_description": f"{one['text']}, that is, {one['text']}"}
        for one in read_prompt_rows(count)
    ]
    for name, lines in {
        "_eval_prompts": [{**asked, "yn_answer_list": ["Yes", "no"]}] * count,
        "_prompts": described,
    }.items():
        file = folder.parent / f"testmini{name}/numeracy{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(map(json.dumps, lines)))
    return folder


def write_prism_bench(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for track in ("affection", "composition", "entity", "imagination", "long_text", "style", "text_rendering"):
        (folder / f"{track}.jsonl").write_text(json.dumps({"prompt": f"a {track}"}) + '\n{"prompt": ""}\n')
    return folder


PACK_WRITERS: Mapping[str, tuple[str, Callable[[Path], Path]]] = {
    "dpg_bench": ("q.csv", write_propositions),
    "geneval2": ("q.jsonl", write_geneval2),
    "oneig": ("oneig", write_oneig),
    "t2i_corebench": ("q.json", write_t2i_corebench),
    "tiif_bench": ("testmini_eval_prompts", write_tiif_bench),
    "unigenbench": ("q.csv", write_unigenbench),
    "wise_verified": ("q.json", write_wise_verified),
}
"""File name of each pack, and the function that writes the file."""


def write_pack(name: str, folder: Path) -> Path:
    file, write = PACK_WRITERS[name]
    return write(folder / file)
