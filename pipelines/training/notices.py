"""What the workers of a training have to say to its driver."""


class Notices:
    """Lines, and why the training cannot go on; run as an actor, so that it outlives the workers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.refusal: str | None = None

    def say(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> list[str]:
        """The lines that came since the last time."""
        lines, self.lines = self.lines, []
        return lines

    def refuse(self, message: str) -> None:
        """Notes why the training cannot go on, so that it is not begun again in vain."""
        self.refusal = self.refusal or message

    def refused(self) -> str | None:
        return self.refusal
