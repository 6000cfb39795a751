-- Put a key in the place of the admin key, or nothing.
-- KEYS: record of the admin key, log of changes. ARGV: entry of the log, most entries,
--       then public id and digest of the new key, if there is one.
-- Returns whether anything has changed.
if #ARGV > 2 then
  redis.call('DEL', KEYS[1]) -- it may be damaged
  redis.call('HSET', KEYS[1], 'public_id', ARGV[3], 'digest', ARGV[4])
elseif redis.call('DEL', KEYS[1]) == 0 then
  return 0
end
note_change(KEYS[2], ARGV[1], ARGV[2])
return 1
