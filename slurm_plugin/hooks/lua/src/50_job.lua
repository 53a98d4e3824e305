-- A whole job: slurm_plugin/job_request.py --------------------------------------------------------

local function fixed_nodes(job)
   local least, most = job.nodes_min or 1, job.nodes_max
   if most then return most == least and most or nil end
   local one = (job.nodes_min or 1) == 1 and (job.tasks or 1) == 1 and #(job.hosts or {}) <= 1
   return one and 1 or nil
end

local function tasks_per_node(job)
   local nodes, each = fixed_nodes(job), job.tasks_per_node
   if not job.tasks then return each or 1 end
   if job.tasks == 1 then return 1 end
   if each and (nodes and job.tasks == each * nodes or not nodes and job.tasks % each == 0) then return each end
   if nodes == 1 then return job.tasks end
   return nodes == job.tasks and 1 or nil
end

local function per_node(job, where, request, cat)
   if where == "node" then return M.resolve(request, cat) end
   local count
   if where == "task" then
      local tasks = tasks_per_node(job)
      count = tasks and request.count * tasks
   elseif where == "job" then
      local nodes = fixed_nodes(job)
      count = nodes and request.count % nodes == 0 and math.floor(request.count / nodes) or nil
   else
      count = job.sockets_per_node and request.count * job.sockets_per_node
   end
   local alone = { want = request.want, name = request.name, number = request.number, count = count or 1, others = {} }
   local found = M.resolve(alone, cat)
   if found.refusal then return found end
   if not count or request.weight then
      local example = string.format("--gres=%s:%s:%d", M.gres, found.class, request.count)
      local what = plural(request.count, "slice") .. " per " .. where
      return refuse("how many slices a node needs can't be told from %s; ask per node: %s", what, example)
   end
   local terms = elements(job.per_node)
   terms[#terms + 1] = found.gres
   found.gres = table.concat(terms, ",")
   return found
end

local function partitions(text, cat)
   local wait_of, is_wait, names = {}, {}, {}
   for at, one in ipairs(cat.partitions) do
      wait_of[one.name], is_wait[one.wait], names[at] = one.wait, true, one.name
   end
   local list, seen, behind = {}, {}, {}
   local function add(name)
      if not seen[name] then
         seen[name] = true
         list[#list + 1] = name
      end
   end
   for _, name in ipairs(split(text, ",")) do
      if name ~= "" and not is_wait[name] then
         add(name)
         behind[#behind + 1] = wait_of[name] or name == M.cloud and cat.partitions[1].wait or nil
      end
   end
   if #behind == 0 then
      return refuse("partition '%s' has no slices; use --partition=%s", shown(text), table.concat(names, ","))
   end
   for _, name in ipairs(behind) do
      add(name)
   end
   return table.concat(list, ",")
end

-- How many slices of this class such a node may have without an admin's change.
local function makes(shape, class)
   return (shape.made or shape.most)[class] or 0
end

-- What a node of this shape lacks, or nil.
local function lack(shape, need)
   local most = shape.most[need.class] or 0
   if most < need.count then
      return string.format("can hold %s of class %s, not %d", plural(most, "slice"), need.class, need.count)
   end
   if shape.cpus < need.cpus then return string.format("has %s, not %d", plural(shape.cpus, "CPU"), need.cpus) end
   if shape.memory < need.memory then
      return string.format("has %d MiB of memory, not %d", shape.memory, need.memory)
   end
   return nil
end

local function nothing_fits(shapes, need)
   local most, made, cpus, memory = 0, 0, 0, 0
   for _, shape in ipairs(shapes) do
      most = math.max(most, shape.most[need.class] or 0)
      made = math.max(made, makes(shape, need.class))
      if (shape.most[need.class] or 0) >= need.count then
         cpus = math.max(cpus, shape.cpus)
         if shape.cpus >= need.cpus then memory = math.max(memory, shape.memory) end
      end
   end
   if most < need.count then
      local hint = made > 0 and string.format("; did you mean %s:%s:%d?", M.gres, need.class, made) or ""
      return refuse("no node can hold %s of class %s at once%s", plural(need.count, "slice"), need.class, hint)
   end
   if cpus < need.cpus then
      return refuse("no node with room for %s has %s; the most is %d", need.text, plural(need.cpus, "CPU"), cpus)
   end
   return refuse("no node with room for %s has %d MiB of memory; the most is %d", need.text, need.memory, memory)
end

local function too_few(job, need, fitting)
   local hosts, nodes, have = {}, 0, 0
   for _, host in ipairs(job.hosts) do
      if not hosts[host] then
         hosts[host] = true
         nodes = nodes + 1
      end
   end
   nodes = math.max(nodes, job.nodes_min or 1)
   for _, one in ipairs(fitting) do
      have = have + one.nodes
   end
   if have < nodes then
      local verb = nodes == 1 and "is" or "are"
      return refuse("%s with room for %s %s needed, and this pool has %d", plural(nodes, "node"), need.text, verb, have)
   end
   local room, cpus = job.nodes_max or have, 0
   local wanted = job.overcommit and 0 or (job.tasks or 1) * (job.cpus_per_task or 1)
   table.sort(fitting, function(a, b) return a.cpus > b.cpus end)
   for _, one in ipairs(fitting) do
      cpus = cpus + one.cpus * math.min(one.nodes, room)
      room = room - math.min(one.nodes, room)
   end
   if cpus < wanted then
      return refuse("the nodes with room for %s have %s, not %d", need.text, plural(cpus, "CPU"), wanted)
   end
   return nil
end

-- Nodes of each shape that the job does not exclude.
local function population(job, cat)
   local left, gone = {}, {}
   for _, shape in ipairs(cat.shapes) do
      left[shape.id] = shape.nodes
   end
   for _, host in ipairs(job.not_hosts) do
      local shape = cat.nodes[host]
      if shape and not gone[host] then
         gone[host] = true
         left[shape.id] = left[shape.id] - 1
      end
   end
   return left
end

-- The job fits, but the layouts of today make too few of its slices: no layout comes about by waiting. A warning, or nil.
local function unmade(job, need, cat)
   local left, nodes, of, seen = population(job, cat), job.nodes_min or 1, "", {}
   if #job.hosts > 0 then
      left, nodes, of = {}, 0, " of these nodes"
      for _, host in ipairs(job.hosts) do
         local id = cat.nodes[host].id
         if not seen[host] then
            left[id], nodes = (left[id] or 0) + 1, nodes + 1
         end
         seen[host] = true
      end
   end
   local ready, most = 0, 0
   for id, number_of_nodes in pairs(left) do
      local shape = cat.by_shape[id]
      if number_of_nodes > 0 then
         most = math.max(most, makes(shape, need.class))
         if makes(shape, need.class) >= need.count and not lack(shape, need) then ready = ready + number_of_nodes end
      end
   end
   if ready >= nodes then return nil end
   local what = ready > 0 and "too few nodes have a layout that makes" or "no layout" .. of .. " makes"
   local hint = ""
   if most > 0 and most < need.count then
      hint = string.format("; did you mean %s:%s:%d?", M.gres, need.class, most)
   end
   local warning = "%s: warning: %s %s now; this job waits until an admin changes that%s"
   return string.format(warning, M.gres, what, need.text, hint)
end

local function need_of(job, rewrite)
   local tasks = job.overcommit and 1 or math.min(job.tasks_per_node or 1, job.tasks or MAX_TASKS)
   local cpus = math.max(job.cpus_per_node or 1, (job.cpus_per_task or 1) * tasks)
   return {
      class = rewrite.class,
      count = rewrite.count,
      cpus = cpus,
      memory = math.max(job.memory_per_node or 0, (job.memory_per_cpu or 0) * cpus),
      text = string.format("%s:%s:%d", M.gres, rewrite.class, rewrite.count),
   }
end

-- Why no node, or too few, could ever run this job; nil when that is not so.
local function unfit(job, rewrite, cat)
   if job.exclusive and cat.exclusive == "refuse" then
      return refuse("--exclusive would take every slice of a node from the others; leave it out")
   end
   if not job.hosts or not job.not_hosts then
      return refuse("the node list is not understood, or stands for more than %d nodes", MAX_HOSTS)
   end
   local need = need_of(job, rewrite)
   for _, host in ipairs(job.hosts) do
      if not cat.nodes[host] then return refuse("node %s is not in this pool", shown(host)) end
   end
   for _, host in ipairs(job.hosts) do
      local what = lack(cat.nodes[host], need)
      if what then return refuse("node %s can't run this job: it %s", shown(host), what) end
   end
   local left, there, fitting = population(job, cat), {}, {}
   for _, shape in ipairs(cat.shapes) do
      if left[shape.id] > 0 then
         there[#there + 1] = shape
         if not lack(shape, need) then fitting[#fitting + 1] = { cpus = shape.cpus, nodes = left[shape.id] } end
      end
   end
   if #fitting == 0 then return nothing_fits(there, need) end
   return too_few(job, need, fitting)
end

-- nil: the job asks for no slice. Else what to write into it, or a refusal.
function M.decide(job, cat)
   local request, where
   local places = 0
   for _, place in ipairs({ "node", "job", "task", "socket" }) do
      local text = job["per_" .. place]
      local one = text ~= "" and M.parse(text) or nil
      if one and one.refusal then return one end
      if one then
         places = places + 1
         request, where = request or one, where or place
      end
   end
   if places == 0 then return nil end
   if places > 1 then return refuse("slices are asked for in %d places; use --gres alone", places) end
   local found = per_node(job, where, request, cat)
   if found.refusal then return found end
   local partition = job.partition and partitions(job.partition, cat)
   if type(partition) == "table" then return partition end
   local notes = found.notes
   local elsewhere = M.cloud ~= "" and partition and ("," .. partition .. ","):find("," .. M.cloud .. ",", 1, true)
   if not elsewhere then -- what other sites' nodes can hold is not known here
      local refusal = unfit(job, found, cat)
      if refusal then return refusal end
      notes[#notes + 1] = unmade(job, need_of(job, found), cat)
   end
   if found.count > 1 and tasks_per_node(job) == 1 then
      local warning = "%s: warning: %d slices for one task, and a CUDA process uses only one; "
      local better = string.format("--ntasks-per-node=%d gives each task its own", found.count)
      notes[#notes + 1] = string.format(warning, M.gres, found.count) .. better
   end
   local words = where == "node" and request.words or request.words .. " per " .. where
   return {
      per_node = found.gres,
      per_job = where == "job" and request.rest or job.per_job,
      per_task = where == "task" and request.rest or job.per_task,
      per_socket = where == "socket" and request.rest or job.per_socket,
      partition = partition,
      class = found.class,
      count = found.count,
      words = words:sub(1, MAX_WORDS),
      notes = notes,
      term = request.term,
   }
end

