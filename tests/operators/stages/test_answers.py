"""Every image gets the log-probabilities of its answers, or an error instead; no number is invented."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.metric import Answered, Evidence
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vq2 import Vq2Config
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.operators.models.calls import LikelihoodModel, Question, TextFeatures
from plumbline.operators.models.families.vlm import CHAT_PROFILE
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.stages.answers import AnswersStage, QuestionIndex
from tests.operators import tiny
from tests.operators.stages.given import ask, decode, make_options
from tests.operators.tiny import draw_image, encode_image, make_image_table

PROMPTS = {"p0": "a red circle", "p1": "two blue star left of a green square", "p2": "star", "p3": "the circle"}
PNG_IMAGES = [encode_image(draw_image(number)) for number in range(8)]
PROMPT_IDS = ["p0", "p1", "p2", "p3", "p0", "p1", "p0", "p3"]

Answer = Callable[[Question], list[list[float]]]


class CountingModel:
    """A real model that counts the images and batches it receives."""

    usage = Usage()
    side_by_side = False

    def __init__(self, model: LikelihoodModel) -> None:
        self.model = model
        self.encoded: list[bytes] = []
        self.batches: list[int] = []

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return self.model.preprocess(image)

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        self.batches.append(len(pixels))
        self.encoded += [pixel.numpy().tobytes() for pixel in pixels]
        return self.model.encode(pixels)

    def likelihood(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[list[list[float]]]:
        return self.model.likelihood(features, questions)

    def reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        return self.model.reply(features, questions)


class ScriptedModel:
    """A model that identifies an image by its width and gives scripted answers."""

    usage = Usage()
    side_by_side = False

    def __init__(self, answer: Answer, *, blind_to: int | None = None) -> None:
        self.answer = answer
        self.blind_to = blind_to

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        return torch.tensor([float(image.width)])

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if any(pixel.item() == self.blind_to for pixel in pixels):
            raise ValueError(f"cannot read an image of width {self.blind_to}")
        return pixels

    def likelihood(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[list[list[float]]]:
        return [self.answer(question) for question in questions]

    def reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        raise NotImplementedError


def make_vqascore_questions(**options: str) -> QuestionIndex:
    prompts = rows.table([{"prompt_id": name, "text": text} for name, text in PROMPTS.items()], schemas.PROMPTS)
    metric = tiny.make_vqascore(**options)
    return QuestionIndex(ask(prompts, metric), metric)


def make_questions(*texts: str, prompt_id: str = "p0") -> QuestionIndex:
    """Return an index of yes/no questions with these texts, all about one prompt."""
    asked = [
        {"prompt_id": prompt_id, "question_id": f"q{number}", "text": text, "choices": ["Yes", "No"]}
        for number, text in enumerate(texts)
    ]
    return QuestionIndex(rows.table(asked, schemas.QUESTIONS), tiny.make_vqascore())


def answer(
    model: LikelihoodModel, images: pa.Table, questions: Mapping[str, QuestionIndex], *, image_batch: int = 100
) -> dict[str, pa.Table]:
    stage = AnswersStage({}, {"model": model}, make_options(image_batch=image_batch))
    return dict(stage.measure(decode(stage, images), questions))


def answer_one(model: LikelihoodModel, images: pa.Table, questions: QuestionIndex) -> list[dict[str, Any]]:
    answered: list[dict[str, Any]] = answer(model, images, {"metric": questions})["metric"].to_pylist()
    return answered


def list_error_kinds(answered: Sequence[Mapping[str, Any]]) -> list[str | None]:
    return [row["error"] and row["error"]["kind"] for row in answered]


def list_logprobs(table: pa.Table) -> list[float]:
    """Return the log-probabilities of all tokens of all answers in a table, as one flat list."""
    return [
        number
        for row in table.to_pylist()
        for question in row["answers"]
        for choice in question["token_logprobs"]
        for number in choice
    ]


@pytest.mark.parametrize("image_batch", [1, 3, 100])
def test_each_image_is_encoded_once_for_all_metrics_and_questions(
    likelihood: ClipFlanT5Likelihood, image_batch: int
) -> None:
    model = CountingModel(likelihood)
    questions = {
        "vqascore": make_vqascore_questions(),
        "other": make_vqascore_questions(template="{} ?", answer="No"),
        "many": make_questions("a circle ?", "two star ?", "red ?"),
    }
    answer(model, make_image_table(PNG_IMAGES, PROMPT_IDS), questions, image_batch=image_batch)
    expected = [model.preprocess(draw_image(number)).numpy().tobytes() for number in range(len(PNG_IMAGES))]
    assert model.encoded == expected
    assert max(model.batches) == min(image_batch, len(PNG_IMAGES))


@pytest.mark.parametrize("image_batch", [2, 100])
def test_rows_with_the_same_image_get_the_answers_of_their_own_prompts(
    likelihood: ClipFlanT5Likelihood, image_batch: int
) -> None:
    model, shown = CountingModel(likelihood), [1, 1, 0, 1, 0, 2, 2, 1]
    images = make_image_table([PNG_IMAGES[number] for number in shown], PROMPT_IDS)
    tables = [
        answer(each, images, {"metric": make_vqascore_questions()}, image_batch=batch)["metric"]
        for each, batch in ((model, image_batch), (likelihood, 1))
    ]
    assert tables[0].drop("answers") == tables[1].drop("answers")
    assert list_logprobs(tables[0]) == pytest.approx(list_logprobs(tables[1]), abs=1e-5)
    assert len(model.encoded) == {2: 7, 100: 3}[image_batch], "once in each window"


def test_the_window_does_not_change_the_answers(likelihood: ClipFlanT5Likelihood) -> None:
    images = make_image_table([*PNG_IMAGES[:4], b"broken", *PNG_IMAGES[4:7]], PROMPT_IDS)
    tables = [
        answer(likelihood, images, {"metric": make_vqascore_questions()}, image_batch=image_batch)["metric"]
        for image_batch in (1, 3, 100)
    ]
    sound = [table.filter(pc.is_valid(table["answers"])) for table in tables]
    assert len(set(list_logprobs(sound[0]))) == 14, "seven images, two tokens each, all answers differ"
    for table, kept in zip(tables, sound, strict=True):
        assert list_error_kinds(table.to_pylist()) == [None] * 4 + ["corrupt_image"] + [None] * 3
        assert table["image_id"].to_pylist() == [f"i{number}" for number in range(8)]
        assert list_logprobs(kept) == pytest.approx(list_logprobs(sound[0]), abs=1e-5)


def test_a_window_out_of_memory_is_made_smaller_once_and_every_image_is_answered(
    likelihood: ClipFlanT5Likelihood,
) -> None:
    class SmallMemory(CountingModel):
        def encode(self, pixels: Sequence[Any]) -> Sequence[Any]:
            if len(pixels) > 2:
                self.batches.append(len(pixels))
                raise MemoryError
            return super().encode(pixels)

    model = SmallMemory(likelihood)
    images = make_image_table(PNG_IMAGES, PROMPT_IDS)
    answered = answer(model, images, {"metric": make_vqascore_questions()}, image_batch=6)["metric"]
    expected = answer(likelihood, images, {"metric": make_vqascore_questions()})["metric"]
    assert list_logprobs(answered) == pytest.approx(list_logprobs(expected), abs=1e-5)
    assert [size for size in model.batches if size > 2] == [6, 3]


def test_metrics_that_share_a_model_get_the_same_answers_as_alone(likelihood: ClipFlanT5Likelihood) -> None:
    images = make_image_table(PNG_IMAGES, PROMPT_IDS)
    questions = {"yes": make_vqascore_questions(), "no": make_vqascore_questions(template="{} ?", answer="No maybe")}
    together = answer(likelihood, images, questions)
    assert list(together) == ["yes", "no"]
    for name, index in questions.items():
        alone = answer(likelihood, images, {name: index})[name]
        assert list_logprobs(together[name]) == pytest.approx(list_logprobs(alone), abs=1e-5)
        assert together[name].drop(["answers"]) == alone.drop(["answers"])
    assert list_logprobs(together["yes"])[:2] != pytest.approx(list_logprobs(together["no"])[:2], abs=1e-3)


def test_an_answer_is_about_its_own_image_and_its_own_question(likelihood: ClipFlanT5Likelihood) -> None:
    questions = ("a circle ?", "two blue star ?")
    table = answer(likelihood, make_image_table(PNG_IMAGES[:3], ["p0"] * 3), {"many": make_questions(*questions)})[
        "many"
    ]
    features = likelihood.encode([likelihood.preprocess(draw_image(number)) for number in range(3)])
    for number, row in enumerate(table.to_pylist()):
        assert [question["question_id"] for question in row["answers"]] == ["q0", "q1"]
        for text, given in zip(questions, row["answers"], strict=True):
            (expected,) = likelihood.likelihood([features[number]], [Question(0, text, ("Yes", "No"))])
            assert [len(choice) for choice in given["token_logprobs"]] == [2, 2]
            for choice, logprobs in zip(given["token_logprobs"], expected, strict=True):
                assert choice == pytest.approx(logprobs, abs=1e-5)


def answer_certainly(question: Question) -> list[list[float]]:
    return [[-0.5, -0.25] for _ in question.choices]


def test_the_table_has_exactly_the_answers_schema() -> None:
    questions = {"metric": make_vqascore_questions()}
    asked = {"question_id": questions["metric"].find("p0").questions[0].question_id}
    full = answer(ScriptedModel(answer_certainly), make_image_table(PNG_IMAGES, PROMPT_IDS), questions)["metric"]
    empty = answer(ScriptedModel(answer_certainly), make_image_table([], []), questions)["metric"]
    assert full.schema == empty.schema == schemas.ANSWERS
    assert (full.num_rows, empty.num_rows) == (8, 0)
    assert full.to_pylist()[0] == {
        "image_id": "i0",
        "prompt_id": "p0",
        "generator": "gen",
        "answers": [{**asked, "token_logprobs": [[-0.5, -0.25]], "reply": None, "chosen": None}],
        "error": None,
        "image_digest": hashlib.sha256(PNG_IMAGES[0]).hexdigest()[:16],
        "basis": questions["metric"].find("p0").digest,
        "images": None,
    }


def answer_wrongly_about(*texts: str, number: float = float("nan")) -> Answer:
    """Return a script that answers questions containing one of these texts with `number`."""
    return lambda question: (
        [[-0.5, number if any(text in question.text for text in texts) else -0.25]] * len(question.choices)
    )


def make_out_of_memory_answer(text: str) -> Answer:
    def answer(question: Question) -> list[list[float]]:
        if text in question.text:
            raise RuntimeError("CUDA out of memory")
        return answer_certainly(question)

    return answer


def fail_if_asked(question: Question) -> list[list[float]]:
    raise AssertionError("asked")


ONE_FAILED_QUESTION = rows.table([{"prompt_id": "p0", "text": "a"}, {"prompt_id": "p1", "text": " "}], schemas.PROMPTS)
STAR_ERRORS = ["not_finite" if "star" in PROMPTS[prompt_id] else None for prompt_id in PROMPT_IDS]


@pytest.mark.parametrize(
    ("contents", "prompt_ids", "script", "questions", "kinds"),
    [
        ([b"broken", PNG_IMAGES[0], None, PNG_IMAGES[1]], ["p0", "p1", "p2", None], answer_certainly,
         make_vqascore_questions(), ["corrupt_image", None, "missing_image", "missing_prompt_id"]),
        ([b"a", None], ["p0", "p1"], fail_if_asked, make_vqascore_questions(), ["corrupt_image", "missing_image"]),
        (PNG_IMAGES[:2], ["p0", "p99"], answer_certainly, make_vqascore_questions(), [None, "unknown_prompt"]),
        (PNG_IMAGES[:3], ["p1", "p0", "p1"], answer_certainly,
         QuestionIndex(ask(ONE_FAILED_QUESTION, tiny.make_vqascore()), tiny.make_vqascore()),
         ["empty_prompt", None, "empty_prompt"]),
        ([b"broken"], ["p99"], answer_certainly, make_vqascore_questions(), ["corrupt_image"]),
        *((PNG_IMAGES, PROMPT_IDS, answer_wrongly_about("star", number=number), make_vqascore_questions(), STAR_ERRORS)
          for number in (float("nan"), float("inf"), float("-inf"))),
        (PNG_IMAGES, PROMPT_IDS, make_out_of_memory_answer("the circle"), make_vqascore_questions(),
         [None, None, None, "model_failed", None, None, None, "model_failed"]),
        (PNG_IMAGES[:1], ["p0"], answer_wrongly_about("second"), make_questions("first", "second", "third"),
         ["not_finite"]),
    ],
    ids=["images", "nothing is asked about failed ones", "unknown prompt", "failed question", "image before question",
         "NaN", "infinite", "minus infinite", "model", "one of several questions"],
)  # fmt: skip
def test_a_failed_row_keeps_its_position_with_its_own_error_and_no_answers(
    contents: list[bytes | None],
    prompt_ids: list[str | None],
    script: Answer,
    questions: QuestionIndex,
    kinds: list[Any],
) -> None:
    answered = answer_one(ScriptedModel(script), make_image_table(contents, prompt_ids), questions)
    assert [row["image_id"] for row in answered] == [f"i{number}" for number in range(len(contents))]
    assert list_error_kinds(answered) == kinds
    assert [row["answers"] is None for row in answered] == [kind is not None for kind in kinds]
    errors = [row["error"] for row in answered if row["error"]]
    assert all(error["retryable"] == (error["kind"] == "model_failed") for error in errors)
    assert all("'p99'" in error["message"] for error in errors if error["kind"] == "unknown_prompt")


def test_a_metric_that_fails_does_not_affect_the_others() -> None:
    def answer_question(question: Question) -> list[list[float]]:
        return [[float("nan")]] if question.choices == ("No",) else answer_certainly(question)

    questions = {"sound": make_vqascore_questions(), "failing": make_vqascore_questions(answer="No")}
    answered = answer(ScriptedModel(answer_question), make_image_table(PNG_IMAGES, PROMPT_IDS), questions)
    assert answered["sound"]["error"].null_count == 8
    assert answered["failing"]["error"].null_count == 0


@pytest.mark.parametrize("image_batch", [1, 2, 100])
def test_an_image_that_cannot_be_encoded_only_fails_itself_in_every_metric(image_batch: int) -> None:
    contents = [encode_image(draw_image(0, width=width)) for width in (10, 11, 12, 13)]
    questions = {"one": make_vqascore_questions(), "two": make_vqascore_questions(answer="No")}
    model = ScriptedModel(answer_certainly, blind_to=12)
    answered = answer(model, make_image_table(contents, PROMPT_IDS[:4]), questions, image_batch=image_batch)
    for table in answered.values():
        assert list_error_kinds(table.to_pylist()) == [None, None, "model_failed", None]


class ModelOnSmallDevice(ScriptedModel):
    """A model on a device with memory for the features of `room` images; answering takes the memory of two images."""

    def __init__(self, room: int) -> None:
        super().__init__(answer_certainly)
        self.room = room
        self.held: WeakSet[torch.Tensor] = WeakSet()
        self.encoded: list[int] = []

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        self.encoded.append(len(pixels))
        self.require(len(pixels))
        features = [pixel.clone() for pixel in pixels]
        self.held.update(features)
        return features

    def likelihood(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[list[list[float]]]:
        self.require(2)
        return super().likelihood(features, questions)

    def require(self, more: int) -> None:
        if len(self.held) + more > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_every_image_is_answered_with_little_memory_and_the_batch_size_is_remembered() -> None:
    model = ModelOnSmallDevice(room=5)
    stage = AnswersStage({}, {"model": model}, make_options(image_batch=8))
    images = decode(stage, make_image_table(PNG_IMAGES, PROMPT_IDS))
    questions = {"one": make_vqascore_questions(), "two": make_vqascore_questions(answer="No")}
    for expected in ([8, 4, 2, 2, 2, 2], [2, 2, 2, 2]):  # four are encoded, which leaves no memory for the questions
        model.encoded = []
        tables = stage.measure(images, questions)
        assert [table["error"].null_count for table in tables.values()] == [8, 8]
        assert model.encoded == expected


def test_a_lost_device_is_raised_and_no_row_gets_an_error() -> None:
    def answer_question(question: Question) -> list[list[float]]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        answer_one(ScriptedModel(answer_question), make_image_table(PNG_IMAGES, PROMPT_IDS), make_vqascore_questions())


def test_questions_are_found_by_prompt_and_one_failed_question_fails_its_prompt() -> None:
    failed = RowError("empty_prompt", "no text")
    table = rows.table(
        [
            {"prompt_id": "a", "question_id": "0", "text": "t", "choices": ["Yes"]},
            {"prompt_id": "b", "question_id": "0", "text": "t", "choices": ["Yes"]},
            {"prompt_id": "a", "question_id": "1", "text": "u", "choices": ["No"]},
            {"prompt_id": "b", "question_id": "1", "error": rows.error_to_dict(failed)},
        ],
        schemas.QUESTIONS,
    )
    index = QuestionIndex(table, tiny.make_vqascore())
    assert [question.vqa_prompt.text for question in index.find("a").questions] == ["t", "u"]
    assert (index.find("a").error, index.find("b").error) == (None, failed)


class TalkingModel(ScriptedModel):
    """A model that answers in free text, and records its questions."""

    def __init__(self, words: str) -> None:
        super().__init__(lambda question: [[-0.5] for _ in question.choices])
        self.words = words
        self.asked: list[Question] = []

    def likelihood(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[list[list[float]]]:
        self.asked += questions
        return super().likelihood(features, questions)

    def reply(self, features: Sequence[torch.Tensor], questions: Sequence[Question]) -> list[str]:
        self.asked += questions
        return [self.words for _ in questions]


class LetterEncoder:
    """A text encoder that embeds texts by their letters."""

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        counts = torch.tensor(
            [[float(text.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        )
        return TextFeatures(counts / counts.norm(dim=1, keepdim=True), [False] * len(texts))


@pytest.mark.parametrize(("words", "chosen"), [("Green.", "green"), ("it looks bluish", "blue"), ("reddish", "red")])
def test_a_free_answer_means_the_equal_or_else_the_nearest_choice(words: str, chosen: str) -> None:
    asked = [{"prompt_id": "p0", "question_id": "1", "text": "what color?", "choices": ["red", "blue", "green"]}]
    model = TalkingModel(words)
    stage = AnswersStage({}, {"model": model, "matcher": LetterEncoder()}, make_options())
    prepared = decode(stage, make_image_table(PNG_IMAGES[:1], ["p0"]))
    index = QuestionIndex(rows.table(asked, schemas.QUESTIONS), TifaConfig())
    (row,) = stage.measure(prepared, {"tifa": index})["tifa"].to_pylist()
    assert row["answers"] == [{"question_id": "1", "token_logprobs": None, "reply": words, "chosen": chosen}]
    assert [question.choices for question in model.asked] == [()], "the model does not see the choices"


@pytest.mark.parametrize(("words", "score"), [("Yes.", 1.0), ("yes, it does", 1.0), ("No", 0.0), ("It does", 0.0)])
def test_vqascore_of_a_reply_is_1_only_if_it_is_the_answer(words: str, score: float) -> None:
    metric = tiny.make_vqascore(answers="reply")
    (row,) = answer_one(
        TalkingModel(words), make_image_table(PNG_IMAGES[:1], ["p0"]), make_vqascore_questions(answers="reply")
    )
    assert row["answers"][0]["reply"] == words
    assert metric.score(Evidence(row)).score == score
    assert (
        metric.list_answer_options() != tiny.make_vqascore().list_answer_options()
        and metric.list_question_options() == tiny.make_vqascore().list_question_options()
    )


@pytest.mark.parametrize(("words", "score"), [("Yes.", 1.0), ("no", 0.0), ("Yes it is", 0.0)])
def test_dsg_counts_every_form_of_yes_in_a_reply(words: str, score: float) -> None:
    metric = DsgConfig(answers="reply").complete_options(lambda role: CHAT_PROFILE)
    question = WrittenQuestion("1", "a dog?", ("yes", "no"), "yes")
    table = rows.table([{"prompt_id": "p0", **question._asdict()}], schemas.QUESTIONS)
    (row,) = answer_one(TalkingModel(words), make_image_table(PNG_IMAGES[:1], ["p0"]), QuestionIndex(table, metric))
    (said,) = row["answers"]
    scored = metric.combine_answers([Answered(question, reply=said["reply"], chosen=said["chosen"])])
    assert (scored.score, (scored.elements or ())[0].given) == (score, said["chosen"] or words)


def test_metrics_that_ask_the_same_about_an_image_share_the_answer() -> None:
    both = [{"prompt_id": "p0", "question_id": "1", "text": "a dog?", "choices": ["yes", "no"], "answer": "yes"}]
    table = rows.table(both, schemas.QUESTIONS)
    model = TalkingModel("yes")
    questions = {"gecko": QuestionIndex(table, GeckoConfig()), "dsg": QuestionIndex(table, DsgConfig())}
    tables = answer(model, make_image_table(PNG_IMAGES[:2], ["p0", "p0"]), questions)
    assert tables["gecko"].equals(tables["dsg"])
    assert [(question.image, question.choices) for question in model.asked] == [(0, ("Yes", "No")), (1, ("Yes", "No"))]


def test_a_question_that_the_metric_dropped_is_not_asked() -> None:
    kept = [
        {"prompt_id": "p0", "question_id": str(n), "text": f"{n}?", "choices": ["yes", "no"], "keep": n == 1}
        for n in range(3)
    ]
    index = QuestionIndex(rows.table(kept, schemas.QUESTIONS), Vq2Config())
    assert [question.question_id for question in index.find("p0").questions] == ["1"]
