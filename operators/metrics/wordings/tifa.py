"""TIFA's release (Yushi-Hu/tifa at 8e37050): one prompt with 15 examples for writing all questions."""

from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.question_blocks import MAX_BLOCKS, Block
from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.wordings.release import Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing

MAX_TOKENS, STOP = 700, ("\n\n", "<|endoftext|>")
"""Value of openai_completion in tifascore/openai_api.py, which also sets the temperature to 0."""
HEADER_LINES = 6
"""Lines of a reply, which continues after the prompt's last word, `Entities`, up to the heading of the questions."""


@dataclass(frozen=True, slots=True)
class TifaRelease(Release):
    """The prompt in tifascore/question_gen.py."""

    repository: ClassVar[str] = "Yushi-Hu/tifa"
    mark: ClassVar[str] = "tifascore/question_gen.py"
    decides: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    prompt: str
    kinds: tuple[str, ...]

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.python(cls.mark)
        return cls(code.plain("prompt"), tuple(code.value("categories")))

    def write(self, prompt: str, seed: int) -> Writing[list[Block]]:
        """Write the questions about a prompt (get_question_and_answers)."""
        request = ReplySampling(MAX_TOKENS, seed=seed).request(f"{self.prompt}{prompt}\nEntities", stop=STOP)
        (blocks,) = yield from ask_as_released([request], [self._read])
        return blocks

    def _read(self, reply: str) -> list[Block]:
        """Return the questions with choices and a known type of subject; only the first answer counts (parse_resp)."""
        blocks, subject, kind, question, choices = [], "", "", "", tuple[str, ...]()
        for line in reply.split("\n")[HEADER_LINES:]:
            if line.startswith("About "):
                subject, *rest = line[len("About ") : -1].split(" (")
                kind = rest[0].split(")")[0]
            elif line.startswith("Q: "):
                question = line[len("Q: ") :]
            elif line.startswith("Choices: "):
                choices = tuple(line[len("Choices: ") :].split(", "))
            elif line.startswith("A: "):
                if subject and question and choices and kind in self.kinds:
                    blocks.append(Block(f"{subject} ({kind})", question, choices, line[len("A: ") :]))
                question, choices = "", ()
        if not 0 < len(blocks) <= MAX_BLOCKS or max(len(block.text) for block in blocks) > parsing.MAX_QUESTION:
            raise ValueError(f"expected 1 to {MAX_BLOCKS} questions of at most {parsing.MAX_QUESTION} characters")
        return blocks
