-- Mark the store as ours where nobody did. It is written to also where somebody has, and by a script,
-- since nothing can be done with a store that does not take either.
-- KEYS: mark. ARGV: version of the layout. Returns whether it was marked now.
return redis.call('SET', KEYS[1], ARGV[1], 'NX') and 1 or 0
