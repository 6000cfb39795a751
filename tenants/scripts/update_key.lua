-- Change fields of a key that has not ended.
-- KEYS: key record, index of the tenant's keys, log of changes.
-- ARGV: public id, time of expiry ('' = never, 'same' = as it was), seconds a dead key is
--       remembered, entry of the log, most entries, then field, value, field, value ...
-- Returns 'OK', 'NO_KEY', 'DEAD' for a key that has ended, or 'PAST' for an expiry already over.
local old = redis.call('HMGET', KEYS[1], 'tenant', 'expires', 'revoked')
if not old[1] then
  return 'NO_KEY'
end
local now = tonumber(redis.call('TIME')[1])
local ends = tonumber(old[2] or '')
if old[3] == '1' or (ends and ends <= now) then
  return 'DEAD'
end
local expires = tonumber(ARGV[2])
if expires and expires <= now then
  return 'PAST'
end

if expires then
  redis.call('HSET', KEYS[1], 'expires', ARGV[2])
  redis.call('EXPIREAT', KEYS[1], expires + ARGV[3])
  redis.call('ZADD', KEYS[2], expires + ARGV[3], ARGV[1])
elseif ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], 'expires')
  redis.call('PERSIST', KEYS[1])
  redis.call('ZADD', KEYS[2], '+inf', ARGV[1])
end
if #ARGV > 5 then
  redis.call('HSET', KEYS[1], unpack(ARGV, 6))
end
note_change(KEYS[3], ARGV[4], ARGV[5])
redis.call('PUBLISH', 'wm:changes', 'key ' .. ARGV[1])
return 'OK'
