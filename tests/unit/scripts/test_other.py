"""scripts/test-other: which Debian it takes, what it carries there, and what its status says."""

import hashlib
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
# Whatever is run in namespaces is only written down: its arguments, and the tree on its standard input.
UNSHARE = """\
case "$*" in *inside*) ;; *) exit 0 ;; esac
printf '%s\\n' "$@" > {folder}/ran
cat > {folder}/tree.tar
exit {status}
"""


class Host:
    """A machine on which the programs that test-other calls do what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.scratch = folder / "scratch"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.has("slurmctld", "echo slurm-wlm 22.05.8")
        self.has("apt-get", "echo Debian bookworm http://mirror/debian/")
        self.has("debootstrap", "echo no such mirror >&2; exit 1")
        self.inside(status=0)

    def has(self, program: str, script: str) -> None:
        path = self.bin / program
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def inside(self, *, status: int) -> None:
        self.has("unshare", UNSHARE.format(folder=self.folder, status=status))

    def ready(self, suite: str, *, days_old: int = 0) -> Path:
        """A root of this suite that was made before."""
        wanted = b"".join((SCRIPTS / name).read_bytes() for name in ("setup", "bare_root.sh", "../constraints.txt"))
        root = self.cache / f"{suite}-ready-{hashlib.sha256(wanted).hexdigest()[:16]}"
        root.mkdir(parents=True)
        made = root.stat().st_mtime - days_old * 86_400
        os.utime(root, (made, made))
        return root

    def test_other(self, *argv: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "VGPU_FRESH_CACHE": str(self.cache),
            "VGPU_FRESH_DIR": str(self.scratch),
        }
        return subprocess.run(
            [str(SCRIPTS / "test-other"), *argv], env=env, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def ran(self) -> str:
        return (self.folder / "ran").read_text()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("here", "other"),
    [("22.05.8", "trixie"), ("23.02.7", "trixie"), ("23.11.4", "bookworm"), ("24.11.5", "bookworm")],
)
def test_the_other_generation_is_the_one_this_machine_has_not(host: Host, here: str, other: str) -> None:
    host.has("slurmctld", f"echo slurm-wlm {here}")
    root = host.ready(other)
    done = host.test_other()
    assert done.returncode == 0, done.stderr
    assert f"== {other}: ok in" in done.stdout
    assert str(root) in host.ran
    assert "tests/e2e tests/contract tests/unit/lua" in host.ran


def test_the_tree_goes_there_without_what_was_built_for_this_machine(host: Host) -> None:
    host.ready("sid")
    host.test_other("sid", "--", "-k", "a b")
    assert r"-k a\ b" in host.ran
    with tarfile.open(host.folder / "tree.tar") as tree:
        names = tree.getnames()
    assert {"./pyproject.toml", "./scripts/test-other", "./slurm_plugin/lab/build.py"} <= set(names)
    assert not {".git", ".venv", "build", "__pycache__"} & {part for name in names for part in name.split("/")}


def test_the_status_is_that_of_the_tests_unless_they_are_only_reported(host: Host) -> None:
    host.ready("trixie")
    host.inside(status=5)
    for argv, status in (((), 5), (("--report",), 0)):
        done = host.test_other(*argv)
        assert done.returncode == status
        assert "== trixie: FAILED (5)" in done.stdout


@pytest.mark.parametrize("days_old", [None, 8], ids=["no root yet", "an old root"])
def test_a_root_that_can_not_be_made_fails_and_leaves_nothing(host: Host, days_old: int | None) -> None:
    if days_old is not None:
        host.ready("trixie", days_old=days_old)
    done = host.test_other()
    assert done.returncode == 1
    assert "no such mirror" in done.stderr
    assert "error: no root of trixie could be made" in done.stderr
    assert not (host.folder / "ran").exists()
    assert list(host.scratch.iterdir()) == []


@pytest.mark.parametrize("argument", ["--frob", "../etc", "Trixie"])
def test_a_wrong_argument_is_refused(host: Host, argument: str) -> None:
    done = host.test_other(argument)
    assert done.returncode == 1
    assert argument in done.stderr


def test_no_version_of_slurm_is_no_reason_to_test_nothing(host: Host) -> None:
    host.has("slurmctld", "exit 127")
    done = host.test_other()
    assert done.returncode != 0
    assert "run make setup" in done.stderr


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.iterdir()))
def test_every_script_can_be_read_by_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n", str(SCRIPTS / script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
