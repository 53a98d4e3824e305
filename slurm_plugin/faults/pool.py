"""PURE: faults of the pool's own parts: who answers, what is published, the GPUs."""

from slurm_plugin.faults.fault import RECOUNT, Fault

REACH = {
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
        "date; ssh {host} 'date; systemctl restart vgpu-agent'   # munge refuses an agent whose clock is a minute off",
        passing=True,
    ),
    "two-agents": Fault(
        "{node}: {problem}",
        "what one of them has is published and cut on the other's word, and no job starts there for long",
        "systemctl disable --now vgpu-agent   # on the host that is not {node}, or another `node:` in its agent.yaml",
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
    "clock-refused": Fault(
        "{problem}",
        "credentials are good for a minute: its agent, if it has one, never connects, and Slurm starts no job there",
        "date; ssh {host} 'date; chronyc makestep'   # or here, where all are refused",
        passing=True,
    ),
    "controller": Fault(
        "{problem}", "the controller itself reports this", "journalctl -u vgpu-controller --since -10min", passing=True
    ),
    "rival": Fault(
        "{problem}",
        "another controller of this pool, or a script: while two write, jobs start on what neither has; a controller "
        "leaves the nodes alone whose agents do not call it",
        "systemctl disable --now vgpu-controller   # on every host but the one that agents call: /etc/vgpu/agent.yaml",
    ),
    "paused": Fault(
        "re-cutting is paused since {since} by uid {uid}{reason}",
        "no GPU is re-cut, for the queue or for pool.yaml: jobs wait until there are slices for them by chance",
        "vgpu resume",
    ),
    "node": Fault(
        "{node}: {problem}", "the controller reports this of the node", "vgpu show node {host}", passing=True
    ),
}

COUNTS = {
    "unpublished": Fault(
        "{node} has no class published",
        "Slurm is at its untyped base: no vgpu job starts; the controller puts this right in a few seconds when it can",
        RECOUNT,
        passing=True,
    ),
    "over-published": Fault(
        "{node} class {name}: {published} published, {used} used, {idle} idle",
        "a job may start that no slice serves; it is then requeued",
        RECOUNT,
        passing=True,
    ),
    "under-published": Fault(
        "{node} class {name}: {published} published, {used} used, {idle} idle",
        "idle slices stay unused",
        RECOUNT,
        passing=True,
    ),
    "below-used": Fault(
        "{node} class {name}: {published} published, {used} used, {idle} idle",
        "Slurm's counters wrap when fewer are published than are used",
        RECOUNT,
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
    "drained-by-prolog": Fault(
        "{node}: Slurm drained it because a prolog failed ({reason})",
        "the pool's own prolog fails only when it is killed, another one of the site's for its own reasons; no job "
        "starts there until an admin ends the drain, and Slurm holds the jobs",
        "ssh {host} 'grep -rh prolog /var/log/slurm* | tail'; scontrol update nodename={host} state=resume",
    ),
    "drained-by-id": Fault(
        "{node}: Slurm drained it because it had used a job's id twice ({reason})",
        "nothing is wrong with the node: the controller ends this once the node's agent is there and no forgotten job "
        "runs on it, unless pool.yaml has `duplicate_jobid: report`",
        "scontrol update nodename={host} state=resume",
        passing=True,
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
        RECOUNT,
        passing=True,
    ),
    "wrong-offer": Fault(
        "{node}: {uuid} ({profile}) is offered as {name}",
        "the catalogue does not let that profile serve that class",
        RECOUNT,
        passing=True,
    ),
}

GPUS = {
    "gpu-fault": Fault(
        "{node} GPU {index}: {fault}{jobs}",
        "the GPU is left out of the pool until this is gone",
        "{line}",
    ),
    "mig-off": Fault(
        "{node} GPU {index}: MIG mode is {mig}",
        "no slice can be cut; models before Hopper have to be reset for it, which planning.reset_gpus allows",
        "{line}",
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
    "slice-outlived": Fault(
        "{node} GPU {index}: {profile} at {start} is held by {who}",
        "their job is over, and they fork faster than they can be named: nobody gets this slice until they end",
        "ssh {host} 'echo 1 > {cgroup}/cgroup.kill'",
        passing=True,
    ),
    "slice-claimed": Fault(
        "{node} GPU {index}: {profile} at {start} is held by {who}",
        "the agent's files do not say whose this slice is: nobody gets it until no such job runs on the node",
        "squeue -w {node}",
        passing=True,
    ),
    "slice-unseen": Fault(
        "{node} GPU {index}: {profile} at {start} is held by {who}",
        "its last job is over, and the agent can't find out who has it open still: nobody gets it until it can",
        "ssh {host} 'journalctl -u vgpu-agent --since -1hour | grep -E \"slice[.]|driver[.]\"'",
        passing=True,
    ),
    "half-made": Fault(
        "{node} GPU {index}: {profile} at {start} (GPU instance {gi}) has no compute instance",
        "its memory is taken and nothing can run on it",
        "ssh {host} nvidia-smi mig -i {index} -gi {gi} -dgi",
        passing=True,
    ),
}
