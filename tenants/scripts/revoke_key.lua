-- Make a key useless at once; it is remembered for a while so that callers learn why.
-- KEYS: key record, index of the tenant's keys, log of changes.
-- ARGV: public id, seconds it is remembered, entry of the log, most entries.
-- Returns 1, or 0 when there is no such key.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
if redis.call('HGET', KEYS[1], 'revoked') == '1' then
  return 1
end
local forget = redis.call('TIME')[1] + ARGV[2]
redis.call('HSET', KEYS[1], 'revoked', '1')
redis.call('EXPIREAT', KEYS[1], forget)
redis.call('ZADD', KEYS[2], forget, ARGV[1])
note_change(KEYS[3], ARGV[3], ARGV[4])
redis.call('PUBLISH', 'wm:changes', 'key ' .. ARGV[1])
return 1
