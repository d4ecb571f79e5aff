"""T2I-CompBench's metrics with a detector: relations between two objects, and numbers of objects."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.base.bounds import Share
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.metric import (
    SHARE_RANGE,
    CallEstimate,
    Evidence,
    Metric,
    Scored,
    ScoreRange,
    average_elements,
    make_element,
)
from plumbline.operators.metrics.modules import ImageQuery
from plumbline.operators.metrics.writing import VqaPrompt, Writing, WrittenQuestion
from plumbline.plugins.detected_objects.compbench_rules import (
    RELATIONS,
    SpatialPrompt,
    count_objects,
    find_relation,
    name_detected,
    parse_spatial_prompt,
    read_counted_objects,
    read_spatial_prompt,
    score_count,
    score_relation,
)
from plumbline.plugins.detected_objects.parsed_prompts import describe_pipeline, parse_prompt

NO_RELATION_ERROR = RowError(
    "no_relation", f"expected a prompt such as 'a cat on the left of a dog', with one of {', '.join(RELATIONS)}"
)
NO_COUNT_ERROR = RowError(
    "no_count", "expected a prompt with numbers of known objects, such as 'two cats'; leave this prompt out"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnidetConfig(Metric):
    """Base class of T2I-CompBench's metrics that ask a detector, with the options that they share."""

    chain: ClassVar[tuple[str, ...]] = ("questions", "resized_objects", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("resized_objects", "questions")
    role_keys: ClassVar[tuple[str, ...]] = ("detector",)
    score_range: ClassVar[ScoreRange] = SHARE_RANGE
    detector: str = "detector"
    """Role of the detector."""
    threshold: Share = 0.5
    """Minimum score of a box (as in the release, for UniDet)."""

    @abstractmethod
    def read_prompt(self, prompt: str) -> list[WrittenQuestion] | RowError:
        """Return what is checked in images of the prompt, or an error if the prompt does not have the right form."""

    @abstractmethod
    def list_names(self, text: str) -> list[str]:
        """Return the names of the objects that a question is about."""

    def write(self, prompt: str) -> Writing[list[WrittenQuestion] | RowError]:
        """Return what is checked in images of the prompt, or an error; no model is needed for this."""
        yield from ()
        return self.read_prompt(prompt)

    def list_question_options(self) -> dict[str, Any]:
        """Return no options: the prompt determines the questions."""
        return {}

    def list_query_options(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "kind": self.kind}

    def list_answer_options(self) -> dict[str, Any]:
        return self.list_query_options()

    def list_score_options(self) -> dict[str, Any]:
        return {}

    def estimate_calls(self, words: float) -> CallEstimate:
        """Estimate two objects per prompt, and no call of a writer."""
        return CallEstimate(0, 2)

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the question unchanged; the detector is asked for its objects."""
        return VqaPrompt(text, tuple(choices), free=True)

    def list_image_queries(self, text: str) -> tuple[ImageQuery, ...]:
        """Return a query for each object that a question is about."""
        return tuple(ImageQuery("detector", name, box_threshold=self.threshold) for name in self.list_names(text))


@dataclass(frozen=True, kw_only=True, slots=True)
class CompbenchSpatialConfig(UnidetConfig):
    """Options for T2I-CompBench's metric of 2D spatial relations."""

    kind: Literal["compbench_spatial"] = "compbench_spatial"
    story: ClassVar[str] = (
        "has a detector find the two objects that the prompt relates, and rewards their scores and their relation"
    )

    structure: Literal["simple", "complex"] = "simple"
    """`simple`: prompts such as `a cat on the left of a dog`; `complex`: any sentence with two nouns around a relation,
    which spaCy finds (the extra parse).
    """
    parser: str = "en_core_web_sm"
    """spaCy pipeline for complex prompts."""
    convention: Literal["released", "fixed"] = "released"
    """`released`: objects related by `on top of` never have the right position, as in the release's code; `fixed`: they
    have it if the first is above the second.
    """

    def list_question_options(self) -> dict[str, Any]:
        """Return how prompts are read, with the parser's version; raise ConfigError if it is not installed."""
        if self.structure == "simple":
            return {}
        return {"structure": self.structure, "convention": self.convention, **describe_pipeline(self.parser)}

    def read_prompt(self, prompt: str) -> list[WrittenQuestion] | RowError:
        """Return the relation between the prompt's two objects, or an error if there is none."""
        found = read_spatial_prompt(prompt) if self.structure == "simple" else self._read_complex_prompt(prompt)
        return [WrittenQuestion("1", found.write(), (), kind=found.relation)] if found else NO_RELATION_ERROR

    def _read_complex_prompt(self, prompt: str) -> SpatialPrompt | None:
        relation = find_relation(prompt, fixed=self.convention == "fixed")
        nouns = parse_prompt(prompt, self.parser).related_nouns
        return SpatialPrompt(nouns[0], relation, nouns[1]) if relation and len(nouns) == 2 else None

    def list_names(self, text: str) -> list[str]:
        found = parse_spatial_prompt(text)
        return [name_detected(name, counted=False) for name in (found.first, found.second)]

    def score(self, evidence: Evidence) -> Scored:
        """Return the score of the two objects' best boxes and of their relation."""
        (answer,) = evidence.answered
        relation = str(answer.question.kind)
        first, second = (result.boxes for result in answer.query_results)
        given = ", ".join(
            f"{len(boxes)} x {name}"
            for name, boxes in zip(self.list_names(answer.question.text), (first, second), strict=True)
        )
        return average_elements([make_element(answer, given=given, score=score_relation(relation, first, second))])


@dataclass(frozen=True, kw_only=True, slots=True)
class CompbenchNumeracyConfig(UnidetConfig):
    """Options for T2I-CompBench++'s metric of numbers."""

    kind: Literal["compbench_numeracy"] = "compbench_numeracy"
    story: ClassVar[str] = (
        "has a detector count the objects that the prompt counts: half of the score for an object that is found, half "
        "for its right number"
    )

    def read_prompt(self, prompt: str) -> list[WrittenQuestion] | RowError:
        """Return a question for each object with a number, or an error if there is none."""
        objects = read_counted_objects(prompt)
        questions = [
            WrittenQuestion(str(place), f"{each.number} x {each.name}", (), answer=str(each.number), span=each.name)
            for place, each in enumerate(objects)
        ]
        return questions or NO_COUNT_ERROR

    def list_names(self, text: str) -> list[str]:
        return [name_detected(text.partition(" x ")[2], counted=True)]

    def score(self, evidence: Evidence) -> Scored:
        """Return the mean over the objects, each 1, 0.5 or 0."""
        elements = []
        for answer in evidence.answered:
            (result,) = answer.query_results
            found, expected = count_objects(result.boxes), int(answer.question.answer or 0)
            elements.append(make_element(answer, given=str(found), score=score_count(expected, found)))
        return average_elements(elements)
