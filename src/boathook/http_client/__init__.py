"""The HTTP client: all requests that boathook makes to given URLs use it and pass its guard.

`client.Client` has three methods. `request` returns a response in memory, `stream` yields one that is read as it
arrives, and `download` fetches a file to disk and resumes an interrupted download. Two classes build on it:
`fetch.Fetcher`, which fetches the public keys of senders, and `oauth.TokenCache`. `sender.HttpSender` makes deliveries,
many at a time, over kept connections.

The path of a plain delivery, which needs no proxy, client certificate or HTTP/2:

1. `connection_pool` sends it over a kept connection of its origin, in the caller's event loop.
2. Without one, it has the host resolved and checked (`resolver`) and connects to one of the addresses, which
   `guard.ConnectGuard` checks again; TLS is verified against the name.
3. `response_reader` reads the response, within size limits, into a `messages.RequestResult`.

The path of any other request, which libcurl makes:

1. `client` checks method, headers and URL, and queues the request. A delivery skips both, because boathook built it.
2. `sender.CurlThread` is the thread of one client or sender. It passes requests to `curl_multi`, and results back.
3. `curl_multi` parses the URL (`addresses`), has its host resolved and checked (`resolver`), decides whether to use the
   proxy (`guard`), and pins libcurl's connection to the checked addresses.
4. `transfer` sets a handle up: the options of `guard`, headers, body, client certificate, and timeouts. When it
   connects, `guard.ConnectGuard` checks the actual IP address again. Then it reads the response, within size limits.
5. The response becomes a `messages.RequestResult`, or goes to a sink of `response` as it arrives.

The only other requests are those of the command line to an operator's own gateway: `service.remote` makes them.
"""
