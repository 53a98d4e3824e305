"""The options that several commands share, each with its environment variable."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_CONFIG = Path("/etc/fed/fed.yaml")
DEFAULT_PKI = Path("/etc/fed/pki")

DEFAULT_SOCKET = Path("/run/fed/fed.sock")

Socket = Annotated[
    Path, typer.Option("--socket", envvar="FED_SOCKET", metavar="PATH", help="Where this site's daemon listens.")
]
Json = Annotated[bool, typer.Option("--json", envvar="FED_JSON", help="Print one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", envvar="FED_DRY_RUN", help="Say what would change; change nothing.")]
Config = Annotated[Path, typer.Option("--config", envvar="FED_CONFIG", metavar="FILE", help="This site's fed.yaml.")]
PkiFolder = Annotated[
    Path, typer.Option("--folder", envvar="FED_PKI", metavar="DIR", help="Where the CA is. Root's, mode 0700.")
]
