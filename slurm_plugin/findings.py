"""PURE: every fault that `vgpu doctor` and `vgpu render --check` know: one table, and the values made from it.

A check says what it saw as `found(code, facts)`; what that means and the line that mends it are here, and nowhere else.
docs/doctor.md shows this table, and a test plants each of its faults.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    code: str  # stable, for scripts
    what: str  # the fault, one line
    why: str  # what it does to jobs
    paste: str  # the line or command that mends it


@dataclass(frozen=True, slots=True)
class Fault:
    """Texts with the facts' names in braces."""

    what: str
    why: str
    paste: str
    passing: bool = False  # may be so for a moment and right itself: told only when two looks find it


def found(code: str, **facts: object) -> Finding:
    """The fault of this code with these facts. Raises KeyError for one that the table does not have."""
    fault = FAULTS[code]
    what, why, paste = (text.format_map(facts) for text in (fault.what, fault.why, fault.paste))
    return Finding(code=code, what=what, why=why, paste=paste)


def lasting(first: tuple[Finding, ...], second: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The second look's findings, less those that pass by themselves and were not there at the first."""
    before = {(finding.code, _subject(finding)) for finding in first}
    return tuple(f for f in second if not FAULTS[f.code].passing or (f.code, _subject(f)) in before)


def _subject(finding: Finding) -> str:
    """Node and job, GPU or class: what a finding is about, without the numbers that change."""
    return " ".join(finding.what.split()[:3])


_HELD = "a job whose class no node offers at the moment is refused, or held for good"
_RECOUNT = "systemctl restart vgpu-controller"
_END_JOB = "scontrol requeue {job} || scancel {job}"
_LUA_AGAIN = "cp /usr/share/vgpu/lua/vgpu.lua {folder}/ && touch {folder}/job_submit.lua"

_REACH = {
    "munge": Fault(
        "munge does not answer: {error}",
        "neither Slurm nor the pool's own parts believe anybody without it",
        "systemctl restart munge",
    ),
    "controller-away": Fault(
        "{error}",
        "jobs still start on what is published, but counts and layouts do not move",
        "systemctl restart vgpu-controller; journalctl -u vgpu-controller --since -10min",
    ),
    "pool-file": Fault(
        "{error}",
        "the controller does not start with such a file, and `vgpu apply` refuses it",
        "vgpu plan   # says whether all of it is right now",
    ),
    "slurm-away": Fault("{error}", "nothing of Slurm's side could be checked", "systemctl status slurmctld"),
    "agent-away": Fault(
        "{node}: its agent is not connected to the controller",
        "jobs there still start on what is published, but nothing is re-cut and no count is renewed",
        "ssh {host} systemctl restart vgpu-agent",
        passing=True,
    ),
    "version-mismatch": Fault(
        "{node}: its agent is version {agent}, and the controller is {controller}",
        "the two are tested together in one version only",
        "ssh {host} '/opt/vgpu/bin/pip install /usr/src/vgpu && systemctl restart vgpu-agent'",
    ),
    "clock-skew": Fault(
        "{node}: its clock is {ahead} s {way} the controller's",
        "munge refuses credentials that are too old or from the future, and then no job starts there",
        "ssh {host} chronyc makestep",
    ),
    "controller": Fault(
        "{problem}", "the controller itself reports this", "journalctl -u vgpu-controller --since -10min", passing=True
    ),
    "node": Fault(
        "{node}: {problem}", "the controller reports this of the node", "vgpu show node {host}", passing=True
    ),
}

_COUNTS = {
    "unpublished": Fault(
        "{node} has no class published",
        "Slurm is at its untyped base: no vgpu job starts; the controller puts this right in a few seconds when it can",
        _RECOUNT,
        passing=True,
    ),
    "over-published": Fault(
        "{node} class {name}: {published} published, {used} used, {idle} idle",
        "a job may start that no slice serves; it is then requeued",
        _RECOUNT,
        passing=True,
    ),
    "under-published": Fault(
        "{node} class {name}: {published} published, {used} used, {idle} idle",
        "idle slices stay unused",
        _RECOUNT,
        passing=True,
    ),
    "below-used": Fault(
        "{node} class {name}: {published} published, {used} used, {idle} idle",
        "Slurm's counters wrap when fewer are published than are used",
        _RECOUNT,
        passing=True,
    ),
    "drained": Fault(
        "{node}: Slurm's state is {state} ({reason})",
        "no job starts there, and only an admin ends a drain",
        "scontrol update nodename={host} state=resume",
    ),
    "drained-by-count": Fault(
        "{node}: Slurm drained it for its GRES count ({reason})",
        "slurmd registered with another total than slurm.conf had, or the total was edited while jobs ran",
        "scontrol update nodename={host} state=resume   # once slurm.conf and gres.conf are as `vgpu render` has them",
    ),
    "down": Fault(
        "{node}: Slurm's state is {state} ({reason})",
        "no job starts there",
        "ssh {host} systemctl restart slurmd",
        passing=True,
    ),
    "gpu-also": Fault(
        "{node}: Slurm also offers {gpus} whole gpu there, and {free} of the node's GPUs are not the pool's",
        "a job with --gres=gpu gets a GPU whose slices other jobs hold",
        "NodeName={host} ... Gres=gpu:{free},vgpu:...   # or `gpus: [...]` for this node in pool.yaml",
    ),
    "not-in-catalogue": Fault(
        "{node}: the catalogue does not know this node",
        "job_submit refuses requests that only this node could serve",
        _RECOUNT,
        passing=True,
    ),
    "wrong-offer": Fault(
        "{node}: {uuid} ({profile}) is offered as {name}",
        "the catalogue does not let that profile serve that class",
        _RECOUNT,
        passing=True,
    ),
}

_JOBS = {
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
        "more was published than there is; the agent requeues the job after 30 s",
        "vgpu show node {host}",
        passing=True,
    ),
    "stuck-prolog": Fault(
        "{node}: job {job} has waited {waited} s in its prolog for a slice",
        "the agent gives up after 30 s and requeues the job; this one it could not",
        _END_JOB,
    ),
    "open-devices": Fault(
        "{node}: the devices of job {job} could not be made its user's alone",
        "any user who is on the node may be able to open its slices",
        "ssh {host} 'journalctl -u vgpu-agent --since -1hour | grep device.not_owned'",
    ),
    "unconfined-job": Fault(
        "{node}: job {job} runs outside a device cgroup, though the node can make one",
        "it can open the slices of other jobs of its user",
        "ssh {host} 'journalctl -u vgpu-agent --since -1hour | grep cgroup.failed'",
        passing=True,
    ),
    "held-job": Fault(
        "job {job}: Slurm holds it ({reason}) with {asked}",
        "Slurm looked at it without the wait partition, and such a job never starts by itself",
        "scontrol update jobid={job} partition={partitions} && scontrol release {job}",
    ),
    "unknown-class": Fault(
        "job {job}: it waits for class {name}, which this pool has no more",
        "a class or profile left pool.yaml while the job waited: it waits for ever",
        "scontrol update jobid={job} gres=vgpu:CLASS:{count}   # or scancel {job}",
    ),
}

