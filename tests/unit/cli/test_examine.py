"""What `doctor` asks and reads by itself: who does not answer, and the catalogue's file."""

import hashlib
import os
import pwd
from pathlib import Path

import pytest

from slurm_plugin.cli import examine
from slurm_plugin.cli.convert import pool_view
from slurm_plugin.cli.options import Where
from tests.unit.cli.pools import status

CATALOGUE = """vgpu-catalogue 1
pool hpc
gres vgpu pad vgpu_mem
default m10
partition gpu vgpu-wait
exclusive refuse
class m10 memory 10 1 1g.10gb
class m20 memory 20 2 2g.20gb
shape 1 64 512000 m10=7
node n1 1
end 10
"""
SILENT = {"munge", "controller-away", "slurm-away"}
POOL_YAML = """version: 1
pool: hpc
partitions: [gpu]
nodes:
  - {{hosts: n1, layout: {{1g.10gb: 7}}}}
policy: {{mode: {mode}}}
controller:
  listen: 127.0.0.1:1
  munge_socket: {folder}/no-munge
  slurm_bin: {folder}
  catalogue: {folder}/catalogue
"""
OLD = CATALOGUE.replace("default m10", "default -")
FILES = [
    (CATALOGUE, 0o644, set()),
    (CATALOGUE, 0o664, {"catalogue-mode"}),
    (CATALOGUE.replace("end 10", "end 8"), 0o644, {"catalogue"}),
    (CATALOGUE[:60], 0o644, {"catalogue"}),
    (OLD, 0o644, {"catalogue-old"}),
    (None, 0o644, {"no-catalogue"}),
]
PLANTED = {"pool-file"} | SILENT.union(*(codes for _, _, codes in FILES))


@pytest.mark.parametrize(("mode", "more"), [("manage", {"no-catalogue"}), ("observe", set())])
def test_what_does_not_answer_is_a_finding(mode: str, more: set[str], tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(POOL_YAML.format(folder=tmp_path, mode=mode))
    report = examine.examine(Where(config=config, controller="", controller_uid=None, munge_socket=None))
    assert {finding.code for finding in report.findings} == SILENT | more
    assert all(finding.paste for finding in report.findings)


def test_a_pool_file_that_is_wrong_is_a_finding_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    config = tmp_path / "pool.yaml"
    config.write_text(POOL_YAML.format(folder=tmp_path, mode="manage") + "polcy: {}\n")
    report = examine.examine(Where(config=config, controller="", controller_uid=None, munge_socket=None))
    assert {finding.code for finding in report.findings} == {"pool-file", "munge", "controller-away"}
    assert "did you mean 'policy'" in report.findings[0].what


@pytest.mark.parametrize(("text", "mode", "codes"), FILES)
def test_the_catalogue_is_checked_as_job_submit_will_read_it(
    text: str | None, mode: int, codes: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "catalogue"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    pool = status()
    pool.catalogue_sha256 = hashlib.sha256(CATALOGUE.encode()).hexdigest()
    assert {finding.code for finding in examine._catalogue(path, pool_view(pool))} == codes


@pytest.mark.parametrize(("user", "found"), [("nobody", []), ("root", ["catalogue-mode"])])
def test_a_catalogue_is_the_controllers_users(user: str, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "catalogue"
    path.write_text(CATALOGUE)
    os.chown(path, pwd.getpwnam("nobody").pw_uid, 0)
    there = examine._catalogue(path, None, user)
    assert [one.code for one in there] == found
    assert all(one.paste == f"chown root: {path}; chmod 644 {path}" for one in there)


def test_a_catalogue_is_compared_with_the_pool_when_the_controller_has_none_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "catalogue"
    path.write_text(CATALOGUE.replace("node n1 1", "node n7 1"))
    assert [finding.code for finding in examine._catalogue(path, pool_view(status()))] == ["not-in-catalogue"]


def test_a_pool_that_is_only_observed_may_have_an_old_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "catalogue"
    path.write_text(OLD.replace("node n1 1", "node n7 1"))
    pool = status()
    pool.catalogue_sha256, pool.mode = hashlib.sha256(CATALOGUE.encode()).hexdigest(), "observe"
    assert examine._catalogue(path, pool_view(pool)) == ()
