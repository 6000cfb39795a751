-- Add a stretch of a usage journal's file to the hours it belongs to; a repeat changes nothing.
-- KEYS: how far the file has been added (its fence), index of tenants with usage.
-- ARGV: where the stretch begins and ends, seconds an hour is kept, prefix of an hour's record,
--       prefix of a tenant's index of hours, number of columns, their names, number of arguments
--       on what the file's writer spent of budgets: hash, field, amount, Unix time of the hash's end,
--       then rows: tenant, hour, prefix of the row's fields, an amount for each column.
-- Returns how far the file has been added, where that is not the stretch's end nothing was done,
-- and the records that were damaged: these are set aside under the prefix `wm:damaged:`.
local at = tonumber(redis.call('GET', KEYS[1]) or '0')
if at ~= tonumber(ARGV[1]) then
  return {at}
end
local now, keep = tonumber(redis.call('TIME')[1]), tonumber(ARGV[3])
local columns = tonumber(ARGV[6])
local first = 8 + columns
local rows = first + tonumber(ARGV[7 + columns])
local damaged = {}
local function set_aside(record)
  redis.call('RENAME', record, 'wm:damaged:' .. record)
  redis.call('EXPIRE', 'wm:damaged:' .. record, keep)
  damaged[#damaged + 1] = record
end
local function check(record, kind, field)
  local found = redis.call('TYPE', record)['ok']
  if found ~= kind then
    if found ~= 'none' then
      set_aside(record)
    end
  elseif field then
    local amount = redis.call('HGET', record, field)
    if amount and not string.match(amount, '^-?%d+$') then
      set_aside(record)
    end
  end
end
-- What fails halfway keeps what it wrote, and would be added again each time: all is checked first.
check(KEYS[2], 'zset')
for place = first, rows - 1, 4 do
  check(ARGV[place], 'hash', ARGV[place + 1])
end
for row = rows, #ARGV, 3 + columns do
  check(ARGV[5] .. ARGV[row], 'zset')
  for column = 1, columns do
    check(ARGV[4] .. ARGV[row] .. ':' .. ARGV[row + 1], 'hash', ARGV[row + 2] .. ARGV[6 + column])
  end
end
for place = first, rows - 1, 4 do
  redis.call('HINCRBY', ARGV[place], ARGV[place + 1], ARGV[place + 2])
  redis.call('EXPIREAT', ARGV[place], ARGV[place + 3])
end
for row = rows, #ARGV, 3 + columns do
  local tenant, hour = ARGV[row], ARGV[row + 1]
  local forget = (hour + 1) * 3600 + keep
  if forget > now then
    local record, hours = ARGV[4] .. tenant .. ':' .. hour, ARGV[5] .. tenant
    for column = 1, columns do
      local amount = ARGV[row + 2 + column]
      if amount ~= '0' then
        redis.call('HINCRBY', record, ARGV[row + 2] .. ARGV[6 + column], amount)
      end
    end
    redis.call('EXPIREAT', record, string.format('%d', forget))
    redis.call('ZADD', hours, hour, hour)
    redis.call('ZREMRANGEBYSCORE', hours, '-inf', (now - keep) / 3600 - 1)
    redis.call('EXPIRE', hours, keep + 7200)
    redis.call('ZADD', KEYS[2], 'GT', hour, tenant)
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', (now - keep) / 3600 - 1)
-- The fence outlives every hour that the stretch added to: what would come again is forgotten.
redis.call('SET', KEYS[1], ARGV[2], 'EX', keep + 7200)
return {tonumber(ARGV[2]), unpack(damaged)}
