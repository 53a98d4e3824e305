-- vgpu 0.1.0, parts 6e644603c1c0
-- Slices of GPUs, for job_submit.lua and cli_filter.lua. A site with scripts of its own adds two lines:
--
--     local vgpu = dofile("/etc/slurm/vgpu.lua")                            at the top
--     local rc = vgpu.submit(job_desc, part_list, uid) if rc ~= 0 then return rc end        in slurm_job_submit
--     local rc = vgpu.modify(job_desc, job_rec, part_list, uid) if rc ~= 0 then return rc end   in slurm_job_modify
--
-- slurmctld holds its locks while this runs, so it does nothing but read one small file: the catalogue, which is data and
-- never run. Jobs that ask for no slice pass untouched whatever is broken here; jobs that do are refused then.
--
-- One file, so that a site can't mix two versions of it, joined by scripts/lua of the parts in slurm_plugin/hooks/lua/src:
-- change those. For Lua 5.1 to 5.4. The grammar and every message are those of
-- slurm_plugin/request.py and job_request.py, held together by tests; change both.

local M = {
   catalogue = "/var/lib/vgpu/catalogue",
   gres = "vgpu", -- these two must be the catalogue's; they are needed when it is broken
   mem = "vgpu_mem",
   cloud = "", -- the partition of virtual nodes, whose jobs run at other sites; none
}

local VERSION = 1
local MAX_BYTES = 16777216
local MAX_TEXT = 4096
local MAX_TERMS = 64
local MAX_PREFIXES = 4
local MAX_DIGITS = 6
local MAX_COUNT = 999999
local MAX_SHOWN = 40
local MAX_OFFERED = 20
local MAX_PROFILES = 3
local MAX_NAMES = 64
local MAX_HOSTS = 5000
local MAX_WORDS = 200
local MAX_TASKS = 65533
local KEPT_MAX = 64
local KEPT_BYTES = 512
local NEAR = 2
local INVALID_GRES = 2072 -- slurm.ESLURM_INVALID_GRES is nil up to 22.05, and to return nil is to accept the job

-- Texts -------------------------------------------------------------------------------------------

local function strip(text)
   return (text:gsub("^[ \t\r\n\f\v]+", ""):gsub("[ \t\r\n\f\v]+$", ""))
end

local function shown(text)
   return (text:sub(1, MAX_SHOWN):gsub("[^A-Za-z0-9_%.%+/:=,%(%)%%%-]+", "?"))
end

local function plural(count, noun)
   return string.format("%d %s%s", count, noun, count == 1 and "" or "s")
end

local function refuse(...)
   return { refusal = M.gres .. ": " .. string.format(...) }
end

