-- Read a key and its tenant at one instant.
-- KEYS: key record. ARGV: prefix of tenant records.
-- Returns {} when there is no such key, else both records as flat lists of field and value, and the
-- time: seconds, microseconds.
local key = redis.call('HGETALL', KEYS[1])
if #key == 0 then
  return {}
end
local tenant = redis.call('HGET', KEYS[1], 'tenant') or '' -- which there is none of
return { key, redis.call('HGETALL', ARGV[1] .. tenant), redis.call('TIME') }
