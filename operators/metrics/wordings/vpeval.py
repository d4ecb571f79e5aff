"""VPEval's release (aszala/VPEval at 4a54904): one prompt with 12 examples for writing programs."""

from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics.modules import Statement, read_program
from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.wordings.release import Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing

HEADER_LINES = 7
"""Lines of a reply, which continues after the prompt's last word, `Entities`, up to the heading of the programs."""


@dataclass(frozen=True, slots=True)
class VpevalRelease(Release):
    """The prompt in generate_open_ended_prompts.py."""

    repository: ClassVar[str] = "aszala/VPEval"
    mark: ClassVar[str] = "src/open_ended_prompt_generation/generate_open_ended_prompts.py"
    decides: ClassVar[tuple[str, ...]] = ("temperature", "replies")
    prompt: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(checkout.python(cls.mark).plain("prompt"))

    def write(self, prompt: str, sampling: ReplySampling) -> Writing[list[Statement]]:
        """Write the program for a prompt (get_question_and_answers).

        The quotation mark after the prompt is the release's.
        """
        request = sampling.request(f'{self.prompt}{prompt}"\nEntities', stop=())
        (statements,) = yield from ask_as_released([request], [_read])
        return statements


def _read(reply: str) -> list[Statement]:
    """Return the statements by our grammar; the release runs each line as Python (parse_resp)."""
    return read_program("\n".join(reply.split("\n")[HEADER_LINES:]))