-- The parts of text between separators, empty ones too. `set` is the inside of a character class.
local function split(text, set)
   local parts = {}
   for part in (text .. set:sub(1, 1)):gmatch("([^" .. set .. "]*)[" .. set .. "]") do
      parts[#parts + 1] = part
   end
   return parts
end

local function number(digits)
   return math.floor(tonumber(digits))
end

-- Host lists --------------------------------------------------------------------------------------

local function ranges(text)
   local names = {}
   for _, part in ipairs(split(text, ",")) do
      part = strip(part)
      local first, last = part:match("^(%d+)%-(%d+)$")
      first = first or part:match("^%d+$")
      last = last or first
      if not first or #first > 9 or #last > 9 or number(last) < number(first) then return nil end
      if number(last) - number(first) >= MAX_HOSTS then return nil end
      for at = number(first), number(last) do
         names[#names + 1] = string.format("%0" .. #first .. "d", at)
      end
   end
   return names
end

local function expand_one(element)
   local names = { "" }
   while element ~= "" do
      local plain, inside, rest = element:match("^([^%[%]]*)%[([^%[%]]*)%](.*)$")
      if not plain and element:find("[%[%]]") then return nil end
      local numbers = { "" }
      if inside then numbers = ranges(inside) end
      if not numbers or #names * #numbers > MAX_HOSTS then return nil end
      local longer = {}
      for _, name in ipairs(names) do
         for _, digits in ipairs(numbers) do
            longer[#longer + 1] = name .. (plain or element) .. digits
         end
      end
      names, element = longer, rest or ""
   end
   return names
end

-- The names a host list stands for; nil when it is none, or stands for more than MAX_HOSTS.
function M.expand(text)
   text = strip(text or "")
   if text == "" or text == "(null)" then return {} end
   local names = {}
   -- Commas within brackets do not part the list: they are put out of the way first.
   local parted = text:gsub("%[[^%]]*%]", function(inside) return (inside:gsub(",", ";")) end)
   for _, element in ipairs(split(parted, ",")) do
      element = strip(element):gsub(";", ",")
      local more = element ~= "" and expand_one(element)
      if not more or #names + #more > MAX_HOSTS then return nil end
      for _, name in ipairs(more) do
         names[#names + 1] = name
      end
   end
   return names
end

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

-- One request: slurm_plugin/request.py ------------------------------------------------------------

local UNITS = { g = "g", gb = "g", gib = "g", m = "m", mb = "m", mib = "m", t = "t", tb = "t", tib = "t" }

local function unprefixed(term)
   for _ = 1, MAX_PREFIXES do
      local head = term:sub(1, 5):lower()
      if head ~= "gres:" and head ~= "gres/" then break end
      term = strip(term:sub(6))
   end
   return term
end

local function elements(text)
   local found = {}
   for _, term in ipairs(split(text, ",")) do
      term = unprefixed(strip(term))
      if term ~= "" then found[#found + 1] = term end
   end
   return found
end

local function parse_count(text, name)
   local one = name ~= "" and M.gres .. ":" .. name .. ":1" or M.gres .. ":1"
   if not text:find("^%d+$") then return refuse("'%s' is no count of slices; did you mean %s?", shown(text), one) end
   local digits = text:gsub("^0+", "")
   if digits == "" then
      return refuse("a count of 0 asks for no slice; leave %s out, or did you mean %s?", M.gres, one)
   end
   return #digits <= MAX_DIGITS and number(digits) or MAX_COUNT
end

local function parse_memory(name, whole, fraction, unit)
   local digits = whole:gsub("^0+", "")
   if #digits > MAX_DIGITS then return refuse("no slice has %s of memory", shown(name)) end
   local gb = digits == "" and 0 or number(digits)
   if fraction and fraction:find("[1-9]") then gb = gb + 1 end
   if unit == "t" then gb = gb * 1024 end
   if unit == "m" then gb = math.floor((gb + 1023) / 1024) end
   if gb == 0 then return refuse("'%s' is no amount of memory; did you mean 1gb?", shown(name)) end
   return "memory", gb
end

local function parse_share(name, above, below)
   above, below = above:gsub("^0+", ""), below:gsub("^0+", "")
   if above ~= "" and below ~= "" and #above <= MAX_DIGITS and #below <= MAX_DIGITS then
      local part, whole = number(above), number(below)
      if whole % part == 0 then return "fraction", math.floor(whole / part) end
      if part < whole then
         return refuse("a share is 1/N of a GPU; for %s, did you mean 1/%d?", shown(name), math.floor(whole / part))
      end
   end
   return refuse("a share is 1/N of a GPU, and %s is none; did you mean 1/2?", shown(name))
end

-- (want, number), or a refusal.
local function parse_want(name)
   if name == "" then return "default", 0 end
   local whole, fraction, unit = name:match("^(%d+)%.(%d+)([a-z]+)$")
   if not whole then
      whole, unit = name:match("^(%d+)([a-z]+)$")
   end
   if whole and UNITS[unit] then return parse_memory(name, whole, fraction, UNITS[unit]) end
   local above, below = name:match("^(%d+)/(%d+)$")
   if above then return parse_share(name, above, below) end
   local letter, digits = name:match("^([mq])(%d+)$")
   if letter and #digits <= MAX_DIGITS then return letter == "m" and "memory" or "fraction", number(digits) end
   return "name", 0
end

-- What a class in none of the forms may stand for: 1/4 for 0.25 and 25%, 1g.10gb for mig-1g.10gb, 1gb for 1k.
local function meant(name)
   local decimal, percent = name:match("^0?%.(%d+)$"), name:match("^(%d+)%%$")
   if decimal and #decimal <= MAX_DIGITS and decimal:find("[1-9]") then
      return string.format("1/%d", math.floor(10 ^ #decimal / number(decimal)))
   end
   if percent and #percent <= 3 and number(percent) > 0 and number(percent) <= 100 then
      return string.format("1/%d", math.floor(100 / number(percent)))
   end
   local tidy = name:gsub("[^a-z0-9_%.%+/%%%-]+", ""):gsub("^[%-%+%._/]+", ""):gsub("^mig%-", "")
   local digits = tidy:match("^(%d+)[kp]i?b?$")
   return digits and #digits <= MAX_DIGITS and digits .. "gb" or tidy
end

local parse_term

-- The request that is left without what can't be in one, or nil.
local function guess(parts)
   local name = parts[1]:lower()
   local better = meant(name)
   local count = parts[2] and parts[2]:gsub("[^0-9]+", "") or ""
   local text = M.gres .. (better ~= "" and ":" .. better or "") .. (count ~= "" and ":" .. count or "")
   local read = parse_term(text)
   if read.refusal or (name ~= "" and better == "") then return nil end
   local whole = name:gsub("^[^a-z0-9_%.%+/%%%-]+", ""):gsub("[^a-z0-9_%.%+/%%%-]+$", "")
   return (read.want ~= "name" or better == whole) and text or nil
end

local function no_request(term, rest, parts)
   local g, words = M.gres, shown(term)
   local better = #parts <= 2 and rest:find("^[:=]") and guess(parts)
   local hint = better and string.format("did you mean %s?", better)
      or string.format("write %s, %s:N, %s:CLASS or %s:CLASS:N", g, g, g, g)
   local odd = words:find("?", 1, true) and " (? is what can't be in one)" or ""
   return refuse("'%s' is no request for a slice%s; %s", words, odd, hint)
end

function parse_term(term)
   local rest = strip(term:sub(#M.gres + 1))
   local parts = rest ~= "" and split(rest:sub(2), ":=") or {}
   for at, part in ipairs(parts) do
      parts[at] = strip(part)
   end
   local legal = #parts <= 2 and (rest == "" or rest:find("^[:=]") ~= nil)
   for _, part in ipairs(parts) do
      legal = legal and part:find("^[A-Za-z0-9_%.%+/%%%-]+$") ~= nil
   end
   if not legal then return no_request(term, rest, parts) end
   if #parts == 2 and parts[1]:find("^%d+$") and parts[2]:find("[A-Za-z/]") then
      return refuse("the count comes last; did you mean %s:%s:%s?", M.gres, parts[2]:lower(), parts[1])
   end
   if #parts == 1 and parts[1]:find("^[%+%-]?%d+$") then parts = { "", parts[1] } end
   local name = (parts[1] or ""):lower()
   local count = parse_count(parts[2] or "1", name)
   if type(count) == "table" then return count end
   local want, amount = parse_want(name)
   if type(want) == "table" then return want end
   return { want = want, name = name, number = amount, count = count, words = shown(term), term = term }
end

local function parse_weight(terms)
   if #terms == 0 then return nil end
   local digits = terms[1]:sub(#M.mem + 2)
   return #terms == 1 and digits:find("^%d+$") and #digits <= MAX_DIGITS and number(digits) or -1
end

-- nil: it asks for no slice. Else a request, or a refusal.
function M.parse(text)
   local _, commas = text:gsub(",", ",")
   if #text > MAX_TEXT or commas >= MAX_TERMS then
      return text:lower():find(M.gres, 1, true) and refuse("this request is too long") or nil
   end
   local ours, weights, rest = {}, {}, {}
   for _, term in ipairs(split(text, ",")) do
      term = strip(term)
      local bare = unprefixed(term)
      local name = bare:match("^[^:=(%s]*"):lower()
      if name == M.gres then
         ours[#ours + 1] = bare
      elseif name == M.mem then
         weights[#weights + 1] = bare
      elseif term ~= "" then
         rest[#rest + 1] = term
      end
   end
   if #ours == 0 and #weights == 0 then return nil end
   if #ours == 0 then
      return refuse("%s is counted by the pool itself; ask for %s, such as %s:1", M.mem, M.gres, M.gres)
   end
   if #ours > 1 then
      return refuse("a job gets slices of one class; write one request, such as %s:2 for two slices", M.gres)
   end
   local request = parse_term(ours[1])
   if request.refusal then return request end
   request.rest = table.concat(rest, ",")
   request.others = elements(request.rest)
   request.weight = parse_weight(weights)
   return request
end

local function spelling(class)
   if class.kind == "memory" then return string.format("%dgb", class.param) end
   return class.kind == "fraction" and string.format("1/%d", class.param) or class.name
end

local function offered(cat)
   local names = {}
   for _, kind in ipairs({ "named", "exact", "memory", "fraction" }) do
      for _, class in ipairs(cat.classes) do
         if class.kind == kind then names[#names + 1] = spelling(class) end
      end
   end
   local list = #names == 0 and "none" or table.concat(names, ", ", 1, math.min(#names, MAX_OFFERED))
   local more = #names > MAX_OFFERED and string.format(", and %d more", #names - MAX_OFFERED) or ""
   return " (offered: " .. list .. more .. ")"
end

local function edits(one, other)
   local row = {}
   for to = 0, #other do
      row[to] = to
   end
   for at = 1, #one do
      local last
      last, row = row, { [0] = at }
      for to = 1, #other do
         local changed = one:byte(at) == other:byte(to) and 0 or 1
         row[to] = math.min(last[to] + 1, row[to - 1] + 1, last[to - 1] + changed)
      end
   end
   return row[#other]
end

local function common(one, other)
   local at = 0
   while at < #one and at < #other and one:byte(at + 1) == other:byte(at + 1) do
      at = at + 1
   end
   return at
end

local function nearest(text, names, always)
   local best, best_edits, best_common = "", 0, 0
   for at = 1, math.min(#names, MAX_NAMES) do
      local name = names[at]
      local e, c = edits(text, name), common(text, name)
      local closer = e < best_edits or (e == best_edits and (c > best_common or (c == best_common and name < best)))
      if at == 1 or closer then best, best_edits, best_common = name, e, c end
   end
   return (best_edits <= NEAR or always) and best or ""
end

local function named(name, cat)
   return cat.by_name[cat.aliases[name] or name]
end

local CLASS_OF = {}

local function near(name, cat)
   local better = meant(name)
   if better ~= "" and better ~= name then
      local want, value = parse_want(better)
      if type(want) == "string" then
         local request = { want = want, name = better, number = value }
         local known = want == "name" and named(better, cat) or want ~= "name" and CLASS_OF[want](request, cat)
         if known and not known.refusal then return better end
      end
   end
   local names = {}
   for alias in pairs(cat.aliases) do
      names[#names + 1] = alias
   end
   table.sort(names)
   for _, class in ipairs(cat.classes) do
      if class.kind == "named" or class.kind == "exact" then names[#names + 1] = class.name end
   end
   return nearest(name:sub(1, MAX_SHOWN), names, name:find("^%d+g%.") ~= nil)
end

local function unknown(name, close, cat)
   local hint = close ~= "" and "; did you mean " .. close .. "?" or ""
   return refuse("no slice class '%s' in this pool%s%s", shown(name), hint, offered(cat))
end

local function of_kind(cat, kind)
   local found = {}
   for _, class in ipairs(cat.classes) do
      if class.kind == kind then found[#found + 1] = class end
   end
   return found
end

function CLASS_OF.default(_, cat)
   return cat.by_name[cat.default] or refuse("this pool has no default class; name one%s", offered(cat))
end

function CLASS_OF.memory(request, cat)
   if request.name:sub(-1) == "g" then -- 1g: gigabytes, or the start of 1g.10gb?
      local start = request.name .. "."
      for _, class in ipairs(cat.classes) do
         if class.name:sub(1, #start) == start then
            local hint = string.format("did you mean %s or %dgb?", class.name, request.number)
            return refuse("'%s' may be a profile or an amount of memory; %s", shown(request.name), hint)
         end
      end
   end
   local whole, fraction = request.name:match("^(%d+)%.(%d+)")
   if whole then -- 1.20gb: an amount, or a slip for 1g.20gb?
      local profile = string.format("%sg.%sgb", whole, fraction)
      if cat.by_name[profile] then
         local hint = string.format("did you mean %s or %dgb?", profile, request.number)
         return refuse("'%s' may be a profile or an amount of memory; %s", shown(request.name), hint)
      end
      if #fraction > 1 then
         local text = "'%s' is too exact for a slice's memory; did you mean %dgb?"
         return refuse(text, shown(request.name), request.number)
      end
   end
   local best, largest
   for _, class in ipairs(of_kind(cat, "memory")) do
      if class.param >= request.number and (not best or class.param < best.param) then best = class end
      if not largest or class.param > largest.param then largest = class end
   end
   if best then return best end
   if not largest then return unknown(request.name, "", cat) end
   local hint = "did you mean " .. spelling(largest) .. "?" .. offered(cat)
   return refuse("no slice of this pool has %d GB; %s", request.number, hint)
end

function CLASS_OF.fraction(request, cat)
   local smaller, least
   for _, class in ipairs(of_kind(cat, "fraction")) do
      local n = class.param
      if n == request.number then return class end
      if n < request.number and (not smaller or n > smaller) then smaller = n end
      if not least or n < least then least = n end
   end
   local close = smaller or least
   return unknown(string.format("1/%d", request.number), close and string.format("1/%d", close) or "", cat)
end

function CLASS_OF.name(request, cat)
   if request.name == cat.pad then
      return refuse("'%s' is no slice and can't be asked for%s", cat.pad, offered(cat))
   end
   return named(request.name, cat) or unknown(request.name, near(request.name, cat), cat)
end

local function some_profiles(class)
   if class.kind == "exact" then return "" end
   local list = table.concat(class.profiles, ", ", 1, math.min(#class.profiles, MAX_PROFILES))
   return " (" .. list .. (#class.profiles > MAX_PROFILES and " or larger" or "") .. ")"
end

-- What a request becomes, or a refusal.
function M.resolve(request, cat)
   local class = CLASS_OF[request.want](request, cat)
   if class.refusal then return class end
   local weight = class.weight * request.count
   if request.weight and request.weight ~= weight then
      return refuse("%s is counted by the pool itself; leave it out", M.mem)
   end
   local terms = {}
   for at, other in ipairs(request.others) do
      terms[at] = other
   end
   terms[#terms + 1] = string.format("%s:%s:%d", M.gres, class.name, request.count)
   terms[#terms + 1] = string.format("%s:%d", M.mem, weight)
   local slices = plural(request.count, "slice")
   local note = string.format("%s: %s of class %s on each node%s", M.gres, slices, class.name, some_profiles(class))
   local gres = table.concat(terms, ",")
   return { gres = gres, class = class.name, count = request.count, weight = weight, notes = { note } }
end

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
