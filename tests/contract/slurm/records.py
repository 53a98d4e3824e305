"""What live daemons printed, kept as text by release, and played back to the adapter in the place of commands."""

import re
from collections.abc import Sequence
from pathlib import Path

from slurm_plugin.errors import SlurmError
from slurm_plugin.slurm.process import Runner

FOLDER = Path(__file__).with_name("recorded")
_MARK = re.compile(r"~[A-Za-z]{8}(?![A-Za-z])")
_FIXED_MARK = "~MARKMARK"
_KERNEL = re.compile(r"OS=.*?(?= RealMemory=)")  # the recording machine's own
_HEAD = "$ "
_REFUSED = "!refused "


class Recorder:
    """Runs commands, and keeps each with what it printed."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.answers: dict[str, str] = {}

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        line, marks = _plain(argv)
        try:
            text = await self._runner.run(argv, timeout_s=timeout_s)
        except SlurmError as error:
            self.answers[line] = _REFUSED + str(error)
            raise
        self.answers[line] = text.replace(marks[0], _FIXED_MARK) if marks else text
        return text

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        text = "".join(f"{_HEAD}{line}\n{answer.rstrip()}\n" for line, answer in self.answers.items())
        path.write_text(_KERNEL.sub("OS=Linux 6.1.0 #1 SMP ", text))


class Player:
    """Answers each command as the recording has it; a command that is not in it is an error of the test."""

    def __init__(self, path: Path) -> None:
        sections = re.split(r"^\$ ", path.read_text(), flags=re.MULTILINE)[1:]
        self._answers = dict(section.split("\n", 1) for section in sections)

    async def run(self, argv: Sequence[str], *, timeout_s: float | None = None) -> str:
        line, marks = _plain(argv)
        assert line in self._answers, f"not in the recording: {line}"
        answer = self._answers[line]
        if answer.startswith(_REFUSED):
            raise SlurmError(answer.removeprefix(_REFUSED).strip())
        return answer.replace(_FIXED_MARK, marks[0]) if marks else answer


def _plain(argv: Sequence[str]) -> tuple[str, list[str]]:
    line = " ".join(argv)
    return _MARK.sub(_FIXED_MARK, line), _MARK.findall(line)
