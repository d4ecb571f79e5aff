"""Image generators behind an OpenAI-compatible images service that returns images as base64.

If the service returns a URL instead of an image, the URL is never followed.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ModelError, RowError, check_known
from plumbline.operators.models.families.openai import HttpRequest, OpenAiService, open_client
from plumbline.operators.models.family import Family
from plumbline.operators.models.service_config import ServiceModel
from plumbline.plugins.generation.drawing import DrawingRequest, DrawingSettings, DrawnImage

if TYPE_CHECKING:
    from plumbline.operators.models.model import ResolvedModel

ARGUMENT_NAMES = {
    "cfg": "guidance_scale",
    "steps": "num_inference_steps",
    "seed": "seed",
    "negative_prompt": "negative_prompt",
}
"""Settings that servers for open models accept, but OpenAI's own service does not, with their argument names."""
MAX_IMAGE_REPLY_BYTES = 128_000_000
"""Maximum size in bytes of a reply with a base64-encoded image."""
BASE64_ARGUMENTS: Mapping[str, Any] = {"response_format": "b64_json"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagesServiceModel(ServiceModel):
    """Options for an image generator behind an OpenAI-compatible endpoint."""

    image_batch: Positive = 32
    """Number of images requested before results are processed; `concurrency` of them are requested at a time."""
    takes: tuple[str, ...] = ()
    """Settings that are sent to the service in addition to the size: cfg (as guidance_scale), steps (as
    num_inference_steps), seed and negative_prompt; OpenAI's own service accepts none of them.
    """

    def __post_init__(self) -> None:
        ServiceModel.__post_init__(self)
        for name in self.takes:
            check_known("model takes", name, ARGUMENT_NAMES)


class OpenAiImages(OpenAiService):
    """Image generator that implements `draw` with an OpenAI-compatible service."""

    def __init__(self, model: "ResolvedModel[ImagesServiceModel]") -> None:
        super().__init__(open_client(model, MAX_IMAGE_REPLY_BYTES), model)
        self.checkpoint, self.revision = model.config.checkpoint, model.label
        self.says_format = True

    def draw(self, requests: Sequence[DrawingRequest], settings: DrawingSettings) -> list[DrawnImage | RowError]:
        """Return an image or an error for each request.

        A seed is only sent if `takes` lists it. Raises ModelError for any other setting that `takes` does not list.
        """
        return self._send_all([self._make_http_request(request, settings) for request in requests])

    def _make_http_request(self, request: DrawingRequest, settings: DrawingSettings) -> HttpRequest:
        takes = self.config.takes
        wanted = {"cfg": settings.cfg, "steps": settings.steps, "sampler": settings.sampler}
        wanted |= {"negative_prompt": settings.negative_prompt or None}
        given = {name: value for name, value in wanted.items() if value is not None}
        if unknown := [name for name in given if name not in takes]:
            raise ModelError(
                f"pictures.{unknown[0]}: {self.service} is not configured to accept it; leave it out, or add it to "
                f"image_model.takes, which may contain {', '.join(ARGUMENT_NAMES)}"
            )
        seed = request.seed if "seed" in takes else None
        sent = given | ({} if seed is None else {"seed": seed})
        arguments: dict[str, Any] = {"model": self.name, "prompt": request.prompt, "n": 1}
        if settings.size is not None:
            arguments["size"] = "x".join(map(str, settings.size))
        arguments["extra_body"] = {ARGUMENT_NAMES[name]: value for name, value in sent.items()}
        return HttpRequest(
            arguments, partial(self._read_drawn_image, DrawnImage(b"", settings.cfg, settings.steps, seed))
        )

    def _send_request(self, arguments: Mapping[str, Any]) -> Any:
        """Send one request. It asks for base64, unless the service has refused such a request before.

        OpenAI's newer models always return base64, and refuse a request that asks for it.
        """
        from openai import BadRequestError

        create: Any = self.client.images.generate
        if self.says_format:
            try:
                return create(**arguments, **BASE64_ARGUMENTS)
            except BadRequestError as error:
                if "response_format" not in str(error):
                    raise
            self.says_format = False
        return create(**arguments)

    def _read_drawn_image(self, drawn: DrawnImage, answer: Any) -> DrawnImage | RowError:
        pictures = getattr(answer, "data", None)
        encoded = getattr(pictures[0], "b64_json", None) if isinstance(pictures, list) and pictures else None
        if isinstance(encoded, str) and encoded:
            return drawn._replace(encoded=b64decode(encoded, validate=True))
        if isinstance(pictures, list) and pictures and getattr(pictures[0], "url", None):
            problem = f"{self.service} sent an address in place of the image, which is not followed"
            return RowError("request_refused", f"{problem}; use a model or a setting that returns b64_json")
        return self._make_unavailable_error("returned an answer without an image")


FAMILY = Family(
    config=ImagesServiceModel,
    extra="api",
    loads={"draw": OpenAiImages},
    options_in_key=lambda config, profile: {"takes": sorted(config.takes)},
    endpoint_variable="OPENAI_BASE_URL",
)