_GPUS = {
    "gpu-fault": Fault(
        "{node} GPU {index}: {fault}{jobs}",
        "the GPU is left out of the pool until this is gone",
        "{todo}",
    ),
    "mig-off": Fault(
        "{node} GPU {index}: MIG mode is {mig}",
        "no slice can be cut; some models need a reset or a reboot after the change",
        "ssh {host} 'nvidia-smi -i {index} -mig 1 && nvidia-smi --gpu-reset -i {index}'",
        passing=True,
    ),
    "empty-gpu": Fault(
        "{node} GPU {index}: MIG is enabled and nothing is cut",
        "it serves no job, and Slurm's own NVML plugin would take it for a whole GPU",
        "vgpu plan && vgpu apply",
        passing=True,
    ),
    "foreign-instance": Fault(
        "{node} GPU {index}: {profile} at {start} (GPU instance {gi}) is not the pool's",
        "others made it or use it: the pool works round it for ever and never offers it",
        "ssh {host} 'nvidia-smi mig -i {index} -gi {gi} -dci; nvidia-smi mig -i {index} -gi {gi} -dgi'",
    ),
    "slice-held": Fault(
        "{node} GPU {index}: {profile} at {start} is held by {who}",
        "no job has this slice, but these processes have not left it: nobody gets it until they end",
        "ssh {host} kill {pid}",
        passing=True,
    ),
    "half-made": Fault(
        "{node} GPU {index}: {profile} at {start} (GPU instance {gi}) has no compute instance",
        "its memory is taken and nothing can run on it",
        "ssh {host} nvidia-smi mig -i {index} -gi {gi} -dgi",
        passing=True,
    ),
}

