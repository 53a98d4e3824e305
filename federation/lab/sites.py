"""fed.yaml and certificates of two labs: `hpc` has the virtual node NODE, and `cloud` the pool behind it."""

from dataclasses import dataclass
from pathlib import Path

from federation.cli.main import run
from slurm_plugin.errors import LabError
from slurm_plugin.lab.site import Lab

NODE = "cloud-1"
_SITE = """version: 1
site: {name}
state_dir: {folder}/state
tls: {{certificate: {folder}/site.pem, ca: [{folder}/ca.pem], crl: [{folder}/crl.pem]}}
local: {{socket: {folder}.sock, environment: ["*"]}}
audit: {{path: {folder}/audit.log}}
"""
_HPC = """peers: {{cloud: {{address: '127.0.0.1:{reached}'}}}}
overflow:
  cluster: {hpc.name}
  conf: {hpc.slurm_conf}
  socket: {hpc.gateway_socket}
  rules: {rules}
  nodes:
    cloud: {{pool: cloud/batch, gateway: {hpc.hostname}, cpus: 4096, memory_mib: 16000000, most_jobs: 2000}}
"""
_CLOUD = """listen: 127.0.0.1:{listen}
pools: {{batch: {{slurm: {{folder: {folder}/spool, conf: {cloud.slurm_conf}{slices}}}}}}}
peers: {{hpc: {{pools: [batch], users: {{{user}: {user}}}}}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """`user`: whose jobs may run there. `rules`: of `overflow:`, as YAML. Ports are loopback's."""

    user: str
    listen: int  # of cloud's daemon
    reached: int  # where hpc's daemon finds it
    rules: str = "{}"


def write_sites(folder: Path, hpc: Lab, cloud: Lab, terms: Terms) -> None:
    """<folder>/hpc/fed.yaml and <folder>/cloud/fed.yaml, and all that they name. Raises LabError.

    A daemon's socket is <folder>/hpc.sock, or cloud.sock. The user may pass `folder`.
    """
    overflow = _HPC.format(
        hpc=hpc,
        reached=terms.reached,
        rules=terms.rules,
    )
    if hpc.spec.pool:
        overflow += f"  pool_yaml: {hpc.pool_config}\n"
    slices = f", partition: gpu, catalogue: {cloud.catalogue}" if cloud.spec.pool else ""
    offers = _CLOUD.format(folder=folder, cloud=cloud, slices=slices, listen=terms.listen, user=terms.user)
    (folder / "spool").mkdir(mode=0o711)
    pki = ("--folder", str(folder / "pki"))
    _fed("pki", "init", "lab", *pki)
    for name, text in (("cloud", offers), ("hpc", overflow)):
        site = folder / name
        _fed("pki", "issue", name, *pki, "--out", str(site))
        (site / "fed.yaml").write_text(_SITE.format(name=name, folder=site) + text)


def _fed(*words: str) -> None:
    if run(list(words)) != 0:
        raise LabError(f"fed {' '.join(words[:2])} failed")
