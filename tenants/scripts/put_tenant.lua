-- Write a whole tenant record if it is still at the version that the caller read.
-- KEYS: tenant record, index of tenants, log of changes.
-- ARGV: tenant id, version expected ('' = the tenant must not exist), version written,
--       entry of the log, most entries, then field, value, field, value ...
-- Returns the time of creation, or '' when the record is at another version.
local current = redis.call('HGET', KEYS[1], 'version') or ''
local created = redis.call('HGET', KEYS[1], 'created') or redis.call('TIME')[1]
if current == ARGV[3] then
  return created -- the answer to this very write was lost, and it came again
end
if current ~= ARGV[2] then
  return ''
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'created', created, unpack(ARGV, 6))
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'entry', ARGV[4])
redis.call('PUBLISH', 'wm:changes', 'tenant ' .. ARGV[1])
return created
