-- Tell every replica who has won the race of a task, unless another had.
-- KEYS: log, hash of the tenant's winners by task, index of these by their end.
-- ARGV: channel, most entries of the log, ms they are kept, text, task, winner, most winners.
-- Returns the winner that counts.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function forget(task)
  redis.call('HDEL', KEYS[2], task)
  redis.call('ZREM', KEYS[3], task)
end
local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%d', now), 'LIMIT', 0, 1000)
for _, task in ipairs(over) do
  forget(task)
end
local winner = redis.call('HGET', KEYS[2], ARGV[5])
if winner and winner ~= ARGV[6] then
  return winner
end
redis.call('HSET', KEYS[2], ARGV[5], ARGV[6])
redis.call('ZADD', KEYS[3], string.format('%d', now + ARGV[3]), ARGV[5])
if redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[7]) then
  forget(redis.call('ZRANGE', KEYS[3], 0, 0)[1])
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
if redis.call('TYPE', KEYS[1])['ok'] ~= 'stream' then
  redis.call('DEL', KEYS[1]) -- damaged, if it is there; its entries would soon be gone anyway
end
local entry = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'text', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', ARGV[1], entry .. ' ' .. ARGV[4])
return ARGV[6]
