from pathlib import Path

import pytest

from slurm_plugin.errors import LabError
from slurm_plugin.lab.site import MAX_SOCKET_PATH, LabSpec, check_spec, from_text, to_text
from tests.unit.lab.labs import lab


def test_a_lab_survives_its_file() -> None:
    made = lab(nodes=3, products=("h100-80gb", "a30-24gb"), accounting=True, slurm_lines=("Licenses=a:1",))
    assert from_text(to_text(made)) == made


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"spec": {"name": "x"}, "folder": "/x"}'])
def test_a_broken_file_is_told_with_what_to_do(text: str) -> None:
    with pytest.raises(LabError) as told:
        from_text(text)
    assert "vgpu lab down" in told.value.hint


def test_products_go_round_the_nodes() -> None:
    made = lab(nodes=3, products=("a", "b"))
    assert [made.product_of(node) for node in made.nodes] == ["a", "b", "a"]


@pytest.mark.parametrize("name", ["", "Hpc", "1a", "a b", "a/b", "..", "a" * 21, "hpc\n", "-a", "é"])
def test_a_name_that_would_hurt_paths_is_refused(name: str) -> None:
    with pytest.raises(LabError, match="no name for a lab"):
        check_spec(LabSpec(name=name), Path("/run/x"))


@pytest.mark.parametrize(
    "spec", [LabSpec(nodes=0), LabSpec(nodes=65), LabSpec(gpus=0), LabSpec(gpus=17), LabSpec(products=())]
)
def test_sizes_have_bounds(spec: LabSpec) -> None:
    with pytest.raises(LabError):
        check_spec(spec, Path("/run/x"))


def test_a_folder_whose_sockets_would_not_fit_is_refused() -> None:
    ok, too_long = Path("/run/vgpu-lab/hpc"), Path("/" + "x" * 70)
    check_spec(LabSpec(), ok)
    with pytest.raises(LabError, match="too long"):
        check_spec(LabSpec(), too_long)
    made = lab(folder=ok, nodes=64)
    sockets = [made.munge_socket, made.control_socket, made.database_socket, *map(made.agent_socket, made.nodes)]
    assert max(len(str(path)) for path in sockets) <= MAX_SOCKET_PATH


@pytest.mark.parametrize("folder", ["/run/a b", "/run/a\tb", "/run/a#b"])
def test_a_folder_that_slurm_conf_cannot_name_is_refused(folder: str) -> None:
    with pytest.raises(LabError):
        check_spec(LabSpec(), Path(folder))
