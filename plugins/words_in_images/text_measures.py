"""Measures that compare the expected text with the text that was read, computed as in their authors' code."""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import permutations
from typing import Literal

TextMeasure = Literal[
    "longtext_bench",
    "cvtg_2k",
    "cvtg_2k_ned",
    "oneig",
    "flow_grpo",
    "edit_similarity",
    "substring_match",
    "exact_match",
    "counter_iou",
    "wegenbench_edit_similarity",
    "wegenbench_sentence_accuracy",
    "wegenbench_character_f1",
]

COMPARED_CHARACTERS = "\u4e00-\u9fa5a-zA-Z0-9àâäéèêëîïôöùûüçÀÂÄÉÈÊËÎÏÔÖÙÛÜÇ"
"""Characters that OneIG and LongText-Bench compare."""
ONEIG_MAX_DISTANCE = {False: 100, True: 50}
"""Edit distance at which OneIG's score reaches its minimum, for Chinese texts (True) and all others (False)."""


def compare_texts(wanted: Sequence[str], read: str) -> dict[str, float]:
    """Compare the expected texts with the lines that were read, and return all measures by name.

    LongText-Bench: X-Omni-Team/X-Omni, textbench/summary_scores.py at 2b8237b. CVTG-2K: TextCrafter's
    unified_metrics_eval.py, as included in zlab-princeton/i1, benchmark_eval/cvtg-2k at b58a62f. OneIG:
    OneIG-Bench/OneIG-Benchmark, scripts/text/text_score.py and text_utils.py at 41b4983. OneIG's table
    computes the score once, from the means of its three inputs over all images; `oneig` is the score of one image.
    flow_grpo: yifan123/flow_grpo, flow_grpo/ocr.py at ac4c86e. UniRL: Tencent-Hunyuan/UniRL,
    unirl/reward/local/ocr.py at 0aa39a8. The rewards of flow_grpo and UniRL use only the first text. WeGenBench:
    WeChatCV/WeGenBench, evaluation/Text/scoring/score_text.py at 87c3c76 (edit_sim, sen_acc and ocr_char_F1).
    """
    text = " ".join(wanted)
    chinese = is_chinese(text)
    return {
        "longtext_bench": _compute_share(normalize_text(text, chinese), normalize_text(read, chinese)),
        **_compute_cvtg_2k(wanted, read),
        **_compute_oneig(text, read),
        "flow_grpo": _compute_flow_grpo(wanted[0], read),
        **_compute_unirl(wanted[0], read),
        **_compute_wegenbench(wanted, read),
    }


def count_words(wanted: Sequence[str], measure: TextMeasure) -> int:
    """Return the number of expected words (for Chinese text, characters): the denominator of the measured fraction.

    A mean over images that is weighted by this number equals the pooled value of LongText-Bench or CVTG-2K.
    """
    if measure in ("cvtg_2k", "cvtg_2k_ned"):
        return len(_split_cvtg_words(wanted))
    text = " ".join(wanted)
    return len(split_words(normalize_text(text, is_chinese(text)), is_chinese(text)))


def _compute_cvtg_2k(wanted: Sequence[str], read: str) -> dict[str, float]:
    """Return CVTG-2K's measures by name: the fraction of words that were read, and the words' similarity.

    The order of words does not matter. Each word is compared with the most similar word that was read, and the
    similarities are averaged.
    """
    words, others = _split_cvtg_words(wanted), read.lower().split() or [""]
    nearest = [difflib.get_close_matches(word, others, n=1, cutoff=0)[0] for word in words]
    similar = [
        1 - compute_edit_distance(word, other) / (max(len(word), len(other)) + 1e-5)
        for word, other in zip(words, nearest, strict=True)
    ]
    return {
        "cvtg_2k": sum(word in others for word in words) / len(words),
        "cvtg_2k_ned": sum(similar) / len(words),
    }


def _split_cvtg_words(wanted: Sequence[str]) -> list[str]:
    return [word for text in wanted for word in text.lower().split()]


def _compute_oneig(wanted: str, read: str) -> dict[str, float]:
    wanted, read = (clean_text(text, is_chinese(text)) for text in (wanted, read))
    distance, accuracy = compute_edit_distance(wanted, read), _compute_share(wanted, read)
    most = ONEIG_MAX_DISTANCE[is_chinese(wanted)]
    lost = min(most, distance) * (distance > 0) * (1 - accuracy) / most
    return {"oneig": 1 - lost, "oneig_edit_distance": float(distance), "oneig_word_accuracy": accuracy}


def _compute_flow_grpo(wanted: str, read: str) -> float:
    wanted, read = (text.replace(" ", "").replace("\n", "").lower() for text in (wanted, read))
    return _compute_similarity(wanted, read)


def _compute_unirl(wanted: str, read: str) -> dict[str, float]:
    wanted, read = ("".join(re.findall(r"\w", text.casefold())) for text in (wanted, read))
    counted, of_read = Counter(wanted), Counter(read)
    return {
        "edit_similarity": _compute_similarity(wanted, read),
        "substring_match": float(wanted in read),
        "exact_match": float(wanted == read),
        "counter_iou": (counted & of_read).total() / (counted | of_read).total(),
    }


