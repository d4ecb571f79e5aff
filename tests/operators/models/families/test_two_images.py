"""A CLIP-FlanT5 that was trained to compare images encodes each image with the question, and its decoder reads both."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model, takes_several_images
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import write_benchmark
from tests.commands import load_job_config
from tests.operators.models.alike import IMAGES, MAX_DIFFERENCE
from tests.operators.tiny.families import save_clip_flant5

LETTERS = ("a", "b", "no")
QUESTIONS = ("Which is red?", "Does this figure show two stars, left of a square? Please answer.")


def save_judge(folder: Path, fusion: str = "decoder") -> Path:
    checkpoint = save_clip_flant5(folder)
    config = json.loads((checkpoint / "config.json").read_text()) | {"mm_image_fusion": fusion}
    (checkpoint / "config.json").write_text(json.dumps(config))
    return checkpoint


def name_judge(checkpoint: Path) -> str:
    return f"+models.vlm={{family: clip_flant5, checkpoint: '{checkpoint}'}}"


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    checkpoint = save_judge(tmp_path_factory.mktemp("judge"))
    return load(
        resolve_model(make_model_config(family="clip_flant5", checkpoint=str(checkpoint)), on_gpu=False), "likelihood"
    )


def ask(judge: Any, shown: Sequence[Sequence[int]], questions: Sequence[Question]) -> list[list[list[float]]]:
    features = judge.encode([judge.preprocess_several([IMAGES[index] for index in pair]) for pair in shown])
    answers: list[list[list[float]]] = judge.likelihood(features, questions)
    return answers


def test_an_answer_equals_the_librarys_decoder_on_both_encodings(judge: Any) -> None:
    network = judge.model.language_model
    assert isinstance(network, T5ForConditionalGeneration)
    with torch.inference_mode():
        encoded, masks = [], []
        for number, image in enumerate((IMAGES[0], IMAGES[1]), 1):
            opening = judge.tokenizer(
                "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
                f"detailed, and polite answers to the user's questions. USER: image {number}: "
            )
            question = judge.tokenizer(f"\n{QUESTIONS[0]} ASSISTANT: ")
            before, after = (network.shared(torch.tensor([text.input_ids])) for text in (opening, question))
            (features,) = judge.encode([judge.preprocess(image)])
            inputs = torch.cat([before, features[None], after], dim=1)
            encoded.append(network.encoder(inputs_embeds=inputs).last_hidden_state)
            masks.append(torch.ones(inputs.shape[:2]))
        for letter, found in zip(LETTERS, ask(judge, [(0, 1)], [Question(0, QUESTIONS[0], LETTERS)])[0], strict=True):
            labels = torch.tensor([judge.tokenizer(letter).input_ids])
            output = network(
                encoder_outputs=BaseModelOutput(torch.cat(encoded, dim=1)),
                attention_mask=torch.cat(masks, dim=1),
                decoder_input_ids=torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], dim=1),
            )
            expected = output.logits.log_softmax(-1).gather(2, labels[..., None])[0, :, 0]
            assert found == pytest.approx(expected.tolist(), abs=MAX_DIFFERENCE)


def test_an_answer_does_not_depend_on_the_other_questions_of_a_batch(judge: Any) -> None:
    shown = [(0, 1), (1, 0), (2, 3)]
    questions = [Question(pair, text, LETTERS) for pair in range(len(shown)) for text in QUESTIONS]
    together = ask(judge, shown, questions)
    for question, found in zip(questions, together, strict=True):
        (alone,) = ask(judge, [shown[question.image]], [question._replace(image=0)])
        assert [number for choice in found for number in choice] == pytest.approx(
            [number for choice in alone for number in choice], abs=MAX_DIFFERENCE
        )


def test_only_a_checkpoint_that_was_trained_for_it_is_shown_two_images(tmp_path: Path) -> None:
    plain, judge = save_clip_flant5(tmp_path / "plain"), save_judge(tmp_path / "judge")
    assert [
        takes_several_images(make_model_config(family="clip_flant5", checkpoint=str(folder)))
        for folder in (plain, judge)
    ] == [False, True]
    bench = write_benchmark(tmp_path / "bench", count=2)
    words = ["sweep=own_images", "models=shapes", f"store={tmp_path}/store", "metric=[pairwise]"]
    words += [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images"]
    with pytest.raises(ConfigError, match="takes one image; use a model that takes several"):
        plan_sweep(load_job_config("sweep", *words, name_judge(plain)))
    with pytest.raises(ConfigError, match=r"pairwise needs a .* model, but the model for role 'vlm' is a clip_flant5"):
        plan_sweep(load_job_config("sweep", *words, name_judge(judge), "metrics.pairwise.answers=reply"))


def test_another_way_to_join_images_is_refused(tmp_path: Path) -> None:
    checkpoint = save_judge(tmp_path, "encoder")
    with pytest.raises(ModelError, match="`mm_image_fusion` is 'encoder'; use a checkpoint in which it is 'decoder'"):
        resolve_model(make_model_config(family="clip_flant5", checkpoint=str(checkpoint)), on_gpu=False)
