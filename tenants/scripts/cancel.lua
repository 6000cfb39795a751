-- Tell every replica of a cancellation.
-- KEYS: log. ARGV: channel, most entries of the log, ms it is kept, text.
if redis.call('TYPE', KEYS[1])['ok'] ~= 'stream' then
  redis.call('DEL', KEYS[1]) -- damaged, if it is there; its entries would soon be gone anyway
end
local entry = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'text', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', ARGV[1], entry .. ' ' .. ARGV[4])
return entry
