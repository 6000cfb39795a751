-- Keep the claim of a run that goes on.
-- KEYS: record. ARGV: run, ms that the claim lasts. Returns 1, or 0 when it is not the run's.
if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
