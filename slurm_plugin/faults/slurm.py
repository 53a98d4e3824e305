"""PURE: faults of Slurm's settings, its partitions and nodes."""

from slurm_plugin.faults.fault import Fault

_HELD = "a job whose class no node offers at the moment is refused, or held for good"

SETTINGS = {
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

NODES = {
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
    "partition-tier": Fault(
        "partition {partition} has PriorityTier=0, as the wait partition has",
        "Slurm looks at a job's partitions by tier: the one that is never open must come last",
        "PartitionName={partition} ... PriorityTier=1",
    ),
    "no-wait-partition": Fault("partition {partition} is missing", _HELD, "{line}"),
    "wait-partition-up": Fault(
        "partition {partition} is {state}, not DOWN",
        "jobs would start through it",
        "scontrol update partitionname={partition} state=down   # and State=DOWN in slurm.conf, for its next start",
    ),
    "wait-partition-shown": Fault(
        "partition {partition} is not hidden", "users see it in sinfo, and ask what it is", "{line}"
    ),
    "wait-partition-tier": Fault(
        "partition {partition} has PriorityTier={tier}, not 0",
        "Slurm looks at a job's partitions by tier: the one that is never open must come last",
        "{line}",
    ),
    "wait-partition-nodes": Fault("partition {partition} lacks {hosts}", _HELD, "{line}"),
    "wait-partition-limits": Fault(
        "partition {partition} has {differs}",
        "a job that fits only the wait partition's limits is taken, and waits for ever",
        "{line}",
    ),
    "partitions-differ": Fault(
        "the pool's partitions differ in {limit}: {told}",
        "Slurm takes a job that fits any of its partitions, and the wait partition can't have both limits: a job "
        "over that of its own waits for ever",
        "PartitionName={partition} ... {limit}={value}",
    ),
    "drained-elsewhere": Fault(
        "{hosts}: not the pool's, and drained by Slurm because a prolog or epilog failed",
        "slurm.conf names {named} for all nodes: one that lacks the file drains at its first job",
        "scontrol update nodename={host} state=resume   # with {folder} copied there, and without /etc/vgpu",
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
        "{line}   # where slurm.conf has it, somebody changed it live: scontrol reconfigure",
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
