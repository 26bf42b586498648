"""Request-smuggling vectors: requests whose end two readers may see differently, with the one correct reading.

`MARK` is a complete request inside a vector. A gateway that reads the vector incorrectly takes it for a second request
and stores the event ``smuggled-000``.
"""

from dataclasses import dataclass
from typing import Final

BODY: Final = b'{"id":"smuggled-000"}'
MARK: Final = b"POST /in/open?smuggled-000 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
HEAD: Final = b"POST /in/open HTTP/1.1\r\nHost: a\r\n"
CHUNKED: Final = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
END: Final = b"0\r\n\r\n"
UPGRADE: Final = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
FIVE: Final = b"Content-Length: 5\r\n\r\nhello"


@dataclass(frozen=True, slots=True)
class Vector:
    """One request and its correct reading."""

    name: str
    wire: bytes
    statuses: tuple[int, ...] = (400,)
    """Of the answers; none for a request that has not come to its end when its sender says that nothing more comes."""
    bodies: tuple[bytes, ...] = ()
    """What must be stored of it, and nothing else."""


def _refused() -> dict[str, bytes]:
    """Requests with doubt about their end: 400, and nothing behind them is read."""
    te = {
        "te and cl, short cl": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
        "te and cl, long cl": b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % (len(MARK) + 5) + END,
        "te and cl of nothing": b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
        "te space before colon": b"Transfer-Encoding : chunked\r\n" + FIVE,
        "te tab before colon": b"Transfer-Encoding\t: chunked\r\n" + FIVE,
        "te on a folded line": b"X: a\r\n Transfer-Encoding: chunked\r\n" + FIVE,
        "te behind a bare lf": b"X: a\nTransfer-Encoding: chunked\r\n\r\n" + END,
        "te behind a bare cr": b"X: a\rTransfer-Encoding: chunked\r\n\r\n" + END,
        "te with a nul": b"Transfer-Encoding: chunked\x00\r\n\r\n" + END,
        "te with a nul before": b"Transfer-Encoding: \x00chunked\r\n\r\n" + END,
        "te with a form feed": b"Transfer-Encoding: \x0cchunked\r\n\r\n" + END,
        "te with a vertical tab behind": b"Transfer-Encoding: chunked\x0b\r\n\r\n" + END,
        "te with a non-breaking space": b"Transfer-Encoding: \xa0chunked\r\n\r\n" + END,
        "te with a comma before": b"Transfer-Encoding: , chunked\r\n\r\n" + END,
        "te with a comma behind": b"Transfer-Encoding: chunked,\r\n\r\n" + END,
        "te with a semicolon": b"Transfer-Encoding: chunked;\r\n\r\n" + END,
        "te chunked, identity": b"Transfer-Encoding: chunked, identity\r\n\r\n" + END,
        "te identity, chunked": b"Transfer-Encoding: identity, chunked\r\n\r\n" + END,
        "te chunk": b"Transfer-Encoding: chunk\r\n" + FIVE,
        "te in two words": b"Transfer-Encoding: x chunked\r\n" + FIVE,
        "te gzip": b"Transfer-Encoding: gzip\r\n" + FIVE,
        "te gzip alone": b"Transfer-Encoding: gzip\r\n\r\n",
        "te on two lines": b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
        "te on two lines, identity last": b"Transfer-Encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n" + END,
        "te with soft hyphen": b"Transfer\xadEncoding: chunked\r\n" + FIVE,
        "te with a nul in its name": b"Transfer-Encoding\x00: chunked\r\n" + FIVE,
        "te with a space in its name": b"Transfer Encoding: chunked\r\n" + FIVE,
        "te underscore and cl": b"Transfer_Encoding: chunked\r\n" + FIVE,
        "te escaped quotes": b"Transfer-Encoding: 'chunked'\r\n\r\n" + END,
        "cl differs in case of name": b"Content-Length: 5\r\nCONTENT-LENGTH: 0\r\n\r\nhello",
        "cl list that differs": b"Content-Length: 5,6\r\n\r\nhello",
        "cl two words": b"Content-Length: 5 5\r\n\r\nhello",
        "cl with a point": b"Content-Length: 5.0\r\n\r\nhello",
        "cl with an exponent": b"Content-Length: 5e0\r\n\r\nhello",
        "cl with a semicolon": b"Content-Length: 5;\r\n\r\nhello",
        "cl in arabic digits": b"Content-Length: \xd9\xa5\r\n\r\nhello",
        "cl superscript": b"Content-Length: \xb2\r\n\r\nhello",
        "cl underscore": b"Content-Length: 1_0\r\n\r\nhello",
        "cl with a nul": b"Content-Length: 5\x00\r\n\r\nhello",
        "cl quoted": b'Content-Length: "5"\r\n\r\nhello',
        "cl octal": b"Content-Length: 0o5\r\n\r\nhello",
        "cl minus nothing": b"Content-Length: -0\r\n\r\n",
        "cl over 64 bits by 5": b"Content-Length: 18446744073709551621\r\n\r\nhello",
        "cl tab before colon": b"Content-Length\t: 5\r\n\r\nhello",
        "cl without colon": b"Content-Length 5\r\n\r\nhello",
        "cl with a space in its name": b"Content Length: 5\r\n\r\nhello",
        "cl underscore in its name": b"Content_Length: 5\r\n\r\nhello",
        "cl folded": b"Content-Length:\r\n 5\r\n\r\nhello",
        "cl behind a bare cr": b"X: a\rContent-Length: 5\r\n\r\nhello",
        "end of head is lf": b"X: a\r\n\n",
        "end of head is cr cr": b"X: a\r\n\r\r\n",
        "end of head is a blank": b"X: a\r\n \r\n\r\n",
        "header lf cr": b"X: a\n\rY: b\r\n\r\n",
        "name with a tab": b"X\tY: a\r\n\r\n",
        "name with a parenthesis": b"X(Y): a\r\n\r\n",
        "name with delete": b"X\x7f: a\r\n\r\n",
        "name with a bracket": b"X{Y}: a\r\n\r\n",
        "value with delete": b"X: a\x7f\r\n\r\n",
        "value with backspace": b"X: a\x08\r\n\r\n",
    }  # fmt: skip
    lines = {
        "line ends with cr": b"POST /in/open HTTP/1.1\rHost: a\r\n\r\n",
        "line ends with lf cr": b"POST /in/open HTTP/1.1\n\rHost: a\r\n\r\n",
        "line ends with cr cr lf": b"POST /in/open HTTP/1.1\r\r\nHost: a\r\n\r\n",
        "line with a tab": b"POST\t/in/open\tHTTP/1.1\r\nHost: a\r\n\r\n",
        "line with a vertical tab": b"POST /in/open\x0bHTTP/1.1\r\nHost: a\r\n\r\n",
        "line with spaces before": b"  POST /in/open HTTP/1.1\r\nHost: a\r\n\r\n",
        "line with a word more": b"POST /in/open HTTP/1.1 x\r\nHost: a\r\n\r\n",
        "line without target": b"POST  HTTP/1.1\r\nHost: a\r\n\r\n",
        "version 1.10": b"POST /in/open HTTP/1.10\r\nHost: a\r\n\r\n",
        "version 01.1": b"POST /in/open HTTP/01.1\r\nHost: a\r\n\r\n",
        "version 1.1.1": b"POST /in/open HTTP/1.1.1\r\nHost: a\r\n\r\n",
        "version with comma": b"POST /in/open HTTP/1,1\r\nHost: a\r\n\r\n",
        "version with plus": b"POST /in/open HTTP/+1.1\r\nHost: a\r\n\r\n",
        "version in small letters": b"POST /in/open http/1.1\r\nHost: a\r\n\r\n",
        "version with a space": b"POST /in/open HTTP /1.1\r\nHost: a\r\n\r\n",
        "version without minor": b"POST /in/open HTTP/1\r\nHost: a\r\n\r\n",
        "version 3.0": b"POST /in/open HTTP/3.0\r\nHost: a\r\n\r\n",
        "version 0.9 with headers": b"POST /in/open HTTP/0.9\r\nHost: a\r\n\r\n",
        "0.9": b"POST /in/open\r\n",
        "1.0 and te": b"POST /in/open HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + END,
        "1.0 and te and cl": b"POST /in/open HTTP/1.0\r\nTransfer-Encoding: chunked\r\n" + FIVE,
        "method with a nul": b"POST\x00 /in/open HTTP/1.1\r\nHost: a\r\n\r\n",
        "method cut in two": b"PO ST /in/open HTTP/1.1\r\nHost: a\r\n\r\n",
        "answer instead of a request": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "tls": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\x00" * 160,
        "proxy protocol": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + HEAD + b"\r\n",
        "proxy protocol 2": b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + b"\x00" * 12 + HEAD + b"\r\n",
        "two hosts, one by absolute form": b"POST http://a/in/open HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "no host, absolute form": b"POST http://a/in/open HTTP/1.1\r\n\r\n",
    }  # fmt: skip
    hosts = {
        f"host {value!r}": b"POST /in/open HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n\r\n" % value
        for value in (
            b"a b", b"a/b", b"user@a", b"a:b", b"a:80:80", b"a:123456", b"[::1", b"::1", b"[a]b", b"[::1]x", b"a\\b", b"a?b", b"a#b",
            b"a, b", b"<a>", b'"a"', b"a%zz", b"a^b", b"a|b", b"{a}", b"\xff", b"b\xc3\xbccher.example", b"http://a",
        )
    }  # fmt: skip
    chunks = {
        "chunk size 5 by overflow of 64 bits": b"10000000000000005\r\nhello\r\n",
        "chunk extension with a slash": b"5;a=b/c\r\nhello\r\n",
        "chunk size with a point": b"5.0\r\nhello\r\n",
        "chunk size with a comma": b"5,5\r\nhello\r\n",
        "chunk size quoted": b'"5"\r\nhello\r\n',
        "chunk size with a letter": b"5h\r\nhello\r\n",
        "chunk size that is no number": b"g\r\nhello\r\n",
        "chunk size with a tab": b"5\t\r\nhello\r\n",
        "chunk size with a tab before": b"\t5\r\nhello\r\n",
        "chunk size with a vertical tab": b"\x0b5\r\nhello\r\n",
        "chunk size with a nul": b"5\x00\r\nhello\r\n",
        "chunk size and space and extension": b"5 ;a\r\nhello\r\n",
        "chunk size on a second line": b"\r\n5\r\nhello\r\n",
        "chunk size minus nothing": b"-0\r\n\r\n",
        "chunk size ends with lf cr": b"5\n\rhello\r\n",
        "chunk extension with a bare cr": b"5;a\rb\r\nhello\r\n",
        "chunk extension with a bare lf": b"5;a\nhello\r\n",
        "chunk extension with lf in quotes": b'5;a="\n"\r\nhello\r\n',
        "chunk extension with a control": b"5;a\x01\r\nhello\r\n",
        "chunk data one too few": b"6\r\nhello\r\n",
        "chunk data one too many": b"4\r\nhello\r\n",
        "chunk data ends with cr": b"5\r\nhello\r0\r\n\r\n",
        "chunk data ends with blanks": b"5\r\nhello  0\r\n\r\n",
        "last chunk ends with lf": b"5\r\nhello\r\n0\n\r\n",
        "last chunk is nothing but lf": b"5\r\nhello\r\n0\r\n\n",
        "last chunk written 0x0": b"5\r\nhello\r\n0x0\r\n\r\n",
        "trailer with a space before colon": b"0\r\nX : a\r\n\r\n",
        "trailer with a bare lf": b"0\r\nX: a\n\r\n",
        "trailer with a nul": b"0\r\nX: \x00\r\n\r\n",
        "trailer that is folded": b"0\r\nX: a\r\n b\r\n\r\n",
        "trailer without colon": b"0\r\nX\r\n\r\n",
    }
    made = {name: HEAD + wire + MARK for name, wire in te.items()}
    made |= {name: wire + MARK for name, wire in lines.items()}
    made |= {name: wire + MARK for name, wire in hosts.items()}
    made |= {name: CHUNKED + wire + END + MARK for name, wire in chunks.items()}
    return made


