"""Applies upstream's functions, from checkouts of their repositories, to made-up readings.

    python -m plugins.words_in_images.tests.text_releases FOLDER > plugins/words_in_images/tests/text_measures.jsonl

FOLDER contains checkouts of X-Omni, OneIG-Benchmark, i1, flow_grpo, UniRL and WeGenBench; the commits are listed in
plugins/words_in_images/text_measures.py. No checkout is imported: the few functions that compare texts are extracted
from the source files.
"""

import ast
import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from nltk.metrics.distance import edit_distance
from scipy.optimize import linear_sum_assignment

N_CASES = 80
LATIN_WORDS = ["Grand", "Opening", "SALE", "café", "déjà-vu"]
ODD_WORDS = [*LATIN_WORDS, "50%", "A&B", "the", "The", "end.", "(new)", "é", "l0ve", "24/7"]
CHINESE_CHARACTERS = "欢迎光临新书店开业大吉"


class Reading(NamedTuple):
    wanted: list[str]
    lines: list[str]


def make_readings() -> Iterator[Reading]:
    """Yield texts with repeated words, accents, punctuation or Chinese, read fully, partly, wrongly or not at all."""
    rng = Random(0)
    for case in range(N_CASES):
        chinese = case % 4 == 3
        wanted = [_draw_text(rng, chinese) for _ in range(rng.randint(1, 3))]
        lines = [_misread_text(rng, text) for text in wanted if rng.random() < 0.8]
        rng.shuffle(lines)
        extra = [_draw_text(rng, chinese=rng.random() < 0.3)] if rng.random() < 0.4 else []
        yield Reading(wanted, [] if case % 10 == 9 else [*lines, *extra])


def _draw_text(rng: Random, chinese: bool) -> str:
    if chinese:
        return "".join(rng.choices(CHINESE_CHARACTERS, k=rng.randint(1, 6))) + rng.choice(["", "！", " 24h", "OK"])
    return " ".join([rng.choice(LATIN_WORDS), *rng.choices(ODD_WORDS, k=rng.randint(0, 5))])


def _misread_text(rng: Random, text: str) -> str:
    place = rng.randrange(len(text))
    return rng.choice([text, text, text.upper(), text[:place] + text[place + 1 :], text[:place] + "x" + text[place:]])


