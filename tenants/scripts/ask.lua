-- Ask every server of the store a question.
-- KEYS: servers. ARGV: channel of questions, channel that every server hears, text.
-- Returns how many heard it, how many there are, and what `be_seen` does.
local heard = redis.call('PUBLISH', ARGV[1], ARGV[3])
local all = redis.call('PUBSUB', 'NUMSUB', ARGV[2])[2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local seen = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
return {heard, all, string.format('%d', now), seen}
