"""VPEval's release (aszala/VPEval at 4a54904): one prompt with 12 examples, by which programs are written."""

from dataclasses import dataclass
from typing import ClassVar, Self

from plumbline.operators.metrics.modules import Statement, read_program
from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.wordings.release import Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing

HEADER_LINES = 7
"""A reply goes on with the prompt's last word, `Entities`: its first lines are those up to the programs' heading."""


@dataclass(frozen=True, slots=True)
class VpevalRelease(Release):
    """Its prompt (generate_open_ended_prompts.py)."""

    repository: ClassVar[str] = "aszala/VPEval"
    mark: ClassVar[str] = "src/open_ended_prompt_generation/generate_open_ended_prompts.py"
    decides: ClassVar[tuple[str, ...]] = ("temperature", "replies")
    prompt: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(checkout.python(cls.mark).plain("prompt"))

    def write(self, prompt: str, sampling: ReplySampling) -> Writing[list[Statement]]:
        """The program for a prompt (get_question_and_answers), whose quotation mark behind the prompt is the
        release's."""
        request = sampling.request(f'{self.prompt}{prompt}"\nEntities', stop=())
        (statements,) = yield from ask_as_released([request], [_read])
        return statements


def _read(reply: str) -> list[Statement]:
    """Its statements by the grammar of ours, where the release gives each line to Python (parse_resp)."""
    return read_program("\n".join(reply.split("\n")[HEADER_LINES:]))
