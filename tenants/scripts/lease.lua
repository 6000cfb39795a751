-- Renew what one replica holds of the limits of several tenants.
-- What was used and what all replicas hold never exceed a limit together.
-- KEYS: one book for each tenant.
-- ARGV: replica, the beginning of its predecessors' names (they are dead), milliseconds that the
--       lease lasts, milliseconds that a book is kept unused, JSON of whose usage is in the store to
--       the last token: {whether all predecessors', names of dead replicas},
--       then for each tenant JSON: {number of the call, whether to leave, slices}, each slice
--       {limit's name, measure, window, limit, need, spare, risk, using, charged, known, refunded,
--       known, start, open, opened}; a slice that was opened anew has other totals.
-- Returns for each tenant nothing for a call that was overtaken by a later one, a text that says
-- what is wrong for one whose book cannot be read (which is left as it is), else for each slice
-- {held, used, idle elsewhere, start of its window, ms until it ends, whether others are short,
-- number of replicas, open elsewhere, charged in all before the first report in this window}.
local REPLICA, FORMER, LEASE, KEPT = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local COMPLETE = cjson.decode(ARGV[5])
local MOST_LOST = 64 -- dead replicas of which a budget remembers what they were charged
local WANTED = 1000 -- ms that a replica's need is known to the others
local SECOND, MINUTE, HOUR, DAY = 1000, 60000, 3600000, 86400000
local time = redis.call('TIME')
local now = time[1] * SECOND + math.floor(time[2] / 1000)

-- The day (since 1970) on which the month of `day` begins; after Howard Hinnant's
-- "chrono-Compatible Low-Level Date Algorithms", civil_from_days.
local function month_start(day)
  local z = day + 719468
  local doe = z % 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524)
    - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local month = math.floor((5 * doy + 2) / 153)
  return day - (doy - math.floor((153 * month + 2) / 5))
end

-- Start and end of the window that we are in; 0 where it has none.
local function window_of(name)
  if name == 'hour' then
    return now - now % HOUR, now - now % HOUR + HOUR
  elseif name == 'day' then
    return now - now % DAY, now - now % DAY + DAY
  elseif name == 'month' then
    local first = month_start(math.floor(now / DAY))
    return first * DAY, month_start(first + 31) * DAY
  end
  return 0, 0
end