class ReleasedMeasures:
    def __init__(self, folder: Path) -> None:
        distance = SimpleNamespace(distance=edit_distance)
        sys.modules.setdefault("Levenshtein", _make_module("Levenshtein", distance=edit_distance))
        known = {"re": re, "Counter": Counter, "np": np, "Levenshtein": distance, "distance": edit_distance}
        known |= {"linear_sum_assignment": linear_sum_assignment, "permutations": permutations}
        known |= {"difflib": difflib, "logging": SimpleNamespace(error=_fail_on_call), "print": _fail_on_call}

        def extract(path: str, *names: str) -> Any:
            return SimpleNamespace(**_extract_functions(folder / path, names, known))

        self.x_omni = extract(
            "X-Omni/textbench/summary_scores.py", "preprocess_string", "counter2list", "calculate_char_match_ratio"
        )
        self.oneig = extract(
            "OneIG-Benchmark/scripts/text/text_utils.py",
            *("preprocess_string", "levenshtein_distance", "contains_chinese", "calculate_char_match_ratio"),
        )
        self.cvtg = extract(
            "i1/benchmark_eval/cvtg-2k/unified_metrics_eval.py",
            *("get_ld", "extract_words_from_prompt", "compute_ocr_metrics"),
        )
        self.wegenbench = extract(
            "WeGenBench/evaluation/Text/scoring/score_text.py",
            *("calc_ocr_metrics", "_ocr_char_f1", "_ned", "_edit_dist"),
        )
        self.flow_grpo = extract("flow_grpo/flow_grpo/ocr.py", "__call__")
        self.unirl = extract(
            "UniRL/unirl/reward/local/ocr.py", "_score_text", "_normalize_text", "_counter_iou", "_extract_target_text"
        )

    def compute_measures(self, reading: Reading) -> dict[str, float]:
        """Compute the measures and word counts with upstream's functions; return them by their names in our code."""
        return {
            **self._compute_longtext_bench(reading),
            **self._compute_cvtg_2k(reading),
            **self._compute_oneig(reading),
            "flow_grpo": self._compute_flow_grpo(reading),
            **self._compute_unirl(reading),
            **self._compute_wegenbench(reading),
        }

    def _compute_longtext_bench(self, reading: Reading) -> dict[str, float]:
        mode = "zh" if self.oneig.contains_chinese("".join(reading.wanted)) else "en"
        wanted, read = (
            self.x_omni.preprocess_string(" ".join(texts), mode) for texts in (reading.wanted, reading.lines)
        )
        match, words, _ = self.x_omni.calculate_char_match_ratio(wanted, read, mode)
        return {"longtext_bench": len(match) / len(words), "words": len(words)}

    def _compute_cvtg_2k(self, reading: Reading) -> dict[str, float]:
        page = [[None, (line, 1.0)] for line in reading.lines] or None
        evaluator = SimpleNamespace(
            paddleocr_available=True, models={"ocr": SimpleNamespace(ocr=lambda path, cls: [page])}
        )
        evaluator.get_ld = lambda *texts: self.cvtg.get_ld(evaluator, *texts)
        quoted = " and ".join(f"'{text}'" for text in reading.wanted)
        words = self.cvtg.extract_words_from_prompt(evaluator, f"Signs with {quoted}.")
        total, right, similar = self.cvtg.compute_ocr_metrics(evaluator, "", words)
        return {"cvtg_2k": right / total, "cvtg_2k_ned": float(np.mean(similar)), "cvtg_2k_words": total}

    def _compute_oneig(self, reading: Reading) -> dict[str, float]:
        wanted, read = map(self.oneig.preprocess_string, (str(reading.wanted), "\n".join(reading.lines)))
        distance = float(self.oneig.levenshtein_distance(read, wanted))
        _, accuracy, _ = self.oneig.calculate_char_match_ratio(wanted, read)
        most, whole = 50 if self.oneig.contains_chinese(wanted) else 100, float(distance == 0)
        score = 1 - min(most, distance) * (1 - whole) * (1 - accuracy) / most  # text_score.py, for one image
        return {"oneig": score, "oneig_edit_distance": distance, "oneig_word_accuracy": accuracy}

    def _compute_flow_grpo(self, reading: Reading) -> float:
        page = [[None, (line, 1.0)] for line in reading.lines]
        scorer = SimpleNamespace(ocr=SimpleNamespace(ocr=lambda image, cls: [page]))
        (reward,) = self.flow_grpo.__call__(scorer, [np.zeros(1)], [f'A sign "{reading.wanted[0]}"'])
        return float(reward)

    def _compute_unirl(self, reading: Reading) -> dict[str, float]:
        scorer = SimpleNamespace(_levenshtein_distance=edit_distance, _counter_iou=self.unirl._counter_iou)
        scorer._normalize_text = self.unirl._normalize_text
        target = self.unirl._extract_target_text(scorer, f'A sign "{reading.wanted[0]}"')
        return dict(self.unirl._score_text(scorer, self.unirl._normalize_text("".join(reading.lines)), target))

    def _compute_wegenbench(self, reading: Reading) -> dict[str, float]:
        similarity, accuracy = self.wegenbench.calc_ocr_metrics(*reading)
        f1, _, _ = self.wegenbench._ocr_char_f1(*reading)
        return {
            "wegenbench_edit_similarity": similarity,
            "wegenbench_sentence_accuracy": accuracy,
            "wegenbench_character_f1": f1,
        }


def _extract_functions(file: Path, names: tuple[str, ...], known: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return a file's functions and methods by name, without decorators and type annotations."""
    tree = ast.parse(file.read_text())
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names}
    for node in defined.values():
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
    scope = {**known, "Image": SimpleNamespace(Image=type(None))}
    exec(compile(ast.Module([*defined.values()], []), str(file), "exec"), scope)
    return {name: scope[name] for name in names}


def _make_module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(names)
    return module


def _fail_on_call(*words: Any) -> None:
    """Fail if upstream's code prints an error, because it would otherwise return a score of zero."""
    raise AssertionError(words)


if __name__ == "__main__":
    releases = ReleasedMeasures(Path(sys.argv[1]))
    for reading in make_readings():
        print(json.dumps([*reading, releases.compute_measures(reading)], ensure_ascii=False))
