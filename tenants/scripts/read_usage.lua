-- Read hours of usage as one text: many small answers take their reader far longer to take in.
-- KEYS: records.
-- Returns JSON: of each record its fields and values by turns, or false for what is no hash.
local found = {}
for place, record in ipairs(KEYS) do
  local kind = redis.call('TYPE', record)['ok']
  if kind == 'hash' then
    found[place] = redis.call('HGETALL', record)
  else
    found[place] = kind == 'none' and {} or false
  end
end
return cjson.encode(found)
