"""JSON texts: those that must be accepted, those that must be rejected, and those on which parsers may differ (RFC 8259)."""

from typing import Final


def _strings() -> list[bytes]:
    escapes = [b'"', b"\\", b"/", b"b", b"f", b"n", b"r", b"t"]
    points = [0x20, 0x7F, 0x80, 0xA0, 0xAD, 0x3B1, 0x7FF, 0x800, 0x200B, 0x2028, 0x2029, 0x202E, 0xE000, 0xFEFF, 0xFFFD,
              0xFFFE, 0xFFFF, 0x10000, 0x1F4A9, 0x1FFFE, 0x10FFFF]  # fmt: skip
    made = [b'"\\%s"' % one for one in escapes]
    made += [b'"%s"' % chr(point).encode() for point in points]
    made += [b'"\\u%04x"' % point for point in points if point < 0x10000]
    made += [b'"\\u%04X"' % point for point in (0, 1, 0x1F, 0x22, 0x5C)]
    made += [b'"\\ud83d\\udca9"', b'"\\uD834\\uDd1e"', b'"\\\\u0000"', b'"\\\\\\""', b'"a\\u0000b"', b'""', b'" "']
    return made


def _numbers() -> list[bytes]:
    return [
        b"0", b"-0", b"-0.0", b"1", b"-1", b"1.5", b"-1.5", b"1e2", b"1E2", b"1e+2", b"1E-2", b"0e1", b"0e+1", b"0E0", b"0.0e-0",
        b"1.000000000000000000000000000000000001", b"0.1", b"9007199254740993", b"9223372036854775807", b"9223372036854775808",
        b"-9223372036854775809", b"18446744073709551616", b"123456789012345678901234567890", b"1" + b"0" * 300, b"1" * 4_300,
        b"1e308", b"2.2250738585072011e-308", b"5e-324", b"-1e-400", b"1e-400", b"0.%s1" % (b"0" * 5_000),
    ]  # fmt: skip


def _nested(depth: int) -> list[bytes]:
    return [
        b"[" * depth + b"]" * depth,
        b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1),
        b'[{"a":' * (depth // 2) + b"1" + b"}]" * (depth // 2),
    ]


def _read() -> list[bytes]:
    values = [*_strings(), *_numbers(), b"true", b"false", b"null", b"[]", b"{}", *_nested(128)]
    shapes = [
        b"[[]]", b"[null]", b"[1,2,3]", b'[1,"a",null,true,{}]', b"[[[[1]]]]", b'{"":0}', b'{"a":1,"b":2}', b'{"a":{"b":{}}}',
        b'{"a":1,"a":1}', b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', b'{"":1,"":2}', b'{"__proto__":{"x":1}}', b'{"a\\u0000b":1}',
        b'{"a.b":1,"a":{"b":2}}', b'{"0":1}', b'{"constructor":1}', b'{"$ref":"#"}', b'{"\\ud83d\\udca9":1}', b'{"%s":1}' % (b"k" * 70_000),
        b'"%s"' % (b"x" * 100_000), b"[%s]" % b",".join([b"0"] * 20_000), b"{%s}" % b",".join(b'"%d":0' % n for n in range(5_000)),
        b" 1", b"1 ", b"\t1", b"\n1", b"\r1", b"\r\n\t 1 \t\n\r", b"[ 1 , 2 ]", b'{ "a" : 1 }', b'{"a"\n:\t1\r}',
        b'"[[[[{{{{"', b'["]","}","\\"]"]', b'"%s"' % (b"[" * 100_000), b'"%s"' % (b"\\\\" * 10_000), b'"%s"' % (b'\\"' * 10_000),
    ]  # fmt: skip
    return [*values, *shapes, *(b"[%s]" % value for value in values[:60])]


