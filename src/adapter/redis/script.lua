-- Decides, atomically and by the server's clock, which permits a process gets, and when each permit may be used.
--
-- KEYS: the state, for a sliding window one log of the last grants for each quota, and with a limit of requests in
-- flight the requests of each process.
-- Times are microseconds since 1970. In ARGV and in the reply, times are relative to now.
-- No permit can be used earlier than the quotas allow. A permit is granted up to the horizon ahead of its time, so that
-- processes are served in the order of their queries, and need not query for each permit.
-- A quota of another unit than requests has a log of amounts, whose sum may exceed its limit. It is packed into the
-- state as pairs of a time and an amount, oldest first. A bucket of another unit has a log too, from which returned
-- amounts are taken. Its `next` is the time at which the bucket is full. A window with the same id shares the log, but
-- stores no `next`.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local at = 0
local function argument()
  at = at + 1
  return tonumber(ARGV[at])
end

local want, unit, horizon = argument(), argument(), argument()
local fresh = argument() == 1
local known = {born = argument(), granted = argument(), age = argument()}
local booked, back, holdoff, quiet = argument(), argument() == 1, argument(), argument()
-- `resumed` is the time at which the process has lifted the pause, or negative. This time is absolute.
local pause, resumed = argument(), argument()
local quotas, longest, logs = {}, 0, 0
for i = 1, argument() do
  -- The length is in µs. The interval is in ns, because rounding errors of µs would add up. It is zero for a quota with
  -- a log of grants. Every other quota is a bucket.
  local quota = {limit = argument(), burst = argument(), length = argument(), interval = argument()}
  at = at + 1
  quota.id = ARGV[at]
  quota.whole = quota.burst * quota.interval
  if quota.interval == 0 then
    logs = logs + 1
    quota.log = KEYS[logs + 1]
  end
  quotas[i] = quota
  longest = math.max(longest, quota.length)
end
local gates = {}
for i = 1, argument() do
  gates[i] = {policy = ARGV[at + 1], left = tonumber(ARGV[at + 2]), till = now + tonumber(ARGV[at + 3])}
  at = at + 3
