"""`fed pki` and `fed check-config`: what they do, print, and refuse."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from federation.cli.main import run
from federation.pki.authority import CRL
from federation.pki.files import crls_in
from tests.unit.docs.blocks import commands_to_run

HEAVY = {"cryptography", "grpc", "pydantic", "yaml", "google", "federation.pki", "federation.access"}


@pytest.fixture
def ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.setenv("FED_PKI", str(tmp_path / "ca"))
    assert run(["pki", "init", "lab"]) == 0
    capsys.readouterr()
    return tmp_path / "ca"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def document(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, object]:
    assert run([*argv, "--json"]) == code
    told: dict[str, object] = json.loads(capsys.readouterr().out)
    return told


@pytest.mark.parametrize(
    ("words", "heavy"),
    [(["--help"], HEAVY), ([], HEAVY - {"pydantic"}), (["pki", "--help"], HEAVY - {"pydantic"})],  # typer loads that
)
def test_help_is_light(words: list[str], heavy: set[str]) -> None:
    code = (
        f"import sys\nfrom federation.cli.main import run\nassert run({words!r}) == 0\n"
        f"print(sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_life_of_a_site(ca: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tls"
    first = document(capsys, "pki", "issue", "edge", "--out", str(out))
    assert (first["version"], first["kind"], first["site"], first["changed"]) == (1, "certificate", "edge", True)
    assert first["file"] == str(out / "site.pem")
    shown = document(capsys, "pki", "show", str(out / "site.pem"))
    assert shown == first | {"changed": False}

    kept = document(capsys, "pki", "renew", "edge", "--within", "10", "--out", str(out))
    assert (kept["serial"], kept["state"], kept["changed"]) == (first["serial"], "good", False)
    second = document(capsys, "pki", "renew", "edge", "--within", "31", "--out", str(out))
    assert second["serial"] != first["serial"]
    assert document(capsys, "pki", "show", str(out / "site.pem"))["serial"] == second["serial"]

    assert run(["pki", "revoke", "edge", "--serial", str(first["serial"])]) == 0
    assert f"copy {ca / CRL} to every site" in capsys.readouterr().err
    assert run(["pki", "list", "edge"]) == 0
    states = [line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]]
    assert sorted(states) == ["good", "revoked"]
    assert run(["pki", "revoke", "edge"]) == 0
    assert len(list(crls_in(ca / CRL)[0])) == 2
    capsys.readouterr()

    assert run(["pki", "renew", "edge", "--out", str(out)]) == 2
    assert "was revoked" in capsys.readouterr().err
    fresh = document(capsys, "pki", "issue", "edge", "--out", str(out))  # over the revoked one
    assert document(capsys, "pki", "show", str(out / "site.pem"))["serial"] == fresh["serial"]


@pytest.mark.parametrize(
    "words",
    [
        ["init", "other", "--folder", "{new}"],
        ["issue", "hpc"],
        ["issue", "hpc", "--out", "{new}"],
        ["renew", "edge"],
        ["revoke", "edge"],
    ],
)
def test_a_dry_run_changes_nothing(ca: Path, tmp_path: Path, words: list[str]) -> None:
    assert run(["pki", "issue", "edge"]) == 0
    before = files(tmp_path)
    assert run(["pki", *(word.format(new=tmp_path / "new") for word in words), "--dry-run"]) == 0
    assert files(tmp_path) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["init", "lab"], "ca.pem exists"),
        (["init", "No", "--folder", "{new}"], "'No' is no site name"),
        (["init", "a", "--folder", "{new}", "--permit", "a_b"], "'a_b' is no host name, address or network"),
        (["issue", "edge"], "edge has a certificate until"),
        (["issue", "../x"], "'../x' is no site name"),
        (["issue", "hpc", "--name", "www.example.org"], "this CA may not write the name www.example.org"),
        (["issue", "hpc", "--days", "1000"], "a certificate lives 1 to 397 days"),
        (["issue", "hpc", "--out", "{edge}"], "site.pem is not hpc's of this CA"),
        (["renew", "hpc"], "hpc never had a certificate"),
        (["revoke", "hpc"], "hpc has no good certificate"),
        (["revoke", "edge", "--serial", "zz"], "'zz' is no serial number"),
        (["show", "{new}"], "no such file"),
        (["list", "--folder", "{new}"], "there is no CA in"),
        (["issue"], "Missing argument 'SITE'"),
        (["isue"], "No such command 'isue'"),
    ],
)
def test_what_is_refused_changes_nothing(
    ca: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert run(["pki", "issue", "edge"]) == 0
    before, _ = files(tmp_path), capsys.readouterr()
    places = {"new": tmp_path / "new", "edge": ca / "sites" / "edge"}
    assert run(["pki", *(word.format(**places) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert told in error
    assert hint.startswith("hint: ")
    assert files(tmp_path) == before


def test_no_command_prints_a_key(ca: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["issue", "edge"], ["renew", "edge"], ["list"], ["show"], ["revoke", "edge"]):
        assert run(["pki", *words, "--json"]) == 0
    assert run(["pki", "show", str(ca / "ca.key")]) == 2
    out, err = capsys.readouterr()
    secret = (ca / "ca.key").read_text().splitlines()[1]
    assert "PRIVATE" not in out + err
    assert secret not in out + err


def test_the_commands_of_the_documents_work(
    ca: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typed in the order they are in, by somebody with a CA in the usual place."""
    monkeypatch.setenv("FED_CONFIG", str(_config(tmp_path, ca / "sites" / "hpc", site="hpc", peer="edge-1")))
    monkeypatch.setenv("FED_PKI", str(tmp_path / "fresh"))
    for command in commands_to_run("pki"):
        words = shlex.split(command)
        assert words[0] == "fed"
        if words[1] == "check-config":
            shutil.copytree(tmp_path / "fresh" / "sites" / "hpc", ca / "sites" / "hpc")
        assert run(words[1:]) == 0, capsys.readouterr().err
    assert "revoked" in capsys.readouterr().out.splitlines()[-1]


