-- Slices of GPUs, for job_submit.lua and cli_filter.lua. A site with scripts of its own adds two lines:
--
--     local vgpu = dofile("/etc/slurm/vgpu.lua")                            at the top
--     local rc = vgpu.submit(job_desc, part_list, uid) if rc ~= 0 then return rc end        in slurm_job_submit
--     local rc = vgpu.modify(job_desc, job_rec, part_list, uid) if rc ~= 0 then return rc end   in slurm_job_modify
--
-- slurmctld holds its locks while this runs, so it does nothing but read one small file: the catalogue, which is data and
-- never run. Jobs that ask for no slice pass untouched whatever is broken here; jobs that do are refused then.
--
-- One file, so that a site can't mix two versions of it, joined by scripts/lua of the parts in slurm_plugin/hooks/lua/src:
-- change those. For Lua 5.1 to 5.4. The grammar and every message are those of
-- slurm_plugin/request.py and job_request.py, held together by tests; change both.

local M = {
   catalogue = "/var/lib/vgpu/catalogue",
   gres = "vgpu", -- these two must be the catalogue's; they are needed when it is broken
   mem = "vgpu_mem",
   cloud = "", -- the partition of virtual nodes, whose jobs run at other sites; none
}

local VERSION = 1
local MAX_BYTES = 16777216
local MAX_TEXT = 4096
local MAX_TERMS = 64
local MAX_PREFIXES = 4
local MAX_DIGITS = 6
local MAX_COUNT = 999999
local MAX_SHOWN = 40
local MAX_OFFERED = 20
local MAX_PROFILES = 3
local MAX_NAMES = 64
local MAX_HOSTS = 5000
local MAX_WORDS = 200
local MAX_TASKS = 65533
local KEPT_MAX = 64
local KEPT_BYTES = 512
local NEAR = 2
local INVALID_GRES = 2072 -- slurm.ESLURM_INVALID_GRES is nil up to 22.05, and to return nil is to accept the job

