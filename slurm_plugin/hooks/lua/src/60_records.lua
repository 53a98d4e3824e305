-- slurmctld ---------------------------------------------------------------------------------------

local TEXTS = {
   per_node = "tres_per_node",
   per_job = "tres_per_job",
   per_task = "tres_per_task",
   per_socket = "tres_per_socket",
}

local function index(record, field)
   return record[field]
end

local function get(record, field)
   local ok, value = pcall(index, record, field)
   return ok and value or nil
end

local function text_of(record, field)
   local value = get(record, field)
   return type(value) == "string" and value ~= "(null)" and value or ""
end

-- Slurm's unset marks are the two largest values of a field's width.
local function number_of(record, field, unset)
   local value = get(record, field)
   if type(value) ~= "number" or value ~= value or value < 0 or value >= unset then return nil end
   return math.floor(value)
end

local UNSET16, UNSET32, UNSET64 = 65534, 4294967294, 2 ^ 62

local function say(text)
   if slurm.log_user then slurm.log_user("%s", text) end
end

local function say_no(text)
   say(text)
   return slurm.ESLURM_INVALID_GRES or INVALID_GRES
end

-- Does any of the four TRES texts speak of slices? Cheap, and true too often rather than too seldom.
local function mentions(record)
   for _, field in pairs(TEXTS) do
      local text = text_of(record, field):lower()
      if text:find(M.gres, 1, true) or text:find(M.mem, 1, true) then return true end
   end
   return false
end

-- The job as it will be: the description's fields, else those of the record (modify only).
local function job_of(desc, rec)
   local job = {}
   for key, field in pairs(TEXTS) do
      job[key] = text_of(desc, field)
   end
   local function count(field, unset, missing)
      local value = number_of(desc, field, unset)
      if value == nil and rec then value = number_of(rec, field, unset) end
      return value ~= missing and value or nil
   end
   local function hosts(field)
      local text = text_of(desc, field)
      return M.expand(text ~= "" and text or rec and text_of(rec, field) or "")
   end
   job.nodes_min = count("min_nodes", UNSET32, 0)
   job.nodes_max = count("max_nodes", UNSET32, 0)
   job.tasks = count("num_tasks", UNSET32, 0)
   job.tasks_per_node = count("ntasks_per_node", UNSET16, 0)
   job.sockets_per_node = count("sockets_per_node", UNSET16, 0)
   job.cpus_per_task = count("cpus_per_task", UNSET16, 0)
   job.cpus_per_node = count("pn_min_cpus", UNSET16, 0)
   job.memory_per_node = count("min_mem_per_node", UNSET64, 0)
   job.memory_per_cpu = not job.memory_per_node and count("min_mem_per_cpu", UNSET64, 0) or nil
   job.hosts, job.not_hosts = hosts("req_nodes"), hosts("exc_nodes")
   local shared = get(desc, "shared") -- 0: exclusive; 4: exclusive by topology, from 24.11
   job.exclusive = shared == 0 or shared == 4
   job.overcommit = get(desc, "overcommit") == 1
   return job
end

local function default_partition(part_list)
   for name, part in pairs(part_list or {}) do
      local flag = get(part, "flag_default")
      if flag == 1 or flag == true then return tostring(name) end
   end
   return ""
end

local led_by_script = false -- the het job whose parts come now, one after the other: sbatch's?

-- Of a het job only the first part has the script.
local function follow_het(desc)
   if number_of(desc, "het_job_offset", UNSET32) == 0 then led_by_script = text_of(desc, "script") ~= "" end
end

local function is_batch(desc)
   if (number_of(desc, "het_job_offset", UNSET32) or 0) > 0 then return led_by_script end
   return text_of(desc, "script") ~= ""
end

-- Up to 23.02 srun sends its own text once more when the step starts, and Slurm reads that by itself. `gres:` tells such
-- a client, a command line without a script tells srun from sbatch and salloc.
local function bad_for_old_srun(desc, text, decision)
   if text:sub(1, 5) ~= "gres:" then return nil end
   local class = ":" .. decision.class
   local tail = decision.term:sub(#M.gres + 1)
   local named = tail:sub(1, #class) == class
   if named then tail = tail:sub(#class + 1) end
   local bare = named and class:find("^:%d") -- a type that begins with a digit needs its count there
   if (tail == "" and not bare) or tail:find("^:%d+$") then return nil end
   if (number_of(desc, "argc", UNSET32) or 0) == 0 or is_batch(desc) then return nil end
   local form = string.format("%s%s:%d", M.gres, class, decision.count)
   local term = shown(decision.term)
   return refuse("this srun sends '%s' again when its step starts; write --gres=%s, or use sbatch", term, form)
end

-- `before`: the record with the texts that the decision was made from.
local function write(desc, decision, before)
   for key, field in pairs(TEXTS) do
      if key ~= "per_node" and decision[key] ~= text_of(before, field) then desc[field] = decision[key] end
   end
   desc.gres = decision.per_node
end

local function no_catalogue(why)
   if slurm.log_error then slurm.log_error("%s", "vgpu.lua: catalogue " .. M.catalogue .. ": " .. tostring(why)) end
   return say_no(M.gres .. ": slices can't be given out now: the pool's catalogue is missing or broken; tell your admins")
end

-- Is there a real request among the four texts? For when no catalogue can tell what it becomes.
local function asks(record)
   for _, field in pairs(TEXTS) do
      local text = text_of(record, field)
      if text ~= "" and M.parse(text) then return true end
   end
   return false
end