_FILES = {
    "no-catalogue": Fault(
        "{path}: there is no catalogue",
        "job_submit refuses every vgpu request while the catalogue is missing",
        f"{_RECOUNT}   # it writes the catalogue",
    ),
    "catalogue": Fault(
        "{path}: {error}",
        "job_submit refuses every vgpu request while the catalogue is broken",
        f"rm {{path}}; {_RECOUNT}   # it writes the catalogue anew",
    ),
    "catalogue-old": Fault(
        "{path}: it is not the catalogue that the controller wrote last",
        "job_submit checks requests against nodes and classes of another day",
        f"rm {{path}}; {_RECOUNT}   # it writes the catalogue anew",
        passing=True,
    ),
    "catalogue-mode": Fault(
        "{path}: others than its owner can write it",
        "who writes the catalogue decides what jobs get",
        "chmod 644 {path}",
    ),
    "hook-conf": Fault(
        "{path}: {what}", "the hooks trust this file only when it is root's alone, and then bind no job", "{line}"
    ),
    "lua-not-run": Fault(
        "slurmctld's answer to a class that does not exist: {answer}",
        "our job_submit does not run: `vgpu:20gb` is a count of 20,000,000,000 to Slurm, and no class is checked",
        "vgpu render job_submit.lua",
    ),
    "lua-broken": Fault(
        "slurmctld says: {answer}", "every vgpu request is refused until job_submit works again", _LUA_AGAIN
    ),
    "catalogue-unread": Fault(
        "slurmctld says: {answer}",
        "every vgpu request is refused: job_submit.lua names another file, or SlurmUser may not read it",
        "grep -n catalogue {folder}/job_submit.lua   # must be the `catalogue:` of pool.yaml",
    ),
    "lua-differs": Fault(
        "{path}: it is not the vgpu.lua of this version",
        "requests are read by the rules of another version, or by a file that somebody edited",
        _LUA_AGAIN,
    ),
    "lua-unread": Fault(
        "{path}: it has changed, and slurmctld has not read it since",
        "slurmctld reads job_submit.lua anew only when its time stamp is newer than the last reading",
        "touch {folder}/job_submit.lua",
    ),
    "no-cli-filter": Fault(
        "{path}: there is no such file on this host",
        "with CliFilterPlugins=lua, every sbatch, srun and salloc of this host complains or fails",
        "cp /usr/share/vgpu/lua/vgpu.lua /usr/share/vgpu/lua/cli_filter.lua {folder}/",
    ),
    "client-gres-types": Fault(
        "{path}: GresTypes lacks {lacks} on this host",
        "sbatch and srun of this host refuse --gres=vgpu before slurmctld sees it",
        "GresTypes={values}",
    ),
    "resets-gpu": Fault(
        "{setting} runs: {line}",
        "it destroys or re-cuts the slices of other jobs, under them",
        "# take that line out of your {setting}; the pool cleans its slices itself",
    ),
}

_SETTINGS = {
    "slurm-version": Fault(
        "Slurm is {version}",
        "the pool is made for Slurm 22.05 and newer",
        "apt-get install slurm-wlm   # of a newer release",
    ),
    "gres-types": Fault(
        "GresTypes lacks {lacks}", "slurmctld and every client refuse a GRES they do not know", "GresTypes={values}"
    ),
    "prolog-flags": Fault(
        "PrologFlags lacks {lacks}",
        "without Alloc, salloc and srun start before their slice is bound",
        "PrologFlags={values}",
    ),
    "prolog-serial": Fault(
        "PrologFlags has Serial",
        "a prolog that waits for a slice then keeps out the epilog that would free one",
        "PrologFlags={values}",
    ),
    "prolog-nohold": Fault(
        "PrologFlags has NoHold", "srun starts its tasks before their slice is bound", "PrologFlags={values}"
    ),
    "job-submit-plugins": Fault(
        "JobSubmitPlugins lacks {lacks}",
        "without it `vgpu:20gb` is a count of 20,000,000,000 to Slurm, and no class is checked",
        "JobSubmitPlugins={values}",
    ),
    "accounting-storage-tres": Fault(
        "AccountingStorageTRES lacks {lacks}",
        "slices can be neither limited nor accounted",
        "AccountingStorageTRES={values}",
    ),
    "prolog-epilog-timeout": Fault(
        "PrologEpilogTimeout is {value} s, the pool's prolog may take up to {limit} s",
        "a prolog that waits for a slice is killed, and that drains the node",
        "PrologEpilogTimeout={limit}",
    ),
    "batch-start-timeout": Fault(
        "BatchStartTimeout is {value} s, the pool's prolog may take up to {limit} s",
        "a job whose prolog waits for a slice is taken for lost when slurmd registers",
        "BatchStartTimeout={limit}",
    ),
    "slurmd-timeout": Fault(
        "SlurmdTimeout is 0",
        "a node that dies is never DOWN to Slurm, and its jobs hold their slices for ever",
        "SlurmdTimeout=300",
    ),
    "enforce-part-limits": Fault(
        "EnforcePartLimits is NO",
        "a job over its partition's limits is taken and waits for ever, with the reason PartitionDown",
        "EnforcePartLimits=ANY",
    ),
    "no-prolog": Fault("Prolog {is_set}", "no job is given its slice", "{line}"),
    "no-epilog": Fault("Epilog {is_set}", "no slice comes back when a job ends", "{line}"),
    "no-task-prolog": Fault(
        "TaskProlog {is_set}", "jobs do not see CUDA_VISIBLE_DEVICES, and one without a slice runs", "{line}"
    ),
    "select-linear": Fault(
        "SelectType is select/linear",
        "every job gets whole nodes, so that one slice closes a node",
        "SelectType=select/cons_tres",
    ),
    "def-mem": Fault(
        "memory is a resource, and neither the cluster nor partition {partition} has a DefMemPerCPU",
        "a job without --mem takes all of a node's memory, and no other slice of that node can be used",
        "DefMemPerCPU=4000",
    ),
}

