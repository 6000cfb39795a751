-- Claim the call under an idempotency key, or tell what has become of it.
-- KEYS: record. ARGV: print of the payload, replica, run, ms that the claim lasts.
-- Returns {'NEW'}, {'OTHER'} for another payload, {'RUNNING', ms for which it has been} on another
-- replica, {'LOST'} for an answer that was too large, or {'DONE', answer}; something else for a
-- record that a newer version wrote.
local found = redis.call('HMGET', KEYS[1], 'print', 'state', 'replica', 'begun', 'answer')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = found[2] == 'RUNNING' and found[3] == ARGV[2] -- it knows better: that one is over
if found[1] and not own then
  if found[1] ~= ARGV[1] then
    return { 'OTHER' }
  elseif found[2] == 'RUNNING' then
    return { 'RUNNING', tostring(now - (tonumber(found[4] or '') or now)) }
  end
  return { found[2], found[5] }
end
redis.call('HSET', KEYS[1], 'print', ARGV[1], 'state', 'RUNNING', 'replica', ARGV[2],
  'run', ARGV[3], 'begun', string.format('%d', now))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return { 'NEW' }
