"""The commands of a Typer application, as it builds them."""

from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

Path = tuple[str, ...]


def every_command(app: Typer) -> dict[Path, TyperCommand | TyperGroup]:
    """Itself, its groups and their commands, by the words that lead there."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    return _below(root, ())


def _below(one: object, path: Path) -> dict[Path, TyperCommand | TyperGroup]:
    assert isinstance(one, TyperCommand | TyperGroup)
    found = {path: one}
    if isinstance(one, TyperGroup):
        for name, child in one.commands.items():
            found |= _below(child, (*path, name))
    return found