def _read() -> tuple[Vector, ...]:
    """Requests that have one reading, though there may be another request inside: 200, and just this is stored."""
    whole = b"n=%d " % len(MARK) + MARK
    within = MARK + END
    ok = (200,)
    return (
        Vector("a request as the body", HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(whole), whole), ok, (whole,)),
        Vector("a request and a last chunk as the body", HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(within), within), ok, (within,)),
        Vector("a request in a chunk", CHUNKED + b"%x\r\n%s\r\n" % (len(whole) + 1, b"." + whole) + END, ok, (b"." + whole,)),
        Vector("a last chunk in a chunk", CHUNKED + b"%x\r\n%s\r\n" % (len(END + whole), END + whole) + END, ok, (END + whole,)),
        Vector("an extension in quotes", CHUNKED + b'2;a="b c"\r\ne2\r\n' + END, ok, (b"e2",)),
        Vector("an extension at the end", CHUNKED + b"2\r\ne3\r\n0;a=b\r\n\r\n", ok, (b"e3",)),
        Vector("many nothings in a size", CHUNKED + b"00000000002\r\ne4\r\n000\r\n\r\n", ok, (b"e4",)),
        Vector("a size in capitals", CHUNKED + b"A\r\n0123456789\r\n" + END, ok, (b"0123456789",)),
        Vector("trailers that look like headers", CHUNKED + b"2\r\ne5\r\n0\r\nHost: b\r\nX-Token: y\r\n\r\n", ok, (b"e5",)),
        Vector("cl with nothings", HEAD + b"Content-Length: 0002\r\n\r\nf1", ok, (b"f1",)),
        Vector("cl with blanks around", HEAD + b"Content-Length: \t 2 \t\r\n\r\nf2", ok, (b"f2",)),
        Vector("cl without blank", HEAD + b"CONTENT-length:2\r\n\r\nf3", ok, (b"f3",)),
        Vector("te with blanks before", HEAD + b"Transfer-Encoding: \t chunked\r\n\r\n2\r\nf4\r\n" + END, ok, (b"f4",)),
        Vector("empty lines before", b"\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\ng1", ok, (b"g1",)),
        Vector("absolute form", b"POST http://b:80/in/open HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\ng2", ok, (b"g2",)),
        Vector("expect and the body at once", HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\nh1", ok, (b"h1",)),
        Vector("expect twice", HEAD + b"Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nh2", ok, (b"h2",)),
        Vector("expect with te", HEAD + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nh3\r\n" + END, ok, (b"h3",)),
        Vector("connection names cl", HEAD + b"Connection: Content-Length\r\nContent-Length: 2\r\n\r\ni1", ok, (b"i1",)),
        Vector("connection names te", HEAD + b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ni2\r\n" + END, ok, (b"i2",)),
        Vector("te in capitals", HEAD + b"Transfer-Encoding: CHUNKED\r\n\r\n2\r\ni4\r\n" + END, ok, (b"i4",)),
        Vector("upgrade h2c", HEAD + UPGRADE + b"Content-Length: 2\r\n\r\ni6", ok, (b"i6",)),
        Vector("upgrade h2c with a request as the body", HEAD + UPGRADE + b"Content-Length: %d\r\n\r\n%s" % (len(whole) + 1, b"u" + whole), ok, (b"u" + whole,)),
        Vector("upgrade h2c with chunks", HEAD + UPGRADE + b"Transfer-Encoding: Chunked\r\n\r\n2\r\ni7\r\n" + END, ok, (b"i7",)),
        Vector("upgrade h2c and another request", HEAD + UPGRADE + b"Content-Length: 2\r\n\r\ni8" + HEAD + UPGRADE + b"Content-Length: 2\r\n\r\ni9", (200, 200), (b"i8", b"i9")),
        Vector("upgrade h2c, close and another", HEAD + b"Connection: Close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nja" + MARK, ok, (b"ja",)),
        Vector("upgrade h2c by 1.0 and another", b"POST /in/open HTTP/1.0\r\n" + UPGRADE + b"Content-Length: 2\r\n\r\njb" + MARK, ok, (b"jb",)),
        Vector("upgrade h2c in doubt", HEAD + UPGRADE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + END + MARK, (400,)),
        Vector("upgrade h2c without a body", HEAD.replace(b"POST", b"GET") + UPGRADE + b"\r\n" + MARK, (405,)),
        Vector("upgrade tls", HEAD + b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\nContent-Length: 2\r\n\r\njc", ok, (b"jc",)),
        Vector("upgrade websocket by post", HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\njd", ok, (b"jd",)),
        Vector("connect", b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n" + MARK, (501,)),
        Vector("expectation that is unknown", HEAD + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\nje" + MARK, (417,)),
        Vector("expectation that is unknown among others", HEAD + b"Expect: 100-continue, x\r\nContent-Length: 2\r\n\r\nje" + MARK, (417,)),
        Vector("expectation in capitals", HEAD + b"Expect: 100-Continue\r\nContent-Length: 2\r\n\r\njf", ok, (b"jf",)),
        Vector("expectation by 1.0", b"POST /in/open HTTP/1.0\r\nExpect: 200-ok\r\nContent-Length: 2\r\n\r\njg", ok, (b"jg",)),
        Vector("upgrade that is not asked for", HEAD + b"Upgrade: h2c\r\nContent-Length: 2\r\n\r\ni3", ok, (b"i3",)),
        Vector("close and another request", HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nj1" + MARK, ok, (b"j1",)),
        Vector("keep-alive, close and another", HEAD + b"Connection: keep-alive, close\r\nContent-Length: 2\r\n\r\nj2" + MARK, ok, (b"j2",)),
        Vector("1.0 and another request", b"POST /in/open HTTP/1.0\r\nContent-Length: 2\r\n\r\nj3" + MARK, ok, (b"j3",)),
        Vector("1.0 kept alive and another", b"POST /in/open HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nj4" + MARK, ok, (b"j4",)),
        Vector("obs-text in a value", HEAD + b"X: \xff\xfe\r\nContent-Length: 2\r\n\r\nk1", ok, (b"k1",)),
        Vector("a name with every token letter", HEAD + b"!#$%&'*+-.^_`|~: a\r\nContent-Length: 2\r\n\r\nk2", ok, (b"k2",)),
        Vector("cl too short", HEAD + b"Content-Length: 2\r\n\r\nl1rest" + MARK, (200, 400), (b"l1",)),
        Vector("a last chunk and rubbish", CHUNKED + b"2\r\nl2\r\n" + END + b"rest" + MARK, (200, 400), (b"l2",)),
        Vector("two requests", HEAD + b"Content-Length: 2\r\n\r\nm1" + HEAD + b"Content-Length: 2\r\n\r\nm2", (200, 200), (b"m1", b"m2")),
        Vector("two requests, the second in doubt", HEAD + b"Content-Length: 2\r\n\r\nm3" + HEAD + b"Content-Length: +2\r\n\r\nm4" + MARK, (200, 400), (b"m3",)),
        Vector("get with a request as its body", b"GET /in/open HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(MARK) + MARK, (405,)),
        Vector("head with a request as its body", b"HEAD /in/open HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(MARK) + MARK, (405,)),
        Vector("get without length", b"GET /in/open HTTP/1.1\r\nHost: a\r\n\r\n" + MARK, (405,)),
        Vector("trace", b"TRACE /in/open HTTP/1.1\r\nHost: a\r\n\r\n" + MARK, (405,)),
        Vector("options of all", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n" + MARK, (404,)),
        Vector("path with a line break", b"POST /in/open%0d%0aX:%20a HTTP/1.1\r\nHost: a\r\n\r\n" + MARK, (404,)),
        Vector("path with two slashes", b"POST //in/open HTTP/1.1\r\nHost: a\r\n\r\n" + MARK, (404,)),
        Vector("path with dots", b"POST /x/../in/open HTTP/1.1\r\nHost: a\r\n\r\n" + MARK, (404,)),
        Vector("too large for 32 bits", HEAD + b"Content-Length: 4294967301\r\n\r\nhello" + MARK, (413,)),
        Vector("chunk too large for 32 bits", CHUNKED + b"100000005\r\nhello\r\n" + END + MARK, ()),
        Vector("chunk of 64 bits", CHUNKED + b"ffffffffffffffff\r\nhello\r\n" + END + MARK, ()),
        Vector("chunk below nothing", CHUNKED + b"8000000000000000\r\nhello\r\n" + END + MARK, ()),
        Vector("a source of icecast", b"SOURCE /in/open ICE/1.0\r\nHost: a\r\n\r\n" + MARK, (405,)),
        Vector("a stream of rtsp", b"DESCRIBE /in/open RTSP/1.0\r\nHost: a\r\n\r\n" + MARK, (405,)),
        Vector("rtsp by post", b"POST /in/open RTSP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\nn1" + MARK, ok, (b"n1",)),
    )  # fmt: skip


def numbered(vector: Vector, number: int) -> Vector:
    """Return *vector* with a mark that is its own."""

    def write(wire: bytes) -> bytes:
        return wire.replace(b"smuggled-000", b"smuggled-%03d" % number)

    return Vector(vector.name, write(vector.wire), vector.statuses, tuple(map(write, vector.bodies)))


VECTORS: Final = tuple(
    numbered(vector, number)
    for number, vector in enumerate((*(Vector(name, wire) for name, wire in _refused().items()), *_read()))
)
