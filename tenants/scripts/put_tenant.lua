-- Write a tenant's record if it is still at the version that the caller read. Fields that the caller
-- does not know, being older than who wrote them, stay as they are.
-- KEYS: tenant record, index of tenants, log of changes.
-- ARGV: tenant id, version expected ('' = the tenant must not exist), version written,
--       entry of the log, most entries, then field, value ('' = no such field), field, value ...
-- Returns the time of creation, or '' when the record is at another version.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'hash' then
  redis.call('DEL', KEYS[1]) -- damaged beyond repair, if it is there
end
local current = redis.call('HGET', KEYS[1], 'version') or ''
local created = redis.call('HGET', KEYS[1], 'created') or ''
if not string.match(created, '^%d+$') then
  created = redis.call('TIME')[1]
end
if current == ARGV[3] then
  return created -- the answer to this very write was lost, and it came again
end
if current ~= ARGV[2] then
  return ''
end
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'created', created)
for place = 6, #ARGV, 2 do
  if ARGV[place + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[place])
  else
    redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1])
  end
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
note_change(KEYS[3], ARGV[4], ARGV[5])
redis.call('PUBLISH', 'wm:changes', 'tenant ' .. ARGV[1])
return created
