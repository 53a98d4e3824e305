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

