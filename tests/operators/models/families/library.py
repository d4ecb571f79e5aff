"""Reference answers for one input at a time, from transformers' own classes or from formulas in the released code."""

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity, normalize
from transformers import AutoTokenizer, CLIPImageProcessor, Florence2Processor
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from plumbline.operators.models.calls import Box, Call, DetectionRequest, Measure, Pair, Question, Region
from plumbline.operators.models.families import image_to_text
from tests.operators import tiny
from tests.operators.models.alike import IMAGE_BEFORE, IMAGES, Answer
from tests.operators.tiny import rewards, vqa_models

Reference = Callable[[Path, Any, Measure], Answer]
"""Function that takes a checkpoint's folder, one input and a measure, and returns the expected answer.

The measure is only used for models that compare images with texts.
"""


@cache
def load_network(name: str, folder: Path) -> Any:
    return getattr(transformers, name).from_pretrained(folder).eval()


@cache
def load_blip(name: str, folder: Path) -> Any:
    """Load a BLIP whose vision tower normalises as in the release: with an epsilon of 1e-6 in its layer norms."""
    model = getattr(transformers, name).from_pretrained(folder).eval()
    for layer in model.vision_model.modules():
        if isinstance(layer, torch.nn.LayerNorm):
            assert layer.eps == 1e-5
            layer.eps = 1e-6
    return model


@cache
def load_tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@cache
def load_image_processor(folder: Path) -> Any:
    return AutoImageProcessor.from_pretrained(folder, backend="pil")


def preprocess_image(folder: Path, image: int) -> Any:
    """Return an image, given by its index in IMAGES, as the checkpoint's own image processor prepares it."""
    return load_image_processor(folder)(images=IMAGES[image], return_tensors="pt")


def make_pair_inputs(folder: Path, pair: Pair) -> dict[str, torch.Tensor]:
    words = load_tokenizer(folder)([pair.text], return_tensors="pt")
    seen = preprocess_image(folder, pair.image)["pixel_values"]
    return {"input_ids": words.input_ids, "attention_mask": words.attention_mask, "pixel_values": seen}


# Models that compare


def select_measure(image: torch.Tensor, text: torch.Tensor, logit: torch.Tensor, measure: Measure) -> Answer:
    numbers = {"cosine": cosine_similarity(image, text), "logit": logit, "match": torch.sigmoid(logit)}
    return Answer((), (float(numbers[measure]),))


def compare_embeddings(folder: Path, pair: Pair, measure: Measure) -> Answer:
    model = load_network("AutoModel", folder)
    siglip, length = model.config.model_type.startswith("siglip"), model.config.text_config.max_position_embeddings
    text, padding = (pair.text.lower(), "max_length") if siglip else (pair.text, False)
    words = load_tokenizer(folder)([text], padding=padding, truncation=True, max_length=length, return_tensors="pt")
    output = model(input_ids=words.input_ids, **preprocess_image(folder, pair.image))
    return select_measure(output.image_embeds, output.text_embeds, output.logits_per_image, measure)


