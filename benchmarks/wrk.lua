-- Sends the requests of a corpus, each once: thread n takes the file <prefix>.<n>, and stops when it is through.
-- A file holds, for each request, its length as eight digits and its bytes.
local ffi = require("ffi")
ffi.cdef("typedef struct { long seconds; long microseconds; } moment; int gettimeofday(moment *now, void *zone);")

local threads = {}

local function now()
  local moment = ffi.new("moment")
  ffi.C.gettimeofday(moment, nil)
  return tonumber(moment.seconds) + tonumber(moment.microseconds) / 1e6
end

function setup(thread)
  thread:set("number", #threads)
  threads[#threads + 1] = thread
end

function init(args)
  local file = assert(io.open(args[1] .. "." .. number, "rb"))
  local all = file:read("*a")
  file:close()
  requests, at = {}, 0
  local position = 1
  while position <= #all do
    local length = tonumber(all:sub(position, position + 7))
    requests[#requests + 1] = all:sub(position + 8, position + 7 + length)
    position = position + 8 + length
  end
end

function request()
  began = began or now()
  at = at + 1
  if at > #requests then
    -- wrk goes on counting its own time to the end, so the moment of running out is kept.
    ended = ended or now()
    wrk.thread:stop()
    at = 1
  end
  return requests[at]
end

function done(summary, latency)
  local errors, seconds = summary.errors, 0
  for _, thread in ipairs(threads) do
    local ended, began = thread:get("ended"), thread:get("began")
    seconds = math.max(seconds, ended and ended - began or summary.duration / 1e6)
  end
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f, "refused": %d, "broken": %d}\n',
    summary.requests, seconds, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
