-- For login nodes that have no cli_filter.lua of their own. It translates what srun and salloc are asked for, so that
-- every form works with them too. Comfort only: whoever goes round it is told by job_submit what to write.
-- vgpu.lua lies beside this file, and the catalogue is the controller's, on a shared folder or copied.

local CATALOGUE = "/var/lib/vgpu/catalogue"

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local loaded, vgpu = pcall(dofile, folder .. "vgpu.lua")
if loaded then vgpu.catalogue = CATALOGUE end

function slurm_cli_setup_defaults(options, early_pass)
   return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
   return loaded and vgpu.cli(options) or slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
   return slurm.SUCCESS
end

return slurm.SUCCESS
