-- A submission is decided by these fields and the catalogue alone: job_of gets nothing else to read.
local TRES = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }
local OTHERS = {
   "min_nodes",
   "max_nodes",
   "num_tasks",
   "ntasks_per_node",
   "sockets_per_node",
   "cpus_per_task",
   "pn_min_cpus",
   "min_mem_per_node",
   "min_mem_per_cpu",
   "req_nodes",
   "exc_nodes",
   "shared",
   "overcommit",
   "partition",
}

local function copy(names, from, to)
   for _, name in ipairs(names) do
      to[name] = get(from, name)
   end
end

local function same(names, one, other)
   for _, name in ipairs(names) do
      if one[name] ~= other[name] then return false end
   end
   return true
end

local function is_small(fields)
   local bytes = 0
   for _, value in pairs(fields) do
      bytes = bytes + (type(value) == "string" and #value or 0)
   end
   return bytes <= KEPT_BYTES
end

local spare = {} -- the table for the next job's fields: every one of them is written before any is read

-- Jobs come in swarms of one kind: for each request text the last decision is kept, as long as the catalogue is. Bounds:
-- KEPT_MAX of them, of jobs with KEPT_BYTES of text.
local function decided(fields, cat)
   local text = text_of(fields, "tres_per_node")
   local kept = cat.kept[text]
   if kept and same(TRES, kept.fields, fields) and same(OTHERS, kept.fields, fields) then return kept.decision end
   local job = job_of(fields)
   job.partition = text_of(fields, "partition")
   local decision = M.decide(job, cat)
   if not is_small(fields) then return decision end
   if cat.kept_count == KEPT_MAX then cat.kept, cat.kept_count = {}, 0 end
   cat.kept_count = cat.kept_count + (cat.kept[text] and 0 or 1)
   cat.kept[text] = { fields = fields, decision = decision }
   return decision
end

local STEP_REQUESTS = { "SLURM_GRES", "SLURM_STEP_GRES" } -- what srun takes for --gres

-- Submitted from inside a job, a batch job inherits that one's variables, and each srun of its own asks for what they say.
local function warn_of_inherited(desc)
   local environment = get(desc, "environment")
   for _, name in ipairs(environment and STEP_REQUESTS or {}) do
      local value = text_of(environment, name)
      if value ~= "" then
         local warning = "%s: warning: each srun in this job will ask for %s=%s, which is in your environment; "
         say(string.format(warning .. "submit with: env -u %s sbatch", M.gres, name, shown(value), name))
      end
   end
end

local function remark(desc, words)
   local before = text_of(desc, "admin_comment")
   desc.admin_comment = (before ~= "" and before .. " " or "") .. words
end

-- What this partition never starts of it, in words; nil: it may.
local function beyond(desc, part)
   local minutes, longest = number_of(desc, "time_limit", UNSET32), number_of(part, "max_time", UNSET32)
   if minutes and longest and minutes > longest then
      return string.format("has a time limit of %s, not %d", plural(longest, "minute"), minutes)
   end
   local least, most = number_of(desc, "min_nodes", UNSET32) or 1, number_of(part, "max_nodes", UNSET32)
   if most and least > most then return string.format("gives a job at most %s, not %d", plural(most, "node"), least) end
   return nil
end

-- Slurm takes a job that fits any of its partitions, and the wait partition is one: it may lack their limits where they
-- differ, and the job would wait there for ever. A QOS may lift a limit, so that jobs of one are left to Slurm.
local function over_limits(desc, fields, cat, part_list)
   local is_wait, refusal = {}, nil
   for _, one in ipairs(cat.partitions) do
      is_wait[one.wait] = true
   end
   for _, name in ipairs(split(text_of(fields, "partition"), ",")) do
      if not is_wait[name] then
         local part = get(part_list or {}, name)
         local what = part and beyond(desc, part)
         if not what then return nil end
         refusal = refusal or refuse("partition %s %s", shown(name), what)
      end
   end
   for _, field in ipairs({ "qos", "default_qos" }) do
      local qos = refusal and text_of(desc, field) or ""
      if qos ~= "" and qos ~= "normal" then return nil end
   end
   return refusal
end

local function submit_slices(desc, part_list)
   local fields = {}
   copy(TRES, desc, fields)
   if not mentions(fields) then return 0 end
   local cat, why = M.load()
   if not cat then return asks(fields) and no_catalogue(why) or 0 end
   copy(OTHERS, desc, fields)
   if text_of(fields, "partition") == "" then fields.partition = default_partition(part_list) end
   local decision = decided(fields, cat)
   if not decision then return 0 end
   local text = text_of(fields, "tres_per_node")
   local refusal = decision.refusal and decision or bad_for_old_srun(desc, text, decision)
   refusal = refusal or over_limits(desc, fields, cat, part_list)
   if refusal then return say_no(refusal.refusal) end
   write(desc, decision, fields)
   desc.partition = decision.partition
   remark(desc, "asked " .. decision.words)
   for _, note in ipairs(decision.notes) do
      say(note)
   end
   warn_of_inherited(desc)
   return 0
end

local function submit(desc, part_list)
   follow_het(desc)
   local list = text_of(desc, "partition")
   local mark = burst(desc, list ~= "" and list or M.cloud ~= "" and default_partition(part_list) or "")
   if type(mark) == "table" then return say_no(mark.refusal) end
   local rc = submit_slices(desc, part_list)
   if rc == 0 and mark ~= "" then remark(desc, mark) end
   return rc
end

local CHANGES = {
   min_nodes = UNSET32,
   max_nodes = UNSET32,
   num_tasks = UNSET32,
   ntasks_per_node = UNSET16,
   cpus_per_task = UNSET16,
   pn_min_cpus = UNSET16,
   pn_min_memory = 1.8e19,
}

-- Does this update change what a slice job must be checked for?
local function matters(desc)
   for field, unset in pairs(CHANGES) do
      if number_of(desc, field, unset) then return true end
   end
   local shared = get(desc, "shared")
   return text_of(desc, "req_nodes") ~= "" or text_of(desc, "exc_nodes") ~= "" or shared == 0 or shared == 4
end

-- The job's own request, as Slurm has it, and never a reason to refuse an update that leaves it alone.
local function kept(rec)
   local request = M.parse(text_of(rec, "tres_per_node"))
   if not request or request.refusal then return "" end
   local class = request.name ~= "" and ":" .. request.name or ""
   return string.format("%s%s:%d", M.gres, class, request.count)
end

-- Up to 23.02 an update adds its GRES to the job's, and no text takes one away: with another class the job would need
-- slices of both, and with none still hold one of the old. `gres:` tells such a Slurm. nil: this update does no such thing.
local function stays_behind(rec, class)
   local text = text_of(rec, "tres_per_node")
   if text:sub(1, 5) ~= "gres:" then return nil end
   local has = M.parse(text)
   if not has or has.refusal or has.name == class then return nil end
   return refuse("this release of Slurm can't take %s from a job; cancel it and submit it again", shown(has.words))
end

-- A job that runs has one partition in its record, and Slurm denies all of an update that names another.
local function is_pending(rec)
   return (number_of(rec, "job_state", UNSET32) or 0) % 256 == 0
end

local function modify_slices(desc, rec, uid)
   local new = mentions(desc) and asks(desc)
   local removed = not new and text_of(desc, "tres_per_node") ~= ""
   local left = removed and stays_behind(rec, nil)
   if left then return say_no(left.refusal) end
   local own = (new or removed) and "" or kept(rec)
   if not new and own == "" then return 0 end
   local moved = text_of(desc, "partition")
   if not new and moved == "" and not matters(desc) then return 0 end
   local cat, why = M.load()
   local trusted = uid == 0 or (cat and cat.operators[uid])
   if not new and trusted then return 0 end
   if not cat then return no_catalogue(why) end
   local job = job_of(desc, rec)
   if not new then job.per_node = own end
   if not (trusted and moved ~= "") then job.partition = moved ~= "" and moved or text_of(rec, "partition") end
   if job.partition == "" then job.partition = nil end
   local decision = M.decide(job, cat)
   if not decision then return 0 end
   local refusal = decision.refusal and decision or new and stays_behind(rec, decision.class)
   if refusal then return say_no(refusal.refusal) end
   if new then
      write(desc, decision, desc)
      for _, note in ipairs(decision.notes) do
         say(note)
      end
   end
   -- admin_comment is never written here: for a user's own update Slurm would deny all of it, half applied.
   local before = moved ~= "" and moved or text_of(rec, "partition")
   local is_better = decision.partition and decision.partition ~= before
   if is_better and is_pending(rec) then desc.partition = decision.partition end
   return 0
end

local function modify(desc, rec, _, uid)
   local refusal = uid ~= 0 and no_move(desc, rec)
   local cat = refusal and M.load()
   if refusal and not (cat and cat.operators[uid]) then return say_no(refusal.refusal) end
   return modify_slices(desc, rec, uid)
end

-- Run `body`; should it break, refuse when a record speaks of slices and pass all others. Slurm itself would accept both.
local function guarded(records, body, ...)
   local ok, rc = pcall(body, ...)
   if ok then return rc end
   if slurm.log_error then slurm.log_error("%s", "vgpu.lua: " .. tostring(rc)) end
   for _, record in ipairs(records) do
      if mentions(record) then
         return say_no(M.gres .. ": slices can't be given out now: an error in vgpu.lua; tell your admins")
      end
   end
   return 0
end

function M.submit(job_desc, part_list, uid)
   return guarded({ job_desc }, submit, job_desc, part_list, uid)
end

function M.modify(job_desc, job_rec, part_list, uid)
   return guarded({ job_desc, job_rec }, modify, job_desc, job_rec, part_list, uid)
end

