-- Before each script that makes a change: what writes the change's entry into the log of changes.
-- A log that takes none, being no stream any more or at its last id, is put aside under another name
-- and a new one begins by saying so: the change is made and noted, and nothing is lost.
local function note_change(log, entry, most)
  local noted = redis.pcall('XADD', log, 'MAXLEN', '~', most, '*', 'entry', entry)
  if type(noted) ~= 'table' or not noted['err'] then
    return
  end
  local spoilt = redis.call('TYPE', log)['ok'] ~= 'stream'
  if not spoilt and not string.find(noted['err'], 'last possible ID', 1, true) then
    error(noted['err'])
  end
  local time = redis.call('TIME')
  local aside = log .. '-damaged-' .. time[1] .. '-' .. time[2]
  redis.call('RENAME', log, aside)
  local how = {was = noted['err']}
  local words = {by = 'watermaster', did = 'damaged log put aside', to = aside, how = how}
  redis.call('XADD', log, '*', 'entry', cjson.encode(words))
  redis.call('XADD', log, '*', 'entry', entry)
end

