-- For a site that has no job_submit.lua of its own; one that has adds the two lines that vgpu.lua tells.
-- vgpu.lua lies beside this file. slurmctld reads both again only when the time stamp of this one is newer than before.

local CATALOGUE = "/var/lib/vgpu/catalogue"
local CLOUD = "" -- the partition whose jobs run at other sites, where there is one

local folder = debug.getinfo(1, "S").source:match("^@(.*/)") or "./"
local loaded, vgpu = pcall(dofile, folder .. "vgpu.lua")
if loaded then
   vgpu.catalogue, vgpu.cloud = CATALOGUE, CLOUD
else
   slurm.log_error("%s", "job_submit.lua: " .. tostring(vgpu))
end

-- Without the module nobody can tell what a slice is: a job that speaks of one is refused, all others pass.
local function without(job_desc)
   for _, field in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }) do
      local ok, text = pcall(function() return job_desc[field] end)
      if ok and type(text) == "string" and text:lower():find("vgpu", 1, true) then
         slurm.log_user("%s", "vgpu: slices can't be given out now: vgpu.lua can't be loaded; tell your admins")
         return slurm.ESLURM_INVALID_GRES or 2072
      end
   end
   return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   if not loaded then return without(job_desc) end
   return vgpu.submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   if not loaded then return without(job_desc) end
   return vgpu.modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
