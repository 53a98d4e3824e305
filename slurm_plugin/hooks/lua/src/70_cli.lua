-- The command line --------------------------------------------------------------------------------

local function in_a_job(options)
   local id = tonumber(get(options, "jobid") or nil)
   return id ~= nil and id > 0 and id < UNSET32
end

-- What to put in the place of options.gres, or nil; or a refusal.
function M.translate(text, step)
   local request = M.parse(text)
   if not request or request.refusal then return request end
   local cat = M.load()
   if step and request.want == "default" then -- in a job, a number alone means slices of the job's own class
      request.others[#request.others + 1] = string.format("%s:%d", M.gres, request.count)
      return table.concat(request.others, ",")
   end
   if not cat then
      if not step then return nil end -- job_submit will translate it, or say what to write
      local form = string.format("--gres=%s:%d", M.gres, request.count)
      return refuse("this host has no catalogue of slices (%s); inside a job write %s", M.catalogue, form)
   end
   local found = M.resolve(request, cat)
   if found.refusal then return found end
   return (found.gres:gsub(",?[^,]*$", "")) -- without the weight, which job_submit adds and a step does not need
end

-- The request with its name as Slurm's own client wants it, which refuses VGPU, gres/vgpu or `vgpu :1` before slurmctld sees
-- them; nil when it is so. What is asked for stays: job_submit keeps those words.
local function named_well(text)
   local request = M.parse(text)
   if not request or request.refusal then return request end
   local terms = request.others
   terms[#terms + 1] = M.gres .. request.term:sub(#M.gres + 1):gsub("=", ":"):gsub("%s+", "")
   local well = table.concat(terms, ",")
   local sent = text:gsub("^gres[:/]", ""):gsub(",gres[:/]", ",")
   return well ~= sent and not request.weight and well or nil
end

local function cli(options)
   local kind = get(options, "type")
   local text = text_of(options, "gres")
   if text == "" or kind ~= "srun" and kind ~= "salloc" and kind ~= "sbatch" then return 0 end
   local gres
   if kind == "sbatch" then
      gres = named_well(text)
   else
      gres = M.translate(text, kind == "srun" and in_a_job(options))
   end
   if type(gres) == "table" then
      if slurm.log_error then slurm.log_error("%s", gres.refusal) end
      return slurm.ESLURM_INVALID_GRES or INVALID_GRES
   end
   if gres then options.gres = gres end
   return 0
end

-- For slurm_cli_pre_submit. Comfort only: a user can go round it, so job_submit decides. An error here changes nothing.
function M.cli(options)
   local ok, rc = pcall(cli, options)
   return ok and rc or 0
end

return M
