-- Sends the requests of a corpus, each once: thread n takes the file <prefix>.<n>, and stops when it is through.
-- A file holds, for each request, its length as eight digits and its bytes.
local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
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
  at = at + 1
  if at > #requests then
    wrk.thread:stop()
    at = 1
  end
  return requests[at]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
