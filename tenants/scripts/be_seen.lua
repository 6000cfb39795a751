-- Note that a server is on the store, or has left it; tells which were there lately.
-- KEYS: servers. ARGV: server, ms since it was there, ms a server is kept, most servers,
--       channel on which the others are told that it is there.
-- Returns the ms of the store's clock, then names and when they were last seen.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'zset' then
  redis.call('DEL', KEYS[1]) -- damaged, if it is there; whoever is there will be seen again
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now - ARGV[2], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[3])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if ARGV[2] == '0' then
  redis.call('PUBLISH', ARGV[5], ARGV[1])
end
return {string.format('%d', now), redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')}
