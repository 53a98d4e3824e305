"""PURE: faults of files: the catalogue, the hooks', the Lua, a client's."""

from slurm_plugin.faults.fault import RECOUNT, Fault

_LUA_AGAIN = "cp /usr/share/vgpu/lua/vgpu.lua {folder}/ && touch {folder}/job_submit.lua"

FILES = {
    "no-catalogue": Fault(
        "{path}: there is no catalogue",
        "job_submit refuses every vgpu request while the catalogue is missing",
        f"{RECOUNT}   # it writes the catalogue",
    ),
    "catalogue": Fault(
        "{path}: {error}",
        "job_submit refuses every vgpu request while the catalogue is broken",
        f"rm {{path}}; {RECOUNT}   # it writes the catalogue anew",
    ),
    "catalogue-old": Fault(
        "{path}: it is not the catalogue that the controller wrote last",
        "job_submit checks requests against nodes and classes of another day",
        f"rm {{path}}; {RECOUNT}   # it writes the catalogue anew",
        passing=True,
    ),
    "catalogue-mode": Fault(
        "{path}: {what}",
        "who writes the catalogue decides what jobs get: the controller's user, and nobody else",
        "chown {user}: {path}; chmod 644 {path}",
    ),
    "hook-conf": Fault(
        "{path}: {what}", "the hooks trust this file only when it is root's alone, and then bind no job", "{line}"
    ),
    "lua-mode": Fault(
        "{path}: {what}",
        "slurmctld runs it: who can write it decides what every job may do",
        "chown root: {path}; chmod 644 {path}",
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
    "no-job-ids": Fault(
        "{path}: it does not include {job_ids}, which pool.yaml names as controller.job_ids",
        "a slurmctld that is killed uses the ids of jobs that it forgot again, and nodes drain for `Duplicate jobid`",
        "Include {job_ids}",
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
