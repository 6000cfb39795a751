-- Delete the record of a key that is damaged, of whatever type it is.
-- KEYS: key record, index of the tenant's keys as far as the tenant is known, log of changes.
-- ARGV: public id, unused, entry of the log, most entries.
-- Returns 1, or 0 when there is no such key.
if redis.call('DEL', KEYS[1]) == 0 then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
note_change(KEYS[3], ARGV[3], ARGV[4])
redis.call('PUBLISH', 'wm:changes', 'key ' .. ARGV[1])
return 1
