-- The catalogue: its form is told in slurm_plugin/catalogue.py ------------------------------------

local KINDS = { exact = true, memory = true, fraction = true, named = true }
local WIDTHS = { pool = 2, gres = 4, default = 2, partition = 3, exclusive = 2, alias = 3, node = 3 }

local UID_DIGITS = 10

local function is_number(text, digits)
   return text:find("^%d+$") ~= nil and #text <= (digits or 9)
end

local function once(cat, key, value)
   if cat[key] ~= nil then return false end
   cat[key] = value
   return true
end

local READ = {}

function READ.pool(cat, f) return once(cat, "pool", f[2]) end

function READ.gres(cat, f) return once(cat, "gres", f[2]) and once(cat, "pad", f[3]) and once(cat, "mem", f[4]) end

function READ.default(cat, f) return once(cat, "default", f[2]) end

function READ.exclusive(cat, f) return (f[2] == "refuse" or f[2] == "allow") and once(cat, "exclusive", f[2]) end

function READ.operators(cat, f)
   local uids = {}
   for at = 2, #f do
      if not is_number(f[at], UID_DIGITS) then return false end
      uids[number(f[at])] = true
   end
   return once(cat, "operators", uids)
end

function READ.partition(cat, f)
   cat.partitions[#cat.partitions + 1] = { name = f[2], wait = f[3] }
   return true
end

function READ.class(cat, f)
   if #f < 6 or cat.by_name[f[2]] or not KINDS[f[3]] or not is_number(f[5]) then return false end
   local numbered = f[3] == "memory" or f[3] == "fraction"
   if numbered and not is_number(f[4]) or not numbered and f[4] ~= "-" then return false end
   local class = { name = f[2], kind = f[3], weight = number(f[5]), profiles = {} }
   class.param = numbered and number(f[4]) or 0
   for at = 6, #f do
      class.profiles[at - 5] = f[at]
   end
   cat.classes[#cat.classes + 1] = class
   cat.by_name[class.name] = class
   return true
end

function READ.alias(cat, f)
   if (cat.aliases[f[2]] or f[3]) ~= f[3] or not cat.by_name[f[3]] or cat.by_name[f[2]] then return false end
   cat.aliases[f[2]] = f[3]
   return true
end

-- Fields CLASS=COUNT from `at` on; nil when one of them is something else.
local function counts(f, at)
   local found = {}
   for nth = at, #f do
      local name, count = f[nth]:match("^([^=]+)=(%d+)$")
      if not name or not is_number(count) then return nil end
      found[name] = number(count)
   end
   return found
end

function READ.shape(cat, f)
   if #f < 4 or not (is_number(f[2]) and is_number(f[3]) and is_number(f[4])) then return false end
   local shape = { id = number(f[2]), cpus = number(f[3]), memory = number(f[4]), most = counts(f, 5), nodes = 0 }
   if not shape.most or cat.by_shape[shape.id] then return false end
   cat.shapes[#cat.shapes + 1] = shape
   cat.by_shape[shape.id] = shape
   return true
end

function READ.made(cat, f)
   local shape = #f > 1 and is_number(f[2]) and cat.by_shape[number(f[2])]
   if not shape or shape.made then return false end
   shape.made = counts(f, 3)
   return shape.made ~= nil
end

function READ.node(cat, f)
   local shape = is_number(f[3]) and cat.by_shape[number(f[3])]
   local hosts = shape and M.expand(f[2])
   if not hosts then return false end
   for _, host in ipairs(hosts) do
      if cat.nodes[host] then return false end
      cat.nodes[host] = shape
      shape.nodes = shape.nodes + 1
   end
   return true
end

local function read_line(cat, line)
   local fields = split(line, " ")
   local key = fields[1]
   if not READ[key] or #fields ~= (WIDTHS[key] or #fields) then return false end
   local legal = key == "node" and "^[A-Za-z0-9_%.%+%-,%[%]]+$" or "^[A-Za-z0-9_%.%+%-]+$"
   for at = 2, #fields do
      local word = (key == "shape" or key == "made") and fields[at]:gsub("=", "-", 1) or fields[at]
      if not word:find(legal) then return false end
   end
   return READ[key](cat, fields)
end

-- (catalogue) or (nil, why not).
function M.parse_catalogue(text)
   if #text > MAX_BYTES then return nil, "it is too large" end
   local lines = {}
   for line in text:gmatch("([^\n]*)\n") do
      lines[#lines + 1] = line
   end
   if lines[1] ~= "vgpu-catalogue " .. VERSION then return nil, "it is no catalogue of version " .. VERSION end
   if text:sub(-1) ~= "\n" or #lines < 2 or lines[#lines] ~= string.format("end %d", #lines - 1) then
      return nil, "it is cut short"
   end
   local cat = { partitions = {}, classes = {}, by_name = {}, aliases = {}, shapes = {}, by_shape = {}, nodes = {} }
   for at = 2, #lines - 1 do
      if not read_line(cat, lines[at]) then return nil, string.format("line %d is not understood", at) end
   end
   for _, key in ipairs({ "pool", "gres", "default", "exclusive" }) do
      if cat[key] == nil then return nil, "it lacks " .. key end
   end
   if #cat.partitions == 0 or (cat.default ~= "-" and not cat.by_name[cat.default]) then
      return nil, "its partition or its default class is missing"
   end
   cat.operators = cat.operators or { [0] = true }
   cat.kept, cat.kept_count = {}, 0 -- decisions: see `decided`
   return cat
end

local cached = {} -- the last text that was read, and what it gave

-- The catalogue as it is now, or (nil, why not). Read at each call; parsed again only when its text has changed.
function M.load()
   local file = io.open(M.catalogue, "rb")
   if not file then return nil, "it can't be opened" end
   local text = file:read("*a")
   file:close()
   if not text then return nil, "it can't be read" end
   if cached.text ~= text then
      local cat, why = M.parse_catalogue(text)
      if cat and (cat.gres ~= M.gres or cat.mem ~= M.mem) then
         cat, why = nil, "it is for other GRES names than vgpu.lua"
      end
      cached = { text = text, cat = cat, why = why }
   end
   return cached.cat, cached.why
end

