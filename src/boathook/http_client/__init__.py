"""The one HTTP client: every request that boathook makes to an address it was given passes here, through one guard.

`client.Client` has three verbs. `request` returns a response in memory, `stream` lends one that is read as it comes,
and `download` fetches a file to disk and goes on where an earlier try broke off. What stands on it: `fetch.Fetcher`,
which fetches the public keys of senders, and `oauth.TokenCache`. `sender.HttpSender` makes deliveries, many at a time,
over kept connections, by the same thread.

The way of a request:

1. `client` checks method, headers and address, and gives it its turn. A delivery has neither, as it was made here.
2. `sender.CurlThread` is the thread of one client or sender. It hands requests to `curl_multi`, and back what came.
3. `curl_multi` reads the address (`addresses`), has its name resolved and judged (`resolver`), decides for or against
   the proxy (`guard`), and pins what libcurl dials to what was judged.
4. `transfer` sets a handle up: the options of `guard`, headers, body, client certificate, and limits of time. As it
   dials, `guard.ConnectGuard` judges the very address once more. Then it reads the response, within limits of size.
5. The response becomes a `messages.RequestResult`, or goes to a sink of `response` as it comes.

The command line's own requests to a gateway of the operator's are the only others: `service.remote` makes them.
"""
