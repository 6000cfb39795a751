-- Give up the claim of a run that failed.
-- KEYS: record. ARGV: run. Returns 1, or 0 when it is not the run's.
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
