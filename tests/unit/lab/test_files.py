from pathlib import Path

import pytest
import yaml

from slurm_plugin.agent.config import parse_config
from slurm_plugin.config import parse_pool
from slurm_plugin.lab.daemons import daemons_of, environment
from slurm_plugin.lab.pool_files import agent_yaml, pool_files, pool_yaml, start_layout
from slurm_plugin.lab.processes import MARK
from slurm_plugin.lab.render import slurm_files
from slurm_plugin.lab.site import Lab
from slurm_plugin.mig.geometry import Product
from slurm_plugin.mig.layouts import place
from slurm_plugin.mig.products import load_products, product_named
from tests.unit.lab.labs import lab


def settings(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines() if line and not line.startswith(("#", "Include ")))
    return {key: value for key, _, value in pairs}


def text_of(made: Lab, name: str) -> str:
    return {str(file.path): file.text for file in slurm_files(made)}[name]


def test_everything_of_slurms_is_private_to_the_folder_and_on_loopback() -> None:
    made = lab(nodes=2)
    conf = settings(text_of(made, "/run/vgpu-lab/hpc/etc/common.conf"))
    assert conf.pop("AuthInfo") == "socket=/run/vgpu-lab/hpc/run/munge.sock,cred_expire=120"
    paths = [value for value in conf.values() if value.startswith("/")]
    assert {path for path in paths if not path.startswith("/run/vgpu-lab/hpc/")} == {"/bin/true"}
    assert conf["CommunicationParameters"] == "NoInAddrAny,NoCtldInAddrAny"
    assert conf["SlurmctldHost"] == "host(127.0.0.1)"
    assert text_of(made, "/run/vgpu-lab/hpc/etc/common.conf").count("NodeAddr=127.0.0.1 ") == 2


def test_hooks_are_each_nodes_own_and_all_else_is_shared() -> None:
    made = lab(nodes=2)
    for node in made.nodes:
        text = text_of(made, f"/run/vgpu-lab/hpc/etc/{node}/slurm.conf")
        assert text.startswith("Include /run/vgpu-lab/hpc/etc/common.conf\n")
        assert settings(text)["TaskProlog"] == f"/run/vgpu-lab/hpc/hooks/{node}/vgpu-taskprolog"
    assert "Prolog=" not in text_of(made, "/run/vgpu-lab/hpc/etc/common.conf").replace("PrologFlags", "")


def test_a_lab_without_the_pool_is_a_plain_slurm() -> None:
    made = lab(pool=False)
    everything = "".join(file.text for file in slurm_files(made))
    assert "vgpu:" not in everything
    assert "lua" not in everything
    assert {daemon.name for daemon in daemons_of(made, "python")} == {"munged", "slurmctld", "slurmd:n1", "slurmd:n2"}


def test_accounting_brings_its_two_daemons_and_a_file_nobody_else_can_read() -> None:
    made = lab(accounting=True)
    names = [daemon.name for daemon in daemons_of(made, "python")]
    assert names[:4] == ["munged", "mariadbd", "slurmdbd", "slurmctld"]
    files = {file.path.name: file for file in slurm_files(made)}
    assert files["slurmdbd.conf"].mode == 0o600
    assert settings(files["common.conf"].text)["AccountingStorageTRES"] == "gres/vgpu,gres/vgpu_mem"
    assert "slurmdbd.conf" not in {file.path.name for file in slurm_files(lab())}


def test_cgroups_are_switched_off_where_slurm_knows_the_word() -> None:
    assert text_of(lab(version=(22, 5)), "/run/vgpu-lab/hpc/etc/cgroup.conf") == ""
    assert text_of(lab(version=(24, 11)), "/run/vgpu-lab/hpc/etc/cgroup.conf") == "CgroupPlugin=disabled\n"


def test_own_lines_come_last() -> None:
    text = text_of(lab(slurm_lines=("Licenses=a:1",)), "/run/vgpu-lab/hpc/etc/common.conf")
    assert text.endswith("\nLicenses=a:1\n")


def test_a_daemons_environment_is_all_ours_and_slurm_conf_is_its_last() -> None:
    made = lab()
    for daemon in daemons_of(made, "/venv/bin/python"):
        env = environment(made, daemon, "/venv/bin/python")
        assert env[MARK] == f"/run/vgpu-lab/hpc:{daemon.name}"
        if daemon.name.startswith("slurm"):
            # The room for slurmstepd's title: what comes before.
            before = "".join(f"{key}={value}" for key, value in env.items()).partition("SLURM_CONF=")[0]
            assert len(before) > len("slurmstepd: [4294967295.4294967295]")
    assert environment(made, daemon, "x")["SLURM_CONF"] == "/run/vgpu-lab/hpc/etc/n2/slurm.conf"


@pytest.mark.parametrize("product", list(load_products().values()), ids=lambda product: product.key)
def test_every_products_start_layout_fits_and_fills_it(product: Product) -> None:
    layout = start_layout(product)
    profiles = product.profiles
    assert place(profiles, layout) is not None
    assert sum(profiles[name].compute_slices * count for name, count in layout.items()) == product.compute_slices


def test_the_start_layout_of_an_h100() -> None:
    assert start_layout(product_named("h100-80gb")) == {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}


def test_pool_yaml_is_one_that_the_controller_takes() -> None:
    pool = parse_pool(pool_yaml(lab(nodes=3, gpus=2, products=("h100-80gb", "a30-24gb"))))
    assert pool.hosts == ("n1", "n3", "n2")
    assert [(group.product, group.count) for group in pool.groups] == [("h100-80gb", 2), ("a30-24gb", 2)]
    assert pool.default_class == "1g.10gb"
    assert pool.controller.munge_socket == Path("/run/vgpu-lab/hpc/run/munge.sock")
    assert pool.controller.dial == "127.0.0.1:11003"


def test_agent_yaml_is_one_that_the_agent_takes_and_the_hooks_find_its_socket() -> None:
    made = lab()
    config = parse_config(yaml.safe_load(agent_yaml(made, "n2")))
    assert (config.node, config.controller) == ("n2", "127.0.0.1:11003")
    files = {str(file.path): file.text for file in pool_files(made)}
    assert files["/run/vgpu-lab/hpc/hooks/n2/hook.conf"] == f"socket {config.socket}\n"