-- Whether a replica has died.
local function succeeded(name)
  return name ~= REPLICA and string.sub(name, 1, #FORMER) == FORMER
end

-- Whether it has, and the ledger has all that it ever wrote down.
local complete = {}
for _, name in ipairs(COMPLETE[2]) do
  complete[name] = name ~= REPLICA
end
local function is_complete(name)
  return complete[name] or (COMPLETE[1] and succeeded(name))
end

-- What the ledger says that a replica's calls used of a tenant's budget in its window, as far as
-- the replica's journals have come in. Other limits are whole again before it would matter.
local function journaled(name, tenant, account)
  if (account.start or 0) == 0 then
    return 0
  end
  local place = 'wm:spent:' .. name .. ':' .. account.window .. ':' .. string.format('%d', account.start)
  return tonumber(redis.call('HGET', place, tenant .. '/' .. account.measure) or '0')
end

-- Let the time pass that went by since the account was last looked at.
local function advance(account, window, limit, start)
  if window == 'minute' then
    account.used = math.max(0, account.used - limit * math.max(0, now - account.at) / MINUTE)
  elseif window == 'held' or account.start ~= start then
    account.used, account.lost = 0, {}
    for _, slice in pairs(account.slices) do
      slice.spent, slice.base = 0, 0
    end
  end
  account.at, account.start = now, start
end

-- Charge and refund what is new since this replica's last report.
local function settle(account, mine, told)
  local charged = math.max(0, told.charged - mine.charged)
  local refunded = math.max(0, told.refunded - mine.refunded)
  account.used = account.used + charged
  mine.spent = (mine.spent or 0) + charged
  mine.held = math.max(0, mine.held - charged)
  if told.start == account.start then
    account.used = math.max(0, account.used - refunded)
    mine.spent = mine.spent - refunded
  end
  mine.charged = math.max(mine.charged, told.charged)
  mine.refunded = math.max(mine.refunded, told.refunded)
  mine.using, mine.risk, mine.open = told.using, told.risk, told.open
end

local function others_of(account)
  local held, using, open = 0, 0, 0
  for name, slice in pairs(account.slices) do
    if name ~= REPLICA then
      held, using = held + slice.held, using + slice.using
      open = open + (slice.open or 0) -- an older server does not say
    end
  end
  return held, using, open
end

-- How much the replica may hold: what it needs while there is any, and beyond that an equal
-- part of what is left; half of that when it is not alone, so that others find some.
local function grant(told, room, left, replicas, recalled)
  if recalled or told.need > room then
    return math.min(told.need, room)
  end
  local share = math.floor(left / (replicas == 1 and 1 or 2 * replicas))
  local more = math.max(math.min(told.spare, math.floor((room - told.need) / 2)), share - told.need)
  return math.min(room, told.need + math.max(0, more))
end

-- The dead whose usage is complete are charged what they used; once, for they are forgotten with it.
-- That may be more than was known: they may have gone on without the store before they died.
local function settle_lost(account, tenant)
  for name, was in pairs(account.lost or {}) do
    if is_complete(name) then
      local used = math.max(0, journaled(name, tenant, account) - was.base)
      account.used = math.max(0, account.used - was.spent + used)
      account.lost[name] = nil
    end
  end
end

-- This replica's slice. One that was thought to be dead takes up where it was, and what it may have
-- reserved since is not charged any more: it says what it did. That is so only if it says it in a call
-- that it made since, and of the same slice.
local function slice_of(account, told, tenant, call)
  local mine, was = account.slices[REPLICA], account.lost and account.lost[REPLICA]
  if not mine and was then
    mine, account.lost[REPLICA] = was, nil
    mine.held = 0
    if was.opened == told.opened and was.call < call then
      account.used, mine.spent = account.used - was.risked, mine.spent - was.risked
    end
  end
  if not mine then -- the ledger may have what it charges only now
    local before = journaled(REPLICA, tenant, account) - (told.charged - told.known_charged)
    mine = { held = 0, spent = 0, base = math.max(0, before) }
  end
  if mine.opened ~= told.opened then
    mine.opened, mine.charged, mine.refunded = told.opened, told.known_charged, told.known_refunded
    mine.since = nil
  end
  account.slices[REPLICA] = mine
  return mine
end

local function renew(account, told, replicas, tenant, call)
  local start, finish = window_of(told.window)
  account.window, account.measure = told.window, told.measure
  advance(account, told.window, told.limit, start)
  local mine = slice_of(account, told, tenant, call)
  if mine.since ~= start then
    mine.since, mine.before = start, mine.charged
  end
  settle(account, mine, told)
  settle_lost(account, tenant)
  local held, using, open = others_of(account)
  if told.window == 'minute' then -- what was used of a higher limit counts as all of a lower one
    account.used = math.min(account.used, told.limit + told.open + open)
  end
  local left = math.floor(told.limit - account.used)
  local room = math.max(0, left - held)
  local recalled = account.wanted_by ~= REPLICA and account.wanted_until > now
  mine.held = grant(told, room, left, replicas, recalled)
  if told.need > mine.held and held > using then
    account.wanted_by, account.wanted_until = REPLICA, now + WANTED
  end
  local used = told.window == 'held' and using or math.ceil(account.used)
  return { mine.held, used, held - using, start, math.max(0, finish - now), recalled and 1 or 0, replicas,
    open, mine.before }
end

-- Remember what a dead replica was charged of a budget, until the ledger says what it used, or the
-- replica itself does, with a call that is later than its last one.
local function remember(account, name, lost, risked, call)
  if account.start == 0 or not lost.spent or not lost.base then
    return
  end
  account.lost = account.lost or {}
  local was, count = account.lost[name], 0
  for _ in pairs(account.lost) do
    count = count + 1
  end
  if was then -- it was thought to be dead before, by an older server
    was.spent = was.spent + lost.spent + risked
  elseif count < MOST_LOST then
    account.lost[name] = { spent = lost.spent + risked, base = lost.base, risked = risked, call = call,
      opened = lost.opened, charged = lost.charged, refunded = lost.refunded }
  end
end

-- Forget the replicas whose lease is over, with what they held; returns how many there are.
-- They are charged what they may have reserved since they were last heard of.
local function clean(book)
  local live = 0
  for name, replica in pairs(book.replicas) do
    if replica.expires > now and not succeeded(name) and not complete[name] then
      live = live + 1
    else
      book.replicas[name] = nil
      for _, account in pairs(book.accounts) do
        local lost = account.slices[name]
        if lost then
          local risked = math.min(lost.held, lost.risk)
          account.used = account.used + risked
          remember(account, name, lost, risked, replica.call)
          account.slices[name] = nil
        end
      end
    end
  end
  return live
end

local function leave(book)
  book.replicas[REPLICA] = nil
  for _, account in pairs(book.accounts) do
    account.slices[REPLICA] = nil
  end
end

local FIELDS = { 'name', 'measure', 'window', 'limit', 'need', 'spare', 'risk', 'using', 'charged', 'known_charged',
  'refunded', 'known_refunded', 'start', 'open', 'opened' }

local function serve(book, call, leaving, slices, tenant)
  local me = book.replicas[REPLICA]
  if me and me.call > call then
    return {}
  end
  book.replicas[REPLICA] = { call = call, expires = now + LEASE }
  local replicas = clean(book)
  local answers, told_of = {}, {}
  for index, values in ipairs(slices) do
    local told = {}
    for place, field in ipairs(FIELDS) do
      told[field] = values[place]
    end
    local account = book.accounts[told.name] or { used = 0, at = now, start = 0, slices = {},
      wanted_by = '', wanted_until = 0 }
    book.accounts[told.name], told_of[told.name] = account, true
    answers[index] = renew(account, told, replicas, tenant, call)
  end
  for name, account in pairs(book.accounts) do
    if not told_of[name] then
      account.slices[REPLICA] = nil
    end
  end
  if leaving then
    leave(book)
  end
  return answers
end

local function renewed(key, call)
  local packed = redis.call('GET', key)
  local book = packed and cmsgpack.unpack(packed) or { replicas = {}, accounts = {} }
  local answer = serve(book, call[1], call[2], call[3], string.sub(key, #'wm:limits:' + 1))
  return answer, cmsgpack.pack(book)
end

local answers = {}
for index, key in ipairs(KEYS) do
  local sound, answer, book = pcall(renewed, key, cjson.decode(ARGV[5 + index]))
  if sound then
    redis.call('SET', key, book, 'PX', KEPT)
  else
    answer = type(answer) == 'table' and answer.err or tostring(answer)
  end
  answers[index] = answer
end
return answers
