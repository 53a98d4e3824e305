"""Slurm's commands as a table of jobs that never change answers them: for daemons that are processes of their own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_plugin.slurm import table

_SQUEUE = """#!/bin/sh
# The words of a job stand in one line each, in the order of the first one; the format tells which are wanted.
for word; do case $word in --jobs=*) wanted=,${word#--jobs=},;; esac; last=$word; done
exec awk -F '\\t' -v wanted="$wanted" -v form="$last" -v dir="${0%/*}" '
NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; count = split(form, asked, ",") }
NR > 1 && (wanted == "" || index(wanted, "," $1 ",")) {
    note = ""
    getline note < (dir "/notes/" $1)
    for (i = 1; i <= count; i++) {
        cut = index(asked[i], ":0")
        field = substr(asked[i], 1, cut - 1)
        printf "%s%s", field == "admin_comment" ? note : $at[field], substr(asked[i], cut + 2)
    }
    print ""
}' "${0%/*}/jobs"
"""
_SCONTROL = """#!/bin/sh
# Keeps what is written on a job.
case $3 in admincomment=*) printf '%s' "${3#admincomment=}" > "${0%/*}/notes/${2#jobid=}" ;; esac
"""


def install(folder: Path, jobs: Sequence[Mapping[str, str]]) -> None:
    """`folder` is a bin_dir. Each job: field of squeue -> what it says."""
    folder.mkdir()
    names = list(jobs[0])
    assert names[0] == "JobID"
    rows = ["\t".join(names), *("\t".join(job[name] for name in names) for job in jobs)]
    (folder / "jobs").write_text("\n".join(rows) + "\n")
    (folder / "notes").mkdir()
    for name, script in (("squeue", _SQUEUE), ("scontrol", _SCONTROL), ("scancel", "#!/bin/sh\n")):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)


def running(job_id: int, uid: int, node: str, partition: str) -> dict[str, str]:
    """A batch job that runs on this node."""
    facts = {"JobID": str(job_id), "ArrayJobID": str(job_id), "ArrayTaskID": "N/A", "UserID": str(uid)}
    facts |= {"State": "RUNNING", "Reason": "None", "Partition": partition, "NodeList": node, "RestartCnt": "0"}
    facts |= {"SubmitTime": "100", "StartTime": "110", "TimeLimit": "UNLIMITED", "BatchFlag": "1", "Requeue": "1"}
    facts |= {"admin_comment": "", "NumCPUs": "1", "MinMemory": "0", "tres-alloc": "cpu=1,node=1,billing=1"}
    return facts | {"tres-per-node": "N/A", "Account": "(null)"}


assert table.squeue_format(("JobID",), "~x") == "JobID:0~x"  # what the script above cuts up
