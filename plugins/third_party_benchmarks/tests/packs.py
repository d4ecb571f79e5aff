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
    """Write two questions about each of the first `count` shapes prompts; a long prompt states the short one twice."""
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


def write_bizgeneval(path: Path, count: int = 4) -> Path:
    """Write four questions about each of the first shapes prompts; the first and the last one are easy."""
    rows = [
        {
            **{"id": number, "domain": "chart", "dimension": "text", "eval_tag": "text1", "prompt": one["text"]},
            **{"questions": ["Is it a circle?", "Is it red?", "Is it on the left?", "Is it large?"]},
            **{"easy_qidxs": [1, 4], "hard_qidxs": [2, 3]},
        }
        for number, one in enumerate(read_prompt_rows(count))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def write_wegenbench(folder: Path, count: int = 4, *, prefix: str = "en", language: str = "en") -> Path:
    """Write three weighted questions about each of the first shapes prompts, in the layout of a checkout."""
    asked = [
        {"question": text, "type": kind, "weight": weight}
        for text, kind, weight in (("Is it a circle?", "object", 30), ("Is it red?", "color", 12), ("No?", "text", 6))
    ]
    prompts = [
        {**{"id": f"{prefix}_ip_{number:03}.png", "prompt": one["text"], "type": "IP"}, "tag": ["a"], "difficulty": 2}
        for number, one in enumerate(read_prompt_rows(count))
    ]
    questions = [{"id": f"ip_{number:03}.png", "questions": asked} for number in range(count)]
    for file, rows in {
        f"data/prompts/wegenbench_general_{prefix}.jsonl": prompts,
        f"evaluation/Consistency/QA/questions/wegenbench_general_{language}_questions.jsonl": questions,
    }.items():
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("\n".join(map(json.dumps, rows)))
    return folder


PACK_WRITERS: Mapping[str, tuple[str, Callable[[Path], Path]]] = {
    "bizgeneval": ("q.jsonl", write_bizgeneval),
    "dpg_bench": ("q.csv", write_propositions),
    "geneval2": ("q.jsonl", write_geneval2),
    "oneig": ("oneig", write_oneig),
    "t2i_corebench": ("q.json", write_t2i_corebench),
    "tiif_bench": ("testmini_eval_prompts", write_tiif_bench),
    "unigenbench": ("q.csv", write_unigenbench),
    "wegenbench": ("WeGenBench", write_wegenbench),
    "wise_verified": ("q.json", write_wise_verified),
}
"""File name of each pack, and the function that writes the file."""


def write_pack(name: str, folder: Path) -> Path:
    file, write = PACK_WRITERS[name]
    return write(folder / file)
