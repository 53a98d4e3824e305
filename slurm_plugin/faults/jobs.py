"""PURE: faults of jobs and of what they hold."""

from slurm_plugin.faults.fault import Fault

_END_JOB = "scontrol requeue {job} || scancel {job}"

JOBS = {
    "lost-slice": Fault(
        "{node}: job {job} holds {slices}, which is not there",
        "a slice was destroyed outside the pool, or the node restarted under the job",
        _END_JOB,
        passing=True,
    ),
    "short-grant": Fault(
        "{node}: job {job} asked {asked} and holds {held}",
        "Slurm believes that the job has more than it can see",
        _END_JOB,
    ),
    "double-grant": Fault(
        "{node}: {uuid} is held by jobs {jobs}",
        "two jobs share one slice: this must never happen, please report it",
        "scancel {job}",
    ),
    "stale-grant": Fault(
        "{node}: job {job} holds {slices} and Slurm knows no such run there",
        "the slices are lost to others until the agent has asked Slurm again, which it does twice a minute",
        "ssh {host} systemctl restart vgpu-agent",
        passing=True,
    ),
    "no-grant": Fault(
        "{node}: job {job} has been {state} for {age} s and holds no slice",
        "its prolog was lost, with slurmd or with the node's agent: it will not start by itself",
        _END_JOB,
        passing=True,
    ),
    "waiting-prolog": Fault(
        "{node}: job {job} has waited {waited} s in its prolog for a slice",
        "more was published than there is; the agent requeues the job after {limit} s",
        "vgpu show node {host}",
        passing=True,
    ),
    "stuck-prolog": Fault(
        "{node}: job {job} has waited {waited} s in its prolog for a slice",
        "the agent gives up after {limit} s and requeues the job; this one it could not",
        _END_JOB,
    ),
    "open-devices": Fault(
        "{node}: the devices of job {job} could not be made its user's alone",
        "any user who is on the node may be able to open its slices",
        "ssh {host} 'journalctl -u vgpu-agent --since -1hour | grep device.not_owned'",
    ),
    "unconfined-job": Fault(
        "{node}: a process of job {job} is in no device cgroup, though the node can make one",
        "it began while the node's agent was away, or the kernel refused (then the agent's log has cgroup.failed):"
        " until it ends it can open the slices of other jobs of its user",
        _END_JOB + "   # or let it end, where that user's jobs may see each other",
        passing=True,
    ),
    "held-job": Fault(
        "job {job}: Slurm holds it ({reason}) with {asked}",
        "Slurm looked at it without the wait partition; it is released once its class is there, and may be held anew",
        "scontrol update jobid={job} partition={partitions} && scontrol release {job}",
    ),
    "refused-job": Fault(
        "job {job}: Slurm holds it ({reason})",
        "its prolog failed or was killed, or Slurm used its id twice; once its node is resumed it still is held",
        "scontrol release {job}",
        passing=True,
    ),
    "unknown-class": Fault(
        "job {job}: it waits for class {name}, which this pool has no more",
        "a class or profile left pool.yaml while the job waited: it waits for ever",
        "scontrol update jobid={job} gres=vgpu:CLASS:{count}   # or scancel {job}",
    ),
}
