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

