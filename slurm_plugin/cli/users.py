"""Users by name, where this host knows them."""

import pwd
import re

_UID = re.compile(r"\buid (\d+)")


def user_name(uid: int) -> str:
    """The user's name here, or the number when this host does not know it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def with_names(text: str) -> str:
    """An agent's word on who holds something, which has users by number: no directory keeps a node's jobs waiting."""
    return _UID.sub(lambda uid: user_name(int(uid[1])), text)