def _not_read() -> list[bytes]:
    words = [
        b"", b" ", b"\n", b"nul", b"nulll", b"True", b"FALSE", b"None", b"undefined", b"NaN", b"-NaN", b"nan", b"Infinity", b"-Infinity",
        b"+Infinity", b"Inf", b"\xff", b"\x00", b"a", b"'a'", b"`a`", b'"', b'"a', b'a"', b'"a" "b"', b'"a""b"', b"\\", b"\\u0031", b"1 2", b"1,2",
    ]  # fmt: skip
    numbers = [
        b"+1", b".5", b"-.5", b"1.", b"1.e1", b"01", b"-01", b"00", b"0x1", b"0b1", b"0o7", b"1e", b"1e+", b"1E-", b"1e1.5", b"1ee1", b"1_000", b"1,000",
        b"- 1", b"--1", b"-", b"-a", b"1a", b"1.5.5", b"1+1", b"1L", b"1f", b"$1", b"\xef\xbc\x91", b"\xd9\xa1", b"1\xc2\xa0", b"1\x0b", b"1\x0c", b"\xe2\x88\x9e",
    ]  # fmt: skip
    arrays = [
        b"[", b"]", b"[1", b"1]", b"[1,", b"[1,]", b"[,1]", b"[,]", b"[1,,2]", b"[1 2]", b"[1;2]", b"[1:2]", b"[1}", b"[[]", b"[]]", b"[1]a", b"[1],", b"[1]]", b"[a]",
        b"(1)", b"<1>", b"[1\x00]", b"[\x0b1]", b"[\xa01]", b"[1]//a", b"[1]/*a*/", b"/**/[1]", b"#a\n[1]", b"[1]#", b"[...]", b"[*]", b"[-]",
    ]  # fmt: skip
    objects = [
        b"{", b"}", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{,"a":1}', b'{"a"}', b'{"a",1}', b'{"a"=1}', b'{"a"::1}', b'{"a":1 "b":2}',
        b'{"a":1,,"b":2}', b"{a:1}", b"{1:1}", b"{'a':1}", b"{null:1}", b"{[]:1}", b'{"a":}', b"{:1}", b"{:}", b'{"a":1]', b'{"a":1}}', b'{"a":1}x', b'{"a":1}{"b":2}',
        b'{"a":1}\n{"b":2}', b'{"a":1}/**/', b'{"a":1}//', b'{"a":a}', b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":+1}', b'{"a":1,"b"}', b'{"a":"b}',
    ]  # fmt: skip
    escapes = [
        b"x41",
        b"0",
        b"a",
        b"v",
        b"e",
        b"'",
        b"U0041",
        b"u",
        b"u0",
        b"u00",
        b"u004",
        b"uZZZZ",
        b"u 041",
        b"u+041",
        b"u00_1",
        b"u{41}",
        b"\n",
        b"\x00",
        b"\xc3\xa9",
    ]
    broken = [
        b"\x80",
        b"\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xc3",
        b"\xe0\x80\x80",
        b"\xe2\x82",
        b"\xf0\x80\x80\x80",
        b"\xf0\x9f\x92",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xfe",
        b"\xff",
        b"a\xff\xfea",
    ]
    strings = [
        *(b'"%c"' % control for control in range(0x20)),
        *(b'"\\%s"' % escape for escape in escapes),
        *(b'"%s"' % piece for piece in broken),
    ]
    deep = [
        *(text for depth in (129, 130, 1_000, 100_000) for text in _nested(depth)[:2]),
        b"[" * 100_000, b'{"a":' * 100_000, b'[{"":' * 50_000, b"[1," * 100_000, b"]" * 100_000, b'{"a":[' * 50_000 + b"1",
    ]  # fmt: skip
    whole = b'{"id":"a","n":[1,-2.5e3,true,null],"s":"\\u00e9\\n"}'
    cut = [whole[:end] for end in range(1, len(whole))]
    return [*words, *numbers, *arrays, *objects, *strings, *deep, *cut]


def _either() -> list[bytes]:
    """Where readers differ, and none is wrong."""
    text = '{"id":"é","a":[1]}'
    return [
        b"1e400", b"-1e400", b"[1e400,-1e400]", b'{"n":1e999999999}', b"1" * 4_301, b"-" + b"9" * 20_000, b"1" * 100_000, b"1.%s" % (b"1" * 100_000),
        b"1e%s" % (b"9" * 5_000), b"\xef\xbb\xbf{}", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf{}", b"{}\xef\xbb\xbf",
        *(b'"\\u%s"' % half for half in (b"d800", b"dbff", b"dc00", b"dfff", b"d800\\ud800", b"dc00\\ud800", b"d800a", b"d800\\n", b"d800\\u0061")),
        b'{"\\ud800":1}', b'"\xed\xa0\x80"', b'"\xed\xbf\xbf"', b'"\xed\xa0\xbd\xed\xb2\xa9"',
        *(text.encode(name) for name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "latin-1", "utf-7")),
        b"1\x00", b"{}\x00", b"\x00{}", b"\x1e{}\n", b"while(1);{}", b")]}',\n{}",
    ]  # fmt: skip


def _only_once(texts: list[bytes]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(texts))


READ: Final = _only_once(_read())
NOT_READ: Final = _only_once([text for text in _not_read() if text not in READ])
EITHER: Final = _only_once([text for text in _either() if text not in READ and text not in NOT_READ])
TEXTS: Final = (*READ, *NOT_READ, *EITHER)


def within(text: bytes) -> bytes:
    """Return *text* at every position of a document that sources, filters and orders of the tests read."""
    return b'{"id":%b,"type":%b,"data":{"id":%b,"key":%b,"n":%b}}' % ((text,) * 5)
