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

