-- vgpu.lua lies beside your job_submit.lua, on every host that runs slurmctld. Once at the top:
local vgpu = dofile("/etc/slurm/vgpu.lua"); vgpu.catalogue = "/var/lib/vgpu/catalogue"

-- First in slurm_job_submit(job_desc, part_list, submit_uid):
local rc = vgpu.submit(job_desc, part_list, submit_uid); if rc ~= slurm.SUCCESS then return rc end

-- First in slurm_job_modify(job_desc, job_rec, part_list, modify_uid):
local rc = vgpu.modify(job_desc, job_rec, part_list, modify_uid); if rc ~= slurm.SUCCESS then return rc end

-- Slurm reads job_submit.lua anew when its time stamp is newer, and never looks at vgpu.lua: touch it after an update.
-- A site with no job_submit.lua installs the pool's, beside vgpu.lua in /etc/slurm.
