"""METEOR equals NLTK's version with the Porter stemmer, and uses synonyms if WordNet's files are provided."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.similarities.sentence_matching import SentenceMatchingConfig
from plumbline.operators.metrics.similarities.word_overlap import compute_meteor, find_wordnet

WORDS = ["a", "red", "car", "cars", "two", "sheep", "standing", "stood", "on", "the", "road"]


@pytest.mark.parametrize(
    ("candidate", "reference", "expected"),
    [
        ("two sheep are standing on the road", "a red car and a white sheep", 0.07142857142857142),
        ("The red cars stood beside three houses.", "three red car standing beside a house", 0.5314285714285715),
        ("a dog on a dog", "dog, a dog on a mat", 0.6305084745762711),
        ("A Red Circle", "a red circle", 0.9814814814814815),
        ("flying birds over the running rivers", "a bird flies over rivers that run", 0.2898550724637681),
        ("this is as it was", "i saw a cat", 0.24390243902439024),
        ("nothing alike", "two shapes", 0.0),
        ("", "two shapes", 0.0),
        ("?!", "...", 0.0),
    ],
)
def test_meteor_equals_nltks(candidate: str, reference: str, expected: float) -> None:
    """The expected values come from single_meteor_score in NLTK 3.10, with the paper's stemmer and an empty WordNet."""
    assert compute_meteor(candidate, reference) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.lists(st.sampled_from(WORDS), max_size=12))
def test_meteor_is_between_0_and_1_and_highest_for_the_text_itself(candidate: list[str], reference: list[str]) -> None:
    said, wanted = " ".join(candidate), " ".join(reference)
    assert 0 <= compute_meteor(said, wanted) <= 1
    assert compute_meteor(said, wanted) <= compute_meteor(wanted, wanted) + 1e-12


def write_wordnet(folder: Path, synsets: Sequence[Sequence[str]]) -> Path:
    """Write files in WordNet's format with only these sets of synonymous nouns; return the folder.

    The list of irregular plurals contains only `oxen`.
    """
    folder.mkdir(exist_ok=True)
    (folder / "lexnames").write_text("00\tadj.all\t3\n01\tadj.pert\t3\n02\tadv.all\t4\n03\tnoun.Tops\t1\n")
    for part in ("adj", "adv", "noun", "verb"):
        for name in (f"index.{part}", f"data.{part}", f"{part}.exc"):
            (folder / name).write_text("")
    data, index = "  1 a licence\n", ""
    offsets: dict[str, list[int]] = {}
    for words in synsets:
        for word in words:
            offsets.setdefault(word, []).append(len(data))
        names = " ".join(f"{word} 0" for word in words)
        data += f"{len(data):08d} 03 n {len(words):02x} {names} 000 | a thing\n"
    for word, places in sorted(offsets.items()):
        index += f"{word} n {len(places)} 0 {len(places)} 0 {' '.join(f'{place:08d}' for place in places)}\n"
    (folder / "data.noun").write_text(data)
    (folder / "index.noun").write_text(index)
    (folder / "noun.exc").write_text("oxen ox\n")
    return folder


def test_synonyms_match_if_wordnet_is_given(tmp_path: Path) -> None:
    """A synonym counts as much as an exact match, as in NLTK, even if the candidate's word is inflected."""
    wordnet = find_wordnet(
        str(write_wordnet(tmp_path / "wordnet", [("car", "auto"), ("ox", "bull"), ("car", "wagon")]))
    )
    for candidate, reference in [("red auto", "red car"), ("red wagon", "red car"), ("red oxen", "red bull")]:
        assert compute_meteor(candidate, reference, wordnet) == pytest.approx(compute_meteor("red car", "red car"))
        assert compute_meteor(candidate, reference) < 0.6
    assert compute_meteor("a red auto", "a red wagon", wordnet) == compute_meteor("a red auto", "a red wagon")


def test_another_wordnet_changes_the_recipe(tmp_path: Path) -> None:
    first, second = (
        SentenceMatchingConfig(measure="meteor", wordnet=str(write_wordnet(tmp_path / name, [("car", name)])))
        for name in ("auto", "wagon")
    )
    assert SentenceMatchingConfig(measure="meteor").list_text_similarity_options() == {"measure": "meteor"}
    assert (
        first.list_text_similarity_options()
        != second.list_text_similarity_options()
        == second.complete_options(lambda role: pytest.fail(role)).list_text_similarity_options()
    )
    planned = first.complete_options(lambda role: pytest.fail(role)).find_synonym_wordnet()
    write_wordnet(tmp_path / "auto", [("car", "lorry")])
    with pytest.raises(ConfigError, match="WordNet's files have changed since the run was planned; run again"):
        compute_meteor("a car", "a lorry", planned)
    with pytest.raises(ConfigError, match="only measure=meteor matches synonyms"):
        SentenceMatchingConfig(wordnet=str(tmp_path))
    with pytest.raises(ConfigError, match=r"wordnet: .*corpora/wordnet, but lexnames is missing"):
        SentenceMatchingConfig(measure="meteor", wordnet=str(tmp_path)).complete_options(lambda role: pytest.fail(role))
