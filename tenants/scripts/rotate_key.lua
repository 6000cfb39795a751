-- Put a new key in the place of a live one, which goes on working for a while.
-- KEYS: old key record, new key record, index of the tenant's keys, log of changes.
-- ARGV: old public id, new public id, new digest, seconds of overlap,
--       seconds a dead key is remembered, entry of the log, most entries.
-- Returns when the new key was created and when it ends, 'NO_KEY', 'EXISTS' or 'DEAD'.
local function told()
  local times = redis.call('HMGET', KEYS[2], 'created', 'expires')
  return times[1] .. ' ' .. (times[2] or '')
end

local digest = redis.call('HGET', KEYS[2], 'digest')
if digest == ARGV[3] then
  return told() -- a repeat of this very call
elseif digest then
  return 'EXISTS'
end
local old = redis.call('HMGET', KEYS[1], 'tenant', 'expires', 'revoked', 'disabled', 'rotated')
if not old[1] then
  return 'NO_KEY'
end
local time = redis.call('TIME')
local now = time[1]
local expires = tonumber(old[2] or '')
if old[3] == '1' or old[4] == '1' or (expires and expires <= tonumber(now)) then
  return 'DEAD'
end
-- `rotated` is until when an earlier rotation lets the key work, and when it would have ended else,
-- which is what it passes on if it is rotated again in that time.
local ends = expires
local cut, before = string.match(old[5] or '', '^(%d+) (%d*)$')
if cut and tonumber(cut) == expires then
  ends = tonumber(before)
end

redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
-- With all its rights, those too that only a newer version knows.
redis.call('HSET', KEYS[2], unpack(redis.call('HGETALL', KEYS[1])))
redis.call('HSET', KEYS[2], 'digest', ARGV[3], 'created', now)
redis.call('HDEL', KEYS[2], 'rotated')
if ends then
  redis.call('HSET', KEYS[2], 'expires', string.format('%d', ends))
  redis.call('EXPIREAT', KEYS[2], ends + ARGV[5])
  redis.call('ZADD', KEYS[3], ends + ARGV[5], ARGV[2])
else
  redis.call('HDEL', KEYS[2], 'expires')
  redis.call('ZADD', KEYS[3], '+inf', ARGV[2])
end

local last = now + ARGV[4]
if last > tonumber(now) and tonumber(time[2]) > 0 then
  last = last + 1 -- a key ends with a second, and must not end before its overlap
end
if expires and expires < last then
  last = expires
end
last = string.format('%d', last)
local natural = ends and string.format('%d', ends) or ''
redis.call('HSET', KEYS[1], 'expires', last, 'rotated', last .. ' ' .. natural)
redis.call('EXPIREAT', KEYS[1], last + ARGV[5])
redis.call('ZADD', KEYS[3], last + ARGV[5], ARGV[1])
note_change(KEYS[4], ARGV[6], ARGV[7])
redis.call('PUBLISH', 'wm:changes', 'key ' .. ARGV[1])
return told()
