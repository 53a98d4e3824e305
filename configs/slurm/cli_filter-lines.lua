-- Optional: with it srun takes every form of a request, inside a job too. Once slurm.conf names it, sbatch, srun and
-- salloc fail on every host that lacks the file, so keep this order:
-- 1. On every host that reads this slurm.conf: vgpu.lua and cli_filter.lua in /etc/slurm, and the catalogue at
--    /var/lib/vgpu/catalogue, readable by all (a shared folder, or a copy made every minute; without it only
--    srun inside a job is told what to write).
-- 2. Then, and not before, in slurm.conf, which the commands read each time they run:
--        CliFilterPlugins=lua

-- A site with a cli_filter.lua keeps it, puts vgpu.lua beside it, and adds, once at the top:
local vgpu = dofile("/etc/slurm/vgpu.lua"); vgpu.catalogue = "/var/lib/vgpu/catalogue"

-- First in slurm_cli_pre_submit(options, pack_offset):
local rc = vgpu.cli(options); if rc ~= slurm.SUCCESS then return rc end

-- A site with no cli_filter.lua installs the pool's, beside vgpu.lua in /etc/slurm.
