"""How a daemon's log lines look: `time level event.name fact=value ...` on stderr, which goes to the journal."""

import logging

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Facts(logging.Formatter):
    """The event, then what is in `extra`; values as Python writes them, so that no line can be forged by one."""

    def format(self, record: logging.LogRecord) -> str:
        facts = (f" {name}={value!r}" for name, value in list(vars(record).items()) if name not in _PLAIN)
        first, *rest = super().format(record).split("\n", 1)
        return "\n".join([first + "".join(facts), *rest])


def to_stderr(level: str = "INFO") -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(Facts("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
