-- Keep the answer of a run; what the tenant stored first makes room for it.
-- KEYS: record, index of the tenant's answers by their end, hash of their sizes ('' = all together).
-- ARGV: run, state, answer, name in the index, prefix of records, ms it is kept, most answers,
--       most bytes.
-- Returns 1, 0 when there is no claim any more, or -1 when the key is another run's.
local holder = redis.call('HGET', KEYS[1], 'run')
if holder ~= ARGV[1] then
  return holder and -1 or 0
end
local function forget(name)
  local size = redis.call('HGET', KEYS[3], name)
  if size then
    redis.call('HINCRBY', KEYS[3], '', -size)
    redis.call('HDEL', KEYS[3], name)
  end
  redis.call('ZREM', KEYS[2], name)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local over = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%d', now), 'LIMIT', 0, 1000)
for _, name in ipairs(over) do
  forget(name)
end
forget(ARGV[4]) -- a repeat of this very call, or one kept under the key before
local size = #ARGV[3]
while redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[7])
  or tonumber(redis.call('HGET', KEYS[3], '') or '0') + size > tonumber(ARGV[8]) do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
  if not oldest then
    break
  end
  forget(oldest)
  redis.call('DEL', ARGV[5] .. oldest)
end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'answer', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[2], string.format('%d', now + ARGV[6]), ARGV[4])
redis.call('HSET', KEYS[3], ARGV[4], size)
redis.call('HINCRBY', KEYS[3], '', size)
redis.call('PEXPIRE', KEYS[2], ARGV[6] + 60000)
redis.call('PEXPIRE', KEYS[3], ARGV[6] + 60000)
return 1
