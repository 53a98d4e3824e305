"""What was decided of what a peer asked, for the audit log: told by the attempt's record before and after it."""

from collections.abc import Sequence
from typing import TypeAlias

from federation.engine.effects import Decided, Deliver, Effect
from federation.model.job import Attempt
from federation.model.messages import Cancel, Signal, Submit
from federation.model.states import Target

Asking: TypeAlias = Submit | Cancel | Signal


def decided(
    site: str, message: Asking, was: Attempt | None, known: Attempt | None, effects: Sequence[Effect]
) -> Sequence[Decided]:
    """Once for each thing that is asked, however often it is said; each time when it is another site's."""
    if known is None:
        return ()
    if known.origin != site:
        what = type(message).__name__.lower()
        return (Decided(site=site, what=what, about=str(message.key), verdict=False, why="it is another site's"),)
    match message:
        case Submit() if was is None:
            about = f"{message.key} for {message.spec.user} in {message.pool}"
            let_in = known.state in (Target.READY, Target.STAGING)
            why = f"as {known.user}" if let_in else known.why
            return (Decided(site=site, what="job", about=about, verdict=let_in, why=why),)
        case Cancel() if was is None or was.state is not known.state:
            return (Decided(site=site, what="cancel", about=str(message.key)),)
        case Signal() if known != was or any(isinstance(one, Deliver) for one in effects):
            return (Decided(site=site, what="signal", about=f"{message.signal} for {message.key}"),)
    return ()
