-- The virtual nodes: a job there runs at another site, and is a batch job of one task. Nothing of this is about sites
-- without a partition of such nodes.

local BURST = "_SLURM_SPANK_OPTION_vgpu_burst_burst" -- what sbatch makes of --burst
local EXPORTED = "SLURM_SPANK_" .. BURST -- likewise, with --export=NONE
local INPUT = "VGPU_BURST_INPUT_MIB" -- how much --stage-in means, as vgpu_burst.so has seen it
local NEVER = "fed:burst=never"
local WORDS = { auto = true, always = true, never = true }

local function in_cloud(list)
   if M.cloud == "" then return false end
   for _, name in ipairs(split(list, ",")) do
      if name == M.cloud then return true end
   end
   return false
end

local function no_burst(...)
   return { refusal = "fed: " .. string.format(...) }
end

-- What a job asks for that virtual nodes do not have, as it will be; nil when there is no such thing.
local function unlike_cloud(desc, rec)
   local function text(field, own)
      local value = text_of(desc, field)
      return value ~= "" and value or rec and text_of(rec, own or field) or ""
   end
   local function count(field, unset)
      return number_of(desc, field, unset) or rec and number_of(rec, field, unset) or 0
   end
   local tasks, each = count("num_tasks", UNSET32), count("ntasks_per_node", UNSET16)
   local shared, het = get(desc, "shared"), number_of(desc, "het_job_offset", UNSET32)
   if het or rec and (number_of(rec, "het_job_id", UNSET32) or 0) > 0 then return "heterogeneous jobs" end
   if count("min_nodes", UNSET32) > 1 or (each > 0 and tasks > each) then return "jobs of several nodes" end
   if tasks > 1 then return "jobs of several tasks (for CPUs alone write -c)" end
   if text_of(desc, "req_nodes") ~= "" then return "jobs that name their nodes" end
   if text("features") ~= "" then return "jobs with a --constraint" end
   if text("reservation", "resv_name") ~= "" then return "jobs in a reservation" end
   if text("licenses") ~= "" then return "jobs with licenses" end
   return (shared == 0 or shared == 4) and "jobs with --exclusive" or nil
end

-- `--burst` of this job, as it will be read later: (mark), "" for none, or a refusal.
local function burst_mark(word, explicit, why)
   if word == "" then return why and not explicit and NEVER or "" end
   if not word:find("^[A-Za-z0-9_%.%+%-]+$") or #word > KEPT_MAX then
      return no_burst("'%s' is no --burst; write auto, never, always or the name of a pool", shown(word))
   end
   if word == "never" and explicit then
      return no_burst("--burst=never and partition %s contradict each other; leave one out", M.cloud)
   end
   if explicit and not WORDS[word] then
      return no_burst("--burst=%s names one pool, and partition %s is of all; leave one out", shown(word), M.cloud)
   end
   if word == "auto" and why then return NEVER end
   return "fed:burst=" .. (WORDS[word] and word or "pool:" .. word)
end

-- At submit: may it go where it wants to, and what is to be remembered of its wish? A refusal, or the mark.
local function burst(desc, list)
   if M.cloud == "" then return "" end
   local explicit = in_cloud(list)
   if text_of(desc, "script") == "" then
      return explicit and no_burst("partition %s takes batch jobs only; use sbatch", M.cloud) or ""
   end
   local environment = get(desc, "environment")
   local word = environment and text_of(environment, BURST) or ""
   if word == "" and environment then word = text_of(environment, EXPORTED) end
   local unseen = text_of(desc, "container") ~= "" and "jobs with a --container" -- nobody sees that later
      or get(desc, "cron_job") and "jobs of scrontab" or nil -- Slurm starts them again and again
   local why = unlike_cloud(desc) or unseen
   if why and (explicit or word ~= "" and word ~= "never" and word ~= "auto") then
      return no_burst("%s can't run at another site; submit without %s", why,
         explicit and "partition " .. M.cloud or "--burst=" .. shown(word))
   end
   local mark, mib = burst_mark(word, explicit, unseen), environment and text_of(environment, INPUT):match("^%d+$")
   if type(mark) == "table" or not mib or #mib > 9 then return mark end
   return (mark ~= "" and mark .. " " or "") .. "fed:in=" .. mib
end

-- At an update by who may not do all: why the job can't be in the virtual nodes' partition then, or nil.
local function no_move(desc, rec)
   local moved = text_of(desc, "partition")
   if not in_cloud(moved ~= "" and moved or text_of(rec, "partition")) then return nil end
   local why = unlike_cloud(desc, rec)
   if not why and moved ~= "" and not in_cloud(text_of(rec, "partition")) then
      local never = text_of(rec, "admin_comment"):find(NEVER, 1, true)
      why = never and "jobs that were submitted with --burst=never or a --container"
         or text_of(rec, "script") == "" and "interactive jobs" or nil
   end
   return why and no_burst("%s can't run at another site, in partition %s", why, M.cloud)
end

