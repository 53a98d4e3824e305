"""PURE: the pool's half of a lab's files: pool.yaml, each agent's file, and what the hooks read."""

from slurm_plugin.lab.render import PARTITION, WAIT_PARTITION, File
from slurm_plugin.lab.site import Lab
from slurm_plugin.mig.geometry import Product
from slurm_plugin.mig.products import product_named

# Compute slices of the instances that a lab's GPUs start with, by the product's own number: something of every size.
_START = {7: (3, 2, 1, 1), 4: (2, 1, 1)}


def pool_files(lab: Lab) -> tuple[File, ...]:
    files = [File(path=lab.pool_config, text=pool_yaml(lab))]
    for node in lab.nodes:
        files.append(File(path=lab.agent_config(node), text=agent_yaml(lab, node)))
        files.append(File(path=lab.hooks(node) / "hook.conf", text=f"socket {lab.agent_socket(node)}\n"))
    return tuple(files)


def start_layout(product: Product) -> dict[str, int]:
    """The layout of a lab's GPUs until somebody changes pool.yaml: profile -> count. It fills the GPU."""
    layout: dict[str, int] = {}
    for slices in _START[product.compute_slices]:
        plain = [p for p in product.profiles.values() if p.compute_slices == slices and not set(p.name) & set("+-")]
        name = min(plain, key=lambda profile: profile.size).name
        layout[name] = layout.get(name, 0) + 1
    return layout


def pool_yaml(lab: Lab) -> str:
    groups: dict[str, list[str]] = {}
    for node in lab.nodes:
        groups.setdefault(lab.product_of(node), []).append(node)
    smallest = list(start_layout(product_named(lab.spec.products[0])))[-1]
    lines = [
        "# The policy of this lab's pool. Change it, look with `vgpu plan`, then `vgpu apply`.",
        "version: 1",
        f"pool: {lab.name}",
        f"partitions: [{PARTITION}]",
        f"wait_partition: {WAIT_PARTITION}",
        f"default_class: {smallest}",
        "nodes:",
    ]
    for product, nodes in groups.items():
        layout = ", ".join(f"{name}: {count}" for name, count in start_layout(product_named(product)).items())
        lines += [
            f"  - hosts: {','.join(nodes)}",
            f"    layout: {{{layout}}}",
            f"    product: {product}",
            f"    count: {lab.spec.gpus}",
        ]
    lines += [
        "controller:",
        f"  listen: 127.0.0.1:{lab.ports.controller}",
        f"  state_dir: {lab.state / 'controller'}",
        f"  catalogue: {lab.catalogue}",
        f"  job_ids: {lab.job_ids}",
        f"  slurm_conf: {lab.slurm_conf}",
        f"  munge_socket: {lab.munge_socket}",
    ]
    return "\n".join(lines) + "\n"


def cgroup_of(lab: Lab, node: str) -> str:
    """The name of the folder for the device cgroups of this node's jobs; two labs of one name differ by a port."""
    return f"vgpu-{lab.name}-{node}-{lab.ports.controller}"


def agent_yaml(lab: Lab, node: str) -> str:
    settings = {
        "node": node,
        "controller": f"127.0.0.1:{lab.ports.controller}",
        "socket": lab.agent_socket(node),
        "state_dir": lab.state / f"agent-{node}",
        "proc_root": lab.node_folder(node) / "proc",
        "dev_root": lab.node_folder(node) / "dev",
        "slurm_conf": lab.slurm_conf,
        "munge_socket": lab.munge_socket,
        "cgroup": cgroup_of(lab, node),
    }
    return "".join(f"{name}: {value}\n" for name, value in settings.items())