_NODES = {
    "no-partition": Fault(
        "there is no partition {partition}",
        "pool.yaml names it as the pool's",
        "PartitionName={partition} Nodes={hosts} State=UP",
    ),
    "misspelt-partition": Fault(
        "there is no partition {partition}; the nearest is {near}",
        "pool.yaml names it as the pool's: jobs in {near} get no slice",
        "partitions: [{near}]   # in pool.yaml, then vgpu apply",
    ),
    "exclusive": Fault(
        "partition {partition} has OverSubscribe=EXCLUSIVE",
        "each job takes all of a node, with every class of it and the padding",
        "PartitionName={partition} ... OverSubscribe=NO",
    ),
    "partition-nodes": Fault(
        "partition {partition} has none of the pool's nodes ({hosts})",
        "no vgpu job can start there",
        "PartitionName={partition} ... Nodes={hosts}",
    ),
    "no-wait-partition": Fault("partition {partition} is missing", _HELD, "{line}"),
    "wait-partition-up": Fault("partition {partition} is {state}, not DOWN", "jobs would start through it", "{line}"),
    "wait-partition-shown": Fault(
        "partition {partition} is not hidden", "users see it in sinfo, and ask what it is", "{line}"
    ),
    "wait-partition-nodes": Fault("partition {partition} lacks {hosts}", _HELD, "{line}"),
    "wait-partition-limits": Fault(
        "partition {partition} has {differs}",
        "a job that fits only the wait partition's limits is taken, and waits for ever",
        "{line}",
    ),
    "no-node": Fault("Slurm has no node {hosts}", "pool.yaml names it as the pool's", "{line}"),
    "total-k": Fault(
        "the total of {name}, {total}, is a multiple of 1024",
        "Slurm prints it as a number of K, which other tools misread",
        "gres: {{total: 1000}}   # in pool.yaml",
    ),
    "gres-total": Fault(
        "node {node} has {has} {name}, not {total}",
        "the total must be the one of slurm.conf for ever: a registration with another drains the node",
        "{line}",
    ),
    "conf-total": Fault(
        "{file} gives node {node} {has} {name}, not {total}",
        "Slurm takes that up at a restart or reconfigure, and the next registration drains the node",
        "{line}",
    ),
    "gres-file": Fault(
        "gres.conf gives {name} device files: {text}",
        "one such line, for any node, makes the counts of every node fixed until slurmctld restarts",
        "{line}",
    ),
    "gres-type": Fault(
        "gres.conf gives {name} a type: {text}",
        "a class whose count is 0 when slurmd registers then takes back the file's counts",
        "{line}",
    ),
    "autodetect": Fault(
        "gres.conf detects GPUs by NVML on nodes of the pool: {text}",
        "slurmd counts MIG devices anew when it registers; after a change of layout that drains the node. "
        "The pool finds GPUs by itself, whether or not slurmd was built with NVML",
        "NodeName={hosts} AutoDetect=off",
    ),
}

FAULTS: Mapping[str, Fault] = _REACH | _COUNTS | _JOBS | _GPUS | _FILES | _SETTINGS | _NODES