def compare_as_released(build: Callable[[], Any], folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Compare an image with a text, using the model that `build` returns and OpenCLIP's preprocessing.

    OpenCLIP resizes the shorter side of the image, and crops its centre; the offsets of the crop are rounded.
    """
    model, original = build(), IMAGES[pair.image]
    width, height = (tiny.IMAGE_SIDE * length // min(original.size) for length in original.size)
    left, top = (round((length - tiny.IMAGE_SIDE) / 2) for length in (width, height))
    square = original.resize((width, height), Image.Resampling.BICUBIC).crop(
        (left, top, left + tiny.IMAGE_SIDE, top + tiny.IMAGE_SIDE)
    )
    image = model.visual(normalise(square))
    ids = rewards.make_clip_tokenizer()(
        [pair.text], truncation=True, max_length=rewards.CLIP_CONTEXT_TOKENS, return_tensors="pt"
    )
    padding = torch.zeros(1, rewards.CLIP_CONTEXT_TOKENS - ids.input_ids.shape[1], dtype=torch.long)
    is_pyramid = isinstance(model, rewards.PyramidClipRelease)
    words = model.encode_text(torch.cat([ids.input_ids, padding], dim=1) if is_pyramid else ids.input_ids)
    return select_measure(image, words, model.logit_scale.exp() * cosine_similarity(image, words), measure)


def normalise(image: Image.Image) -> torch.Tensor:
    values = (np.asarray(image, dtype=np.float64) / 255 - tiny.IMAGE_MEAN) / tiny.IMAGE_STD
    return torch.tensor(values.transpose(2, 0, 1)[None], dtype=torch.float32)


def weigh_choices(similarity: Reference, folder: Path, question: Question, measure: Measure) -> Answer:
    """Return the log-softmax over a dual encoder's logits for the choices, each appended to the question.

    Each number is followed by a 0, the log-probability of the end of the answer.
    """
    texts = [f"{question.text.removesuffix('?')}? {choice}" for choice in question.choices]
    logits = [similarity(folder, Pair(question.image, text), "logit").numbers[0] for text in texts]
    return Answer((), tuple(chain(*((float(one), 0.0) for one in torch.tensor(logits).log_softmax(-1)))))


def score_blip_itm(folder: Path, pair: Pair, measure: Measure) -> Answer:
    said = load_blip("BlipForImageTextRetrieval", folder)(
        **make_pair_inputs(folder, pair), use_itm_head=measure == "match"
    ).itm_score
    return Answer((), (float(said.softmax(-1)[0, 1] if measure == "match" else said),))


def score_blip2_itm(folder: Path, pair: Pair, measure: Measure) -> Answer:
    model, matches = load_network("Blip2ForImageTextRetrieval", folder), measure == "match"
    said = model(**make_pair_inputs(folder, pair), use_image_text_matching_head=matches).logits_per_image
    return Answer((), (float(said.softmax(-1)[0, 1] if matches else said),))


def score_imagereward(folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Compute ImageReward's score with transformers' BLIP and a stack of linear layers."""
    model, head = load_network("BlipForImageTextRetrieval", folder), load_file(folder / "model.safetensors")
    inputs = make_pair_inputs(folder, pair)
    seen = model.vision_model(inputs["pixel_values"]).last_hidden_state
    read = model.text_encoder(inputs["input_ids"], inputs["attention_mask"], encoder_hidden_states=seen)
    state = read.last_hidden_state[0, 0]
    for layer in (0, 2, 4, 6, 7):
        state = head[f"reward_head.layers.{layer}.weight"] @ state + head[f"reward_head.layers.{layer}.bias"]
    return Answer((), ((float(state) - 0.16717362830052426) / 1.0333394966054072,))


def score_dino(folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Compute DINO similarity as in MagicBrush (OSU-NLP-Group/MagicBrush fcfc892, evaluation/image_eval.py).

    The shorter side is resized to 256 / 224 of the input size, the centre is cropped, and the score is the cosine of
    the class tokens.
    """
    config = json.loads((folder / "config.json").read_text())
    model = load_network("Dinov2Model" if config["model_type"] == "dinov2" else "ViTModel", folder)
    mean, deviation = (torch.tensor(colours)[:, None, None] for colours in (tiny.IMAGE_MEAN, tiny.IMAGE_STD))

    def compute_token(image: Image.Image) -> torch.Tensor:
        scale = round(tiny.IMAGE_SIDE * 256 / 224) / min(image.size)
        resized = image.resize([int(side * scale + 1e-9) for side in image.size], Image.Resampling.BICUBIC)
        left, top = (round((side - tiny.IMAGE_SIDE) / 2) for side in resized.size)
        cut = resized.crop((left, top, left + tiny.IMAGE_SIDE, top + tiny.IMAGE_SIDE))
        pixels = (torch.from_numpy(np.array(cut)).permute(2, 0, 1) / 255 - mean) / deviation
        return model(pixel_values=pixels[None]).last_hidden_state[0, 0]

    return Answer(
        (), (float(cosine_similarity(compute_token(IMAGES[pair.image]), compute_token(IMAGE_BEFORE), dim=0)),)
    )


# Models that write


def write_caption(load: Callable[[str, Path], Any], name: str, folder: Path, asked: Any, measure: Measure) -> Answer:
    model = load(name, folder)
    output = model.generate(
        pixel_values=preprocess_image(folder, asked.image).pixel_values, max_new_tokens=asked.request.max_tokens
    )
    end = model.config.text_config.eos_token_id if "Blip2" in name else load_tokenizer(folder).sep_token_id
    text = load_tokenizer(folder).decode(
        [token for token in output[0].tolist() if token != end], skip_special_tokens=True
    )
    return Answer((text.strip(),))


def run_florence2(folder: Path, image: int, task: str, tokens: int) -> tuple[Florence2Processor, str]:
    """Run transformers' own Florence-2 on a task such as "<CAPTION>"; return its processor and its reply.

    `image` is an index in IMAGES, and `tokens` is the maximum length of the reply.
    """
    rules = {"description_with_bboxes": {}, "pure_text": {}}
    own = CLIPImageProcessor.from_pretrained(folder, image_seq_length=17)
    processor = Florence2Processor(own, load_tokenizer(folder), post_processor_config=rules)
    inputs = processor(text=task, images=IMAGES[image], return_tensors="pt")
    model = load_network("Florence2ForConditionalGeneration", folder)
    longest = model.config.text_config.max_position_embeddings - 1
    ids = model.generate(**inputs, max_new_tokens=min(tokens, longest))[0]
    return processor, load_tokenizer(folder).decode(ids, skip_special_tokens=task != "<DENSE_REGION_CAPTION>")


def caption_with_florence2(folder: Path, asked: Any, measure: Measure) -> Answer:
    return Answer((run_florence2(folder, asked.image, "<CAPTION>", asked.request.max_tokens)[1].strip(),))


def read_with_florence2(folder: Path, asked: Any, measure: Measure) -> Answer:
    return Answer((run_florence2(folder, asked.image, "<OCR>", image_to_text.MAX_REGION_TOKENS)[1].strip(),))


def describe_with_florence2(folder: Path, asked: Any, measure: Measure) -> Answer:
    """Return the regions that transformers finds, without positions in their labels and without unlabelled regions."""
    task = "<DENSE_REGION_CAPTION>"
    processor, text = run_florence2(folder, asked.image, task, image_to_text.MAX_REGION_TOKENS)
    told = processor.post_process_generation(text=text, task=task, image_size=IMAGES[asked.image].size)[task]
    words = [label.rpartition(">")[2].strip() for label in told["labels"]]
    regions = [Region(label, *box) for label, box in zip(words, told["bboxes"], strict=True) if label]
    return Answer(tuple(map(str, regions)))


def read_with_got_ocr(folder: Path, asked: Any, measure: Measure) -> Answer:
    processor = transformers.GotOcr2Processor(load_image_processor(folder), load_tokenizer(folder))
    inputs = processor(images=IMAGES[asked.image], num_image_tokens=4, return_tensors="pt")
    output = load_network("GotOcr2ForConditionalGeneration", folder).generate(
        **inputs,
        do_sample=False,
        max_new_tokens=image_to_text.MAX_READ_TOKENS,
        tokenizer=processor.tokenizer,
        stop_strings="<|im_end|>",
    )
    said = processor.tokenizer.decode(output[0, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return Answer((str(said).strip(),))


# Detectors


def convert_boxes(found: list[Box]) -> Answer:
    return Answer(tuple(box.label for box in found), tuple(number for box in found for number in box[1:]))


def detect_with_grounding_dino(folder: Path, wanted: DetectionRequest, measure: Measure) -> Answer:
    processor = transformers.GroundingDinoProcessor(load_image_processor(folder), load_tokenizer(folder))
    image = IMAGES[wanted.image]
    inputs = processor(images=image, text=[[wanted.phrase]], return_tensors="pt")
    outputs = load_network("GroundingDinoForObjectDetection", folder)(**inputs)
    (read,) = processor.post_process_grounded_object_detection(
        outputs,
        inputs.input_ids,
        threshold=wanted.box_threshold,
        text_threshold=wanted.text_threshold,
        target_sizes=[image.size[::-1]],
    )
    labels = [label.replace("[SEP]", "").strip(" .") for label in read["text_labels"]]
    return convert_boxes(
        [Box(*one) for one in zip(labels, read["scores"].tolist(), *read["boxes"].T.tolist(), strict=False)]
    )


def detect_with_owlv2(folder: Path, wanted: DetectionRequest, measure: Measure) -> Answer:
    processor = transformers.Owlv2Processor(load_image_processor(folder), load_tokenizer(folder))
    image = IMAGES[wanted.image]
    inputs = processor(images=image, text=[[wanted.phrase]], max_length=16, return_tensors="pt")
    (read,) = processor.post_process_grounded_object_detection(
        load_network("Owlv2ForObjectDetection", folder)(**inputs),
        threshold=wanted.box_threshold,
        target_sizes=[image.size[::-1]],
        text_labels=[[wanted.phrase]],
    )
    columns = (read["text_labels"], read["scores"].tolist(), *read["boxes"].T.tolist())
    return convert_boxes([Box(*one) for one in zip(*columns, strict=True)])


# Models that answer questions


def select_logprobs(logits: torch.Tensor, tokens: list[int]) -> list[float]:
    logprobs = logits.log_softmax(-1)
    return [float(logprobs[place, token]) for place, token in enumerate(tokens)]


class WholeBlip2:
    """A complete BLIP-2 that is asked one question at a time, in LAVIS's format."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tokenizer = folder, load_tokenizer(folder)
        self.model = self.load()

    def load(self) -> Any:
        return load_network("Blip2ForConditionalGeneration", self.folder)

    def format_text(self, question: str) -> str:
        return f"Question: {question} Short answer:"

    def make_pixels(self, image: int) -> torch.Tensor:
        return preprocess_image(self.folder, image).pixel_values

    def make_inputs(self, question: Question) -> dict[str, torch.Tensor]:
        image_ids = [self.tokenizer.convert_tokens_to_ids("<image>")] * vqa_models.N_QUERIES
        ids = [*image_ids, *self.tokenizer(self.format_text(question.text)).input_ids]
        return {"pixel_values": self.make_pixels(question.image), "input_ids": torch.tensor([ids])}

    def answer(self, question: Question, choice: str) -> list[float]:
        labels = self.tokenizer(choice, return_tensors="pt").input_ids
        return select_logprobs(self.model(**self.make_inputs(question), labels=labels).logits[0], labels[0].tolist())

    def reply(self, question: Question) -> str:
        tokens = self.model.generate(**self.make_inputs(question), max_new_tokens=32, do_sample=False, num_beams=1)
        return str(self.tokenizer.decode(tokens[0], skip_special_tokens=True)).strip()


class WholeInstructBlip(WholeBlip2):
    """A complete InstructBLIP, used like WholeBlip2, with a centre crop of the image as in the released VQAScore."""

    def load(self) -> Any:
        return load_network("InstructBlipForConditionalGeneration", self.folder)

    def make_pixels(self, image: int) -> torch.Tensor:
        original, short = IMAGES[image], min(IMAGES[image].size)
        size = (tiny.IMAGE_SIDE * original.width // short, tiny.IMAGE_SIDE * original.height // short)
        resized = original.resize(size, Image.Resampling.BICUBIC)
        left, top = (resized.width - tiny.IMAGE_SIDE) // 2, (resized.height - tiny.IMAGE_SIDE) // 2
        return normalise(resized.crop((left, top, left + tiny.IMAGE_SIDE, top + tiny.IMAGE_SIDE)))

    def format_text(self, question: str) -> str:
        return question

    def make_inputs(self, question: Question) -> dict[str, torch.Tensor]:
        text = load_tokenizer(self.folder / "qformer_tokenizer")(question.text, return_tensors="pt")
        seen = {"qformer_input_ids": text.input_ids, "qformer_attention_mask": text.attention_mask}
        return super().make_inputs(question) | seen


class WholeBlipVqa(WholeBlip2):
    """A complete BLIP, used like WholeBlip2, with the tokens its release adds before the question and the answer."""

    def load(self) -> Any:
        return load_blip("BlipForQuestionAnswering", self.folder)

    def make_inputs(self, question: Question) -> dict[str, torch.Tensor]:
        ids = self.tokenizer(re.sub(r'["().!*#:;~]', "", question.text), return_tensors="pt").input_ids
        ids[:, 0] = vqa_models.QUESTION_TOKEN
        return {
            "pixel_values": self.make_pixels(question.image),
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
        }

    def answer(self, question: Question, choice: str) -> list[float]:
        inputs, answer = self.make_inputs(question), self.tokenizer(choice, return_tensors="pt").input_ids
        answer[:, 0] = vqa_models.START_TOKEN
        states = self.model.text_encoder(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            encoder_hidden_states=self.model.vision_model(inputs["pixel_values"])[0],
        )[0]
        logits = self.model.text_decoder(input_ids=answer, encoder_hidden_states=states).logits[0]
        return select_logprobs(logits[:-1], answer[0, 1:].tolist())

    def reply(self, question: Question) -> str:
        tokens = self.model.generate(**self.make_inputs(question), max_new_tokens=32)
        return str(self.tokenizer.decode(tokens[0, 1:], skip_special_tokens=True)).strip()


WHOLE_MODELS = {"blip2": WholeBlip2, "instructblip": WholeInstructBlip, "blip_vqa": WholeBlipVqa}


def answer_question(name: str, folder: Path, question: Question, measure: Measure) -> Answer:
    whole = WHOLE_MODELS[name](folder)
    return Answer((), tuple(chain(*(whole.answer(question, choice) for choice in question.choices))))


def answer_without_image(folder: Path, question: Question, measure: Measure) -> Answer:
    words, model = load_tokenizer(folder), load_network("LlamaForCausalLM", folder)
    prompt, gap = question.text, " "
    if words.chat_template is not None:
        turn = [{"role": "user", "content": question.text}]
        prompt, gap = words.apply_chat_template(turn, tokenize=False, add_generation_prompt=True), ""
    start, numbers = len(words(prompt, add_special_tokens=False).input_ids), []
    for choice in question.choices:
        answer = prompt + gap + choice + "<|im_end|>"
        ids = words(answer, add_special_tokens=False, return_tensors="pt").input_ids
        numbers += select_logprobs(model(ids).logits[0, start - 1 : -1], ids[0, start:].tolist())
    return Answer((), tuple(numbers))


def answer_with_t5_without_image(folder: Path, question: Question, measure: Measure) -> Answer:
    """Return a T5's answer to the question without an image, computing each choice separately."""
    words, model, numbers = load_tokenizer(folder), load_network("T5ForConditionalGeneration", folder), []
    assert not torch.equal(model.lm_head.weight, model.shared.weight), "a separate matrix, as in FlanT5"
    for choice in question.choices:
        asked, labels = (words(text, return_tensors="pt").input_ids for text in (question.text, choice))
        numbers += select_logprobs(model(input_ids=asked, labels=labels).logits[0], labels[0].tolist())
    return Answer((), tuple(numbers))


# Models of texts


def score_by_label(folder: Path, pair: tuple[str, str], measure: Measure, label: int = 2) -> Answer:
    """Return the probability of the label for two texts that are joined with BERT's special tokens.

    The longer text is truncated to fit the context.
    """
    known = tiny.VOCABULARY
    words, others = ([known.get(word, known["<unk>"]) for word in text.split()] for text in pair)
    while len(words) + len(others) + 3 > tiny.CONTEXT_TOKENS:
        (words if len(words) > len(others) else others).pop()
    ids = torch.tensor([[known["<s>"], *words, known["</s>"], *others, known["</s>"]]])
    kinds = torch.tensor([[0] * (len(words) + 2) + [1] * (len(others) + 1)])
    logits = load_network("BertForSequenceClassification", folder)(input_ids=ids, token_type_ids=kinds).logits
    return Answer((), (float(logits.softmax(-1)[0, label]),))


def score_by_token(folder: Path, pair: tuple[str, str], measure: Measure) -> Answer:
    """Return the probability that the reply starts with the byte `1`, computed with the weights in the file."""
    weights = load_file(folder / "model.safetensors")
    size = {"vocab_size": len(tiny.BYTE_VOCABULARY), "eos_token_id": tiny.BYTE_VOCABULARY["</s>"]}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**tiny.T5_FIELDS | size)).eval()
    model.lm_head.weight = torch.nn.Parameter(weights["lm_head.weight"])  # a separate matrix
    model.load_state_dict(weights, strict=False)
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    ids = load_tokenizer(folder)(f"premise: {pair[0]} hypothesis: {pair[1]}", return_tensors="pt").input_ids
    logits = model(input_ids=ids, decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    return Answer((), (float(logits.softmax(-1)[tiny.BYTE_VOCABULARY["1"]]),))


def embed_text(folder: Path, text: str, measure: Measure, context: int = tiny.CONTEXT_TOKENS) -> Answer:
    ids = load_tokenizer(folder)(text).input_ids
    cut = ids if len(ids) <= context else [*ids[: context - 1], ids[-1]]
    states = load_network("BertModel", folder)(input_ids=torch.tensor([cut])).last_hidden_state[0]
    return Answer((), tuple(normalize(states.mean(0), dim=0).tolist()))


open_clip = partial(compare_as_released, cache(rewards.make_open_clip))
quick_clip = partial(compare_as_released, cache(partial(rewards.make_open_clip, quick=True)))
SIMILARITY_REFERENCES: Mapping[str, Reference] = {
    **dict.fromkeys(("clip", "pickscore", "siglip", "siglip2", "siglip2_naflex", "align"), compare_embeddings),
    "open_clip": open_clip,
    "open_clip_quick": quick_clip,
    "pyramid_clip": partial(compare_as_released, cache(rewards.make_pyramid_clip)),
    "blip_itm": score_blip_itm,
    "blip2_itm": score_blip2_itm,
    "imagereward": score_imagereward,
    "dino": score_dino,
    "dinov2": score_dino,
}
REFERENCES: Mapping[tuple[str, Call], Reference] = {
    **{(name, "similarity"): reference for name, reference in SIMILARITY_REFERENCES.items()},
    **{
        (name, "likelihood"): partial(weigh_choices, reference)
        for name, reference in SIMILARITY_REFERENCES.items()
        if reference in (compare_embeddings, open_clip, quick_clip)
    },
    **{(name, "likelihood"): partial(answer_question, name) for name in WHOLE_MODELS},
    ("causal_lm", "likelihood"): answer_without_image,
    ("text_only_t5", "likelihood"): answer_with_t5_without_image,
    ("blip", "generate_from_images"): partial(write_caption, load_blip, "BlipForConditionalGeneration"),
    ("git", "generate_from_images"): partial(write_caption, load_network, "GitForCausalLM"),
    ("blip2_opt", "generate_from_images"): partial(write_caption, load_network, "Blip2ForConditionalGeneration"),
    ("florence2", "generate_from_images"): caption_with_florence2,
    ("florence2", "ocr"): read_with_florence2,
    ("florence2", "regions"): describe_with_florence2,
    ("got_ocr2", "ocr"): read_with_got_ocr,
    ("grounding_dino", "detect"): detect_with_grounding_dino,
    ("owlv2", "detect"): detect_with_owlv2,
    ("cross_encoder", "entailment"): score_by_label,
    ("t5", "entailment"): score_by_token,
    ("sentences", "embedding"): embed_text,
}
"""Reference functions, keyed by the kind of checkpoint and the call."""
