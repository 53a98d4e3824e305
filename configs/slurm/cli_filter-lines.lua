-- vgpu.lua lies beside your cli_filter.lua, on every login node; the catalogue is on a shared folder or copied there.
-- Once at the top:
local vgpu = dofile("/etc/slurm/vgpu.lua"); vgpu.catalogue = "/var/lib/vgpu/catalogue"

-- First in slurm_cli_pre_submit(options, pack_offset):
local rc = vgpu.cli(options); if rc ~= slurm.SUCCESS then return rc end

-- A site with no cli_filter.lua installs the pool's, beside vgpu.lua in /etc/slurm.