end
-- The requests of this process, and how long they count without another query. `spare` is the number of
-- fetched permits that further requests will use. It is negative if requests already in flight wait for permits. As far
-- as the process knows, the store counts its requests until `till`. This time is absolute. `number` rises with each
-- query of the process.
local flight = {max = argument()}
if flight.max > 0 then
  flight.used, flight.spare, flight.till = argument(), argument(), argument()
  flight.expiry, flight.number = argument(), argument()
  at = at + 1
  flight.id, flight.key = ARGV[at], KEYS[#KEYS]
  longest = math.max(longest, flight.expiry)
end

-- The amounts that a block takes of each other unit, and that this process has taken beyond the counted ones.
local units, returned = {}, {}
for i = 1, argument() do
  -- The interval is that of a bucket, otherwise zero.
  local other = {limit = argument(), length = argument(), burst = argument(), interval = argument()}
  other.amount, other.more = argument(), argument()
  at = at + 1
  other.id, other.part = ARGV[at], math.ceil(other.length / 128)
  units[i] = other
  longest = math.max(longest, other.length)
end
-- The amounts that requests did not take, counted since a time or a later one. This time is absolute.
for i = 1, argument() do
  returned[i] = {since = argument()}
  for j = 1, #units do returned[i][j] = argument() end
end

local function whole(number)
  return string.format('%.0f', number)
end

local names = {'born', 'granted', 'spent', 'heard', 'silence', 'pause', 'gates', 'closed', 'pause_at'}
for i, quota in ipairs(quotas) do
  quota.field = (quota.log and 'ends:' or 'next:') .. quota.id
  names[8 + 2 * i], names[9 + 2 * i] = quota.field, 'sum:' .. quota.id
end
for _, other in ipairs(units) do table.insert(names, 'log:' .. other.id) end
local state = redis.call('HMGET', KEYS[1], unpack(names))
local born, granted, spent = tonumber(state[1]), tonumber(state[2]) or 0, tonumber(state[3]) or 0
local heard, silence = tonumber(state[4]) or 0, tonumber(state[5]) or 0
local paused, kept, closed = tonumber(state[6]) or 0, state[7] or '', tonumber(state[8]) or 0
local pause_at = tonumber(state[9]) or 0
for i, quota in ipairs(quotas) do
  -- A bucket is full if `next` lies in the past. A log contains `sum` permits, and is empty at `next`.
  quota.next = tonumber(state[8 + 2 * i]) or 0
  quota.sum = tonumber(state[9 + 2 * i]) or 0
end

-- Returns how long the bucket of a unit takes to refill an amount, in µs.
local function refilling(other, amount)
  return math.ceil(amount * other.interval / 1000)
end

-- Returns when a bucket is full again if only the amounts of its log were taken from it.
local function full_at(other)
  local full = 0
  for i = 1, #other.log, 2 do full = math.max(full, other.log[i]) + refilling(other, other.log[i + 1]) end
  return full
end

-- Adds an amount, even beyond the limit. The amounts of one part of the window share the time of the last of them.
local function add(other, moment, amount)
  local log, last = other.log, #other.log - 1
  if amount == 0 then return end
  other.sum = other.sum + amount
  other.next = math.max(other.next, moment) + refilling(other, amount)
  if last > 0 and math.floor(moment / other.part) <= math.floor(log[last] / other.part) then
    log[last], log[last + 1] = math.max(log[last], moment), log[last + 1] + amount
  else
    log[last + 2], log[last + 3] = moment, amount
  end
end

-- Removes the oldest entries of a log after a grant or the report of a share. No later permit depends on more permits
-- than the limit.
local function trim(quota)
  local surplus, gone = quota.sum - quota.limit, 0
  if surplus <= 0 then return end
  while surplus > 0 do
    local oldest = redis.call('LRANGE', quota.log, gone, gone + 2 * math.min(surplus, 8) - 1)
    if #oldest == 0 then break end
    for i = 1, #oldest, 2 do
      local count = tonumber(oldest[i + 1])
      if count > surplus then
        redis.call('LSET', quota.log, gone + 1, count - surplus)
        surplus = 0
      else
        gone, surplus = gone + 2, surplus - count
      end
      if surplus == 0 then break end
    end
  end
  redis.call('LTRIM', quota.log, gone, -1)
  quota.sum = quota.limit
end

-- Counts all earlier permits as spent at this moment.
local function empty(quota, moment)
  quota.next = math.max(quota.next, moment + (quota.log and quota.length or math.ceil(quota.whole / 1000)))
  if not quota.log then return end
  local all = redis.call('LRANGE', quota.log, 0, -1)
  redis.call('DEL', quota.log)
  redis.call('RPUSH', quota.log, whole(moment), quota.limit)
  quota.sum = quota.limit
  for i = 1, #all, 2 do
    if tonumber(all[i]) > moment then
      redis.call('RPUSH', quota.log, all[i], all[i + 1])
      quota.sum = quota.sum + tonumber(all[i + 1])
    end
  end
end

-- The clock was set back. Discards the times that were stored before, except the remaining time of pauses and gates.
local reset = heard > now + 1000000
if reset then
  paused = math.max(paused - heard, 0) + now
  kept = string.gsub(kept, ':(%d+);', function(till)
    return string.format(':%.0f;', math.max(tonumber(till) - heard, 0) + now)
  end)
  spent, silence, closed, pause_at, born = 0, 0, 0, 0, nil
  for _, quota in ipairs(quotas) do quota.next = 0 end
end

-- The requests in flight of the other processes. The entry of a process has its number of requests, the time of its
-- last query, the time since which it waits for its next request, or zero, its `expiry`, and the number of its last
-- query. Without a query, its requests expire after this expiry, and its turn after a second. The entries of earlier
-- versions lack the last two numbers. An entry of any other format has no requests, and is deleted.
local turn = 1000000
local others, earlier, since = 0, 0, 0
local waiting = {}
if flight.max > 0 then
  local all = redis.call('HGETALL', flight.key)
  for i = 1, #all, 2 do
    local format = '^(%d+):(%d+):(%d+):?(%d*):?(%d*)$'
    local requests, last, from, expiry, number = string.match(all[i + 1], format)
    requests, last, from = tonumber(requests) or 0, tonumber(last) or 0, tonumber(from) or 0
    expiry, number = tonumber(expiry) or flight.expiry, tonumber(number) or 0
    if reset then
      last, from = now, from > 0 and now or 0
      local entry = {whole(requests), whole(last), whole(from), whole(expiry), whole(number)}
      redis.call('HSET', flight.key, all[i], table.concat(entry, ':'))
    end
    if last + turn <= now then from = 0 end
    if all[i] == flight.id then
      flight.found, flight.outdated, since = true, number > flight.number, from
    elseif last + expiry <= now then
      redis.call('HDEL', flight.key, all[i])
    else
      others = others + requests
      if from > 0 then table.insert(waiting, from) end
    end
  end
  for _, from in ipairs(waiting) do
    if since == 0 or from < since then earlier = earlier + 1 end
  end
end

-- Grants may be lost by a restart, which ends every connection, or by a loss of the grants that this process remembers.
-- The server reports its uptime in whole seconds, rounded down, so `start` is the latest possible moment of its start.
local lost = reset and now + horizon or 0
for _, quota in ipairs(quotas) do
  local kept = quota.log and redis.call('EXISTS', quota.log) == 1
  -- Other processes may keep the state for longer than a log that only this process uses.
  if quota.log and not kept and quota.next <= now then quota.sum = 0 end
  -- A log without its state, or a state without its log: one of them was evicted.
  if quota.log and (kept ~= (quota.sum > 0) or kept and not born) then
    redis.call('DEL', quota.log)
    quota.sum, lost = 0, now + horizon
  end
end
-- The loss that counts as spent at `spent` may have been detected for other quotas. Of a quota that the store does not
-- know, no earlier loss counts yet.
local covered = spent
for i in ipairs(quotas) do covered = state[8 + 2 * i] and covered or 0 end
for i in ipairs(units) do covered = state[9 + 2 * #quotas + i] and covered or 0 end
if fresh or not born then
  local info = redis.pcall('INFO', 'server')
  local up = type(info) == 'string' and tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
  local start = not born and now or 0
  if up then start = math.min(now, (math.floor(now / 1000000) - up + 1) * 1000000) end
  if now - start < longest + holdoff and start > covered + 1100000 then lost = math.max(lost, start + holdoff) end
end
if known.age >= 0 and known.age < longest + horizon and (born ~= known.born or granted < known.granted) then
  if now - known.age > math.max(covered, lost) then lost = now + horizon end
end
-- The requests in flight of other processes are lost too. Each process reports them again before they would expire.
if flight.max > 0 then
  if flight.till > now and not flight.found then lost = math.max(lost, now + horizon) end
  if lost > 0 then closed = math.max(closed, lost + flight.expiry) end
end
-- No process has queried for a while, and one that comes back has used its share. Others may still use theirs until
-- they are back. Their first queries may have waited in the server meanwhile, and do not report a share.
if now - heard > quiet then silence = now end
if back and silence > spent and now - silence < holdoff then
  lost = math.max(lost, silence + holdoff)
  closed = math.max(closed, lost)
end
born = born or now
if lost > 0 then
  spent = math.max(spent, lost)
  for _, quota in ipairs(quotas) do empty(quota, lost) end
end
for i, other in ipairs(units) do
  local packed = not reset and state[9 + 2 * #quotas + i]
  if packed then other.log, other.next = cmsgpack.unpack(packed) end
  other.log, other.sum = other.log or {}, 0
  other.next = other.next or full_at(other)
  if lost > 0 then
    local all, full = other.log, other.next
    other.log, other.next = {lost, other.limit}, lost + refilling(other, other.burst)
    for j = 1, #all, 2 do
      if all[j] > lost then add(other, all[j], all[j + 1]) end
    end
    other.next = math.max(other.next, full)
  end
  local first = 1
  while other.log[first] and other.log[first] + other.length <= now do first = first + 2 end
  if first > 1 then other.log = {unpack(other.log, first)} end
  add(other, now, other.more)
  -- Returns amounts of the oldest entries first, so that no later window has room too early. After a loss, the log does
  -- not contain the earlier amounts.
  local less = 0
  for _, back in ipairs(returned) do
    local rest = back.since > spent and back.since + other.length > now and back[i] or 0
    for j = 1, #other.log, 2 do
      if rest == 0 then break end
      if other.log[j] >= back.since then
        local part = math.min(rest, other.log[j + 1])
        other.log[j + 1], rest, less = other.log[j + 1] - part, rest - part, less + part
      end
    end
  end
  if less > 0 then
    -- The amounts that were taken later may have filled the bucket up without the returned ones.
    local full = other.next - math.floor(less * other.interval / 1000)
    other.next = math.min(other.next, math.max(full, full_at(other)))
  end
  other.sum, other.wait = 0, 0
  for j = 2, #other.log, 2 do other.sum = other.sum + other.log[j] end
end

-- Counts the permits that the process used from its share, unless everything counts as spent already.
if booked > 0 and spent < now then
  for _, quota in ipairs(quotas) do
    if quota.log then
      local last = tonumber(redis.call('LINDEX', quota.log, -2) or 0)
      redis.call('RPUSH', quota.log, whole(math.max(now, last)), math.min(booked, quota.limit))
      quota.next = math.max(quota.next, math.max(now, last) + quota.length)
      quota.sum = quota.sum + math.min(booked, quota.limit)
      trim(quota)
    else
      quota.next = math.max(quota.next, now) + math.ceil(math.min(booked, quota.limit) * quota.interval / 1000)
    end
  end
end

-- The server limits of the service: no request before the end of a pause, and at most `left` before a gate opens.
-- A process may report late that it has lifted the pause. A pause that was reported since then remains.
if resumed >= 0 then
  kept = ''
  if pause_at <= resumed then paused = 0 end
end
if pause > 0 then paused, pause_at = math.max(paused, now + pause), now end
local standing = {}
for policy, left, till in string.gmatch(kept, '([^:;]+):(%d+):(%d+);') do
  if tonumber(till) > now then
    table.insert(standing, {policy = policy, left = tonumber(left), till = tonumber(till)})
  end
end
for _, gate in ipairs(gates) do
  local other
  for _, one in ipairs(standing) do
    if one.policy == gate.policy then other = one end
  end
  if not other then
    if #standing < 8 then table.insert(standing, gate) end
  elseif gate.left <= other.left then
    other.left, other.till = gate.left, math.max(other.till, gate.till)
  end
end

-- Permits are granted only for requests that are admitted. One request is reserved for each process that has waited
-- longer than this process. A query that arrives after a later one of its process admits none.
local admitted, full = 0, false
if flight.max > 0 then
  local wanted = want + flight.spare
  local room = (now < closed or flight.outdated) and 0 or flight.max - others - earlier - flight.used
  admitted = math.max(math.min(wanted, room), 0)
  full = want > 0 and wanted > admitted
  want = math.min(want, math.max(admitted - flight.spare, 0))
end

-- How long the other units delay the block. Beyond the horizon, the block is not granted. An amount above the limit
-- waits until the log is empty, and one above the burst until the bucket has been full for some time.
local delay = 0
for _, other in ipairs(units) do
  local excess = other.sum + other.amount - other.limit
  if other.interval > 0 then
    excess = 0
    if other.amount > 0 then
      other.wait = math.max(other.next + refilling(other, other.amount - other.burst) - now, 0)
    end
  end
  for j = 1, #other.log, 2 do
    if excess <= 0 or other.amount == 0 then break end
    -- An amount that was returned delays nothing.
    if other.log[j + 1] > 0 then other.wait = other.log[j] + other.length - now end
    excess = excess - other.log[j + 1]
  end
  delay = math.max(delay, other.wait)
end
if delay > horizon then want = 0 end

-- The earliest time of the next block of permits, in ns from now.
for _, quota in ipairs(quotas) do
  quota.ahead = quota.log and 0 or math.max(quota.next - now, 0) * 1000
  if quota.log then
    -- The oldest permits that do not fit beside the block must have left the window.
    local needed = quota.sum + (want + 1) * unit - quota.limit
    quota.oldest, quota.entries = {}, 2 * needed
    quota.cursor, quota.freed = -1, 0
    if quota.sum > 0 then
      quota.ahead = math.max(tonumber(redis.call('LINDEX', quota.log, -2)) - now, 0) * 1000
    end
  end
end
local function more(quota)
  local have = #quota.oldest
  if have >= quota.entries then return false end
  local next = redis.call('LRANGE', quota.log, have, math.min(have + 16, quota.entries) - 1)
  for i = 1, #next do quota.oldest[have + i] = next[i] end
  return #next > 0
end
local function due_of(block)
  local due = 0
  for _, quota in ipairs(quotas) do
    if quota.log then
      local needed = quota.sum + block * unit - quota.limit
      while quota.freed < needed and (quota.cursor + 2 < #quota.oldest or more(quota)) do
        quota.cursor = quota.cursor + 2
        quota.freed = quota.freed + tonumber(quota.oldest[quota.cursor + 1])
      end
      due = math.max(due, quota.ahead)
      if quota.freed < needed then
        due = math.max(due, quota.length * 1000)
      elseif needed > 0 then
        due = math.max(due, (tonumber(quota.oldest[quota.cursor]) + quota.length - now) * 1000)
      end
    else
      due = math.max(due, quota.ahead + unit * quota.interval - quota.whole)
    end
  end
  return due
end

local room = math.huge
for _, gate in ipairs(standing) do room = math.min(room, gate.left) end
local free, dues, blocks, is_spent = 0, {}, 0, false
-- Blocks that are available now are counted together.
if paused <= now and delay == 0 then
  local skip = math.min(want, math.floor(room / unit))
  for _, quota in ipairs(quotas) do
    if not quota.log then
      skip = math.min(skip, math.floor((quota.whole - quota.ahead) / (unit * quota.interval)))
    elseif quota.ahead > 0 then
      skip = 0
    else
      local most = skip * unit
      while quota.limit - quota.sum + quota.freed < most and (quota.cursor + 2 < #quota.oldest or more(quota)) do
        if tonumber(quota.oldest[quota.cursor + 2]) + quota.length > now then break end
        quota.cursor = quota.cursor + 2
        quota.freed = quota.freed + tonumber(quota.oldest[quota.cursor + 1])
      end
      skip = math.min(skip, math.floor((quota.limit - quota.sum + quota.freed) / unit))
    end
  end
  if skip > 0 then
    blocks, dues = skip, {0, skip * unit}
    for _, quota in ipairs(quotas) do
      if not quota.log then quota.ahead = quota.ahead + skip * unit * quota.interval end
    end
  end
end
while true do
  local due = due_of(blocks + 1)
  is_spent = due > 0
  if blocks < want then due = math.max(due, delay * 1000) end
  free = math.max(math.ceil(due / 1000), 0)
  for _, gate in ipairs(standing) do
    if (blocks + 1) * unit > gate.left then free = math.max(free, gate.till - now) end
  end
  if paused > now then free = math.max(free, paused - now) end
  if blocks == want or paused > now or free > horizon or (blocks + 1) * unit > room then break end
  blocks = blocks + 1
  if dues[#dues - 1] == free then
    dues[#dues] = dues[#dues] + unit
  else
    table.insert(dues, free)
    table.insert(dues, unit)
  end
  for _, quota in ipairs(quotas) do
    quota.ahead = math.max(quota.ahead, due, 0) + unit * quota.interval
  end
end

-- Stores the decision. Every key expires when it no longer has an effect.
granted = granted + blocks * unit
local lasts = 2 * longest + horizon + math.max(paused - now, spent - now, 0)
local fields = {'born', whole(born), 'granted', whole(granted), 'spent', whole(spent), 'pause_at', whole(pause_at)}
for _, value in ipairs({'heard', whole(now), 'silence', whole(silence), 'pause', whole(paused)}) do
  table.insert(fields, value)
end
local packed = ''
for _, gate in ipairs(standing) do
  local left = math.max(gate.left - blocks * unit, 0)
  packed = packed .. gate.policy .. ':' .. whole(left) .. ':' .. whole(gate.till) .. ';'
  lasts = math.max(lasts, gate.till - now)
end
for _, value in ipairs({'gates', packed, 'closed', whole(closed)}) do table.insert(fields, value) end
for _, quota in ipairs(quotas) do
  if quota.log then
    if blocks > 0 then
      for i = 1, #dues, 2 do
        redis.call('RPUSH', quota.log, whole(now + dues[i]), dues[i + 1])
      end
      quota.next = math.max(quota.next, now + dues[#dues - 1] + quota.length)
      quota.sum = quota.sum + blocks * unit
      trim(quota)
    end
    table.insert(fields, 'sum:' .. quota.id)
    table.insert(fields, quota.sum)
  else
    if blocks > 0 then quota.next = now + math.ceil(quota.ahead / 1000) end
    lasts = math.max(lasts, quota.next - now + longest)
  end
  table.insert(fields, quota.field)
  table.insert(fields, whole(quota.next))
end
local amounts = {}
for _, other in ipairs(units) do
  if blocks > 0 then
    add(other, now + dues[1], other.amount)
    other.wait = 0
  end
  table.insert(fields, 'log:' .. other.id)
  table.insert(fields, cmsgpack.pack(other.log, other.interval > 0 and other.next or nil))
  local left = other.limit - other.sum
  if other.interval > 0 then
    left = math.floor(other.burst - math.max(other.next - now, 0) * 1000 / other.interval)
    lasts = math.max(lasts, other.next - now + longest)
  end
  table.insert(amounts, math.max(left, 0))
  table.insert(amounts, other.wait)
end
redis.call('HSET', KEYS[1], unpack(fields))
if flight.max > 0 and not flight.outdated then
  admitted = math.max(math.min(admitted, blocks + flight.spare), 0)
  if not full then
    since = 0
  elseif admitted > 0 or since == 0 then
    since = now
  end
  -- An entry without requests is kept until it expires, because a process whose reply is lost expects to find it.
  local entry = {whole(flight.used + admitted), whole(now), whole(since), whole(flight.expiry), whole(flight.number)}
  redis.call('HSET', flight.key, flight.id, table.concat(entry, ':'))
end
-- Another process may have longer windows. No key lasts longer than the state.
local keep = whole(math.max(math.ceil(lasts / 1000) + 1000, redis.call('PTTL', KEYS[1])))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, keep) end

local query_in = math.max(free - horizon, delay - horizon, 0)
local flags = {is_spent and 1 or 0, full and 1 or 0}
return {born, granted, math.max(paused - now, 0), free, query_in, dues, admitted, flags, now, amounts}
