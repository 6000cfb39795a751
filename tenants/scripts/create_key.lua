-- Add a key to a tenant.
-- KEYS: tenant record, key record, index of the tenant's keys, log of changes.
-- ARGV: public id, digest, time of expiry ('' = never), seconds a dead key is remembered,
--       entry of the log, most entries, then field, value, field, value ...
-- Returns the time of creation, 'NO_TENANT', 'EXISTS', or 'PAST' for an expiry already over.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 'NO_TENANT'
end
local digest = redis.call('HGET', KEYS[2], 'digest')
if digest == ARGV[2] then
  return redis.call('HGET', KEYS[2], 'created') -- a repeat of this very call
elseif digest then
  return 'EXISTS'
end
local now = redis.call('TIME')[1]
local expires = tonumber(ARGV[3])
if expires and expires <= tonumber(now) then
  return 'PAST'
end
redis.call('HSET', KEYS[2], 'digest', ARGV[2], 'created', now, unpack(ARGV, 7))
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
if expires then
  redis.call('HSET', KEYS[2], 'expires', ARGV[3])
  redis.call('EXPIREAT', KEYS[2], expires + ARGV[4])
  redis.call('ZADD', KEYS[3], expires + ARGV[4], ARGV[1])
else
  redis.call('ZADD', KEYS[3], '+inf', ARGV[1])
end
note_change(KEYS[4], ARGV[5], ARGV[6])
return now