def _config(tmp_path: Path, tls: Path, *, site: str, peer: str, users: str = "{ann: nobody}") -> Path:
    (tmp_path / "run").mkdir()
    (config := tmp_path / "fed.yaml").write_text(
        f"version: 1\nsite: {site}\n"
        f"local: {{socket: {tmp_path}/run/fed.sock}}\naudit: {{path: {tmp_path}/run/audit.log}}\n"
        f"tls: {{certificate: {tls}/site.pem, ca: [{tls}/ca.pem], crl: [{tls}/crl.pem]}}\n"
        f"peers:\n  {peer}: {{address: 'h:1', users: {users}}}\n"
    )
    return config


def _site(tmp_path: Path, users: str = "{ann: nobody}") -> Path:
    assert run(["pki", "issue", "edge", "--out", str(tmp_path / "tls")]) == 0
    return _config(tmp_path, tmp_path / "tls", site="edge", peer="hpc", users=users)


def test_a_good_configuration(ca: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _site(tmp_path)  # nobody has uid 65534
    capsys.readouterr()
    told = document(capsys, "check-config", "--config", str(config))
    assert (told["site"], told["peers"], told["problems"]) == ("edge", ["hpc"], [])


def test_a_configuration_that_will_not_work(ca: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _site(tmp_path, "{ann: no-such-user, bo: daemon}")
    (tmp_path / "run").chmod(0o777)
    config.chmod(0o666)
    capsys.readouterr()
    assert run(["check-config", "--config", str(config)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "peers.hpc.users.ann: there is no user 'no-such-user' on this host" in lines
    assert any(line.startswith("peers.hpc.users.bo: user daemon has uid 1") for line in lines)
    assert sum("can be written by everybody" in line for line in lines) == 3  # fed.yaml, and the folder twice


def test_rules_about_what_is_not_there_are_told(ca: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _site(tmp_path)
    (spool := tmp_path / "spool").mkdir()
    rules = 'placing: {allow: {a: [edge/gpu, edge/cpu, hpc/any]}, deny: {"": [cloud, edge]}}\n'
    pool = f"pools: {{gpu: {{slurm: {{folder: {spool}, catalogue: {tmp_path}/none}}}}}}\n"
    config.write_text(config.read_text() + rules + pool)
    capsys.readouterr()
    assert document(capsys, "check-config", "--config", str(config), code=1)["problems"] == [
        "placing.allow.a: this site has no pool cpu",
        "placing.deny.(none): there is no site cloud",
        f"pools.gpu.slurm.catalogue: there is no {tmp_path}/none: only slices that Slurm publishes are offered",
    ]


def test_a_configuration_that_no_daemon_starts_on(ca: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = _site(tmp_path)
    text = config.read_text()
    for change, told in (
        (("site: edge", "site: other"), "is edge's, and this is site other"),
        (("ca.pem", "no.pem"), "no such file"),
        (("version", "versoin"), "unknown key 'versoin'; did you mean 'version'?"),
    ):
        capsys.readouterr()
        config.write_text(text.replace(*change))
        assert run(["check-config", "--config", str(config)]) == 2
        assert told in capsys.readouterr().err
    config.write_text(text)
    assert run(["pki", "revoke", "edge"]) == 0
    (tmp_path / "tls" / "crl.pem").write_bytes((ca / "crl.pem").read_bytes())
    capsys.readouterr()
    assert run(["check-config", "--config", str(config)]) == 2
    assert "our own certificate: the certificate of edge was revoked" in capsys.readouterr().err