def _compute_similarity(wanted: str, read: str) -> float:
    """Return 1 if `read` contains the expected text, otherwise 1 minus the relative edit distance, but at least 0."""
    distance = 0 if wanted in read else min(compute_edit_distance(wanted, read), len(wanted))
    return 1 - distance / len(wanted)


MAX_PERMUTED_LINES = 5
"""Maximum number of lines that WeGenBench compares in every order."""


def _compute_wegenbench(wanted: Sequence[str], read: str) -> dict[str, float]:
    """Return WeGenBench's measures by name.

    They are the similarity of all texts and all lines by edit distance, in the best order of the lines; the fraction of
    texts that were read as a line of their own, without case; and the F1 of the characters, in any order.
    """
    texts, lines = (
        [joined for segment in segments if (joined := "".join(segment.split()))]
        for segments in (wanted, read.split("\n"))
    )
    text, line = "".join(texts), "".join(lines)
    both = (Counter(text) & Counter(line)).total()
    return {
        "wegenbench_edit_similarity": max(_compute_ratio(text, "".join(order)) for order in _list_orders(text, lines)),
        "wegenbench_sentence_accuracy": _count_exact_lines(texts, lines) / len(texts),
        "wegenbench_character_f1": 2 * both / (len(text) + len(line)),
    }


def _list_orders(text: str, lines: list[str]) -> list[Sequence[str]]:
    """Return the orders of lines to compare: all orders of a few lines; otherwise the given order and a sorted one.

    Lines are sorted by the first position in the text at which the most of their characters are equal.
    """
    if len(lines) <= MAX_PERMUTED_LINES:
        return list(permutations(lines))
    matches = {line: [sum(map(str.__eq__, text[place:], line)) for place in range(len(text))] for line in lines}
    return [lines, sorted(lines, key=lambda line: matches[line].index(max(matches[line])))]


def _compute_ratio(first: str, second: str) -> float:
    return 1 - compute_edit_distance(first, second) / max(len(first), len(second))


def _count_exact_lines(texts: Sequence[str], lines: Sequence[str]) -> int:
    """Return the number of texts that equal their line, after each text was assigned the most similar line."""
    if not lines:
        return 0
    texts, lines = ([segment.lower() for segment in segments] for segments in (texts, lines))
    from scipy.optimize import linear_sum_assignment  # imported here because every command imports this module

    costs = [[1 - _compute_ratio(text, line) for line in lines] for text in texts]
    return sum(texts[row] == lines[column] for row, column in zip(*linear_sum_assignment(costs), strict=True))


def is_chinese(text: str) -> bool:
    """Return True if the text contains Chinese; it is then compared character by character, as in OneIG."""
    return re.search("[\u4e00-\u9fff]", text) is not None


def clean_text(text: str, chinese: bool) -> str:
    """Remove characters that are not compared; unless `chinese`, words stay separated by one space."""
    if chinese:
        return "".join(re.findall(f"[{COMPARED_CHARACTERS}]", text))
    return re.sub(r"\s+", " ", re.sub(rf"[^{COMPARED_CHARACTERS}\s]", "", text)).strip()


def normalize_text(text: str, chinese: bool) -> str:
    """Return the cleaned text in lower case, except that LongText-Bench keeps the case of Chinese text."""
    return clean_text(text, chinese) if chinese else clean_text(text, chinese).lower()


def split_words(text: str, chinese: bool) -> list[str]:
    """Split a text into words, or a Chinese text into characters."""
    return list(text) if chinese else text.split()


def _compute_share(wanted: str, read: str) -> float:
    """Return the fraction of expected words that were read; a repeated word counts as often as it is expected."""
    chinese = is_chinese(wanted)
    counted = Counter(split_words(wanted, chinese))
    return (counted & Counter(split_words(read, chinese))).total() / counted.total() if counted else 0.0


def compute_edit_distance(first: str, second: str) -> int:
    """Return the minimum number of insertions, deletions and replacements of characters (Levenshtein 1966).

    The differences between neighbouring cells of the table of distances are kept as bits (Myers 1999; Hyyrö 2003).
    """
    if not first:
        return len(second)
    places: dict[str, int] = defaultdict(int)
    for place, letter in enumerate(first):
        places[letter] |= 1 << place
    full, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    rising, falling, distance = full, 0, len(first)
    for letter in second:
        same = places.get(letter, 0)
        diagonal = (((same & rising) + rising) ^ rising) | same | falling
        more, fewer = falling | (full & ~(diagonal | rising)), diagonal & rising
        distance += bool(more & last) - bool(fewer & last)
        more, fewer = (more << 1 | 1) & full, (fewer << 1) & full
        rising, falling = fewer | (full & ~(diagonal | more)), more & diagonal
    return distance
